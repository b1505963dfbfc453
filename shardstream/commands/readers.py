"""`shardstream readers`: the named readers of a keyspace, with their lag."""

import dataclasses
import json
from typing import Annotated

import typer

from shardstream.commands.audit import recorded
from shardstream.commands.options import CommandLine, Config, Json, Keyspace, Reason
from shardstream.commands.status_lines import terminal
from shardstream.settings.model import load_settings
from shardstream.status.keyspace_report import readers_text
from shardstream.status.refresh import open_fleet
from topics.named_readers import forget_reader

app = CommandLine(help="Show the named readers of a keyspace.", no_args_is_help=True)


@app.command()
def show(keyspace: Keyspace, config: Config = None, *, as_json: Json = False) -> None:
    """Show each named reader: how far behind it is, and when it last reported."""
    settings = load_settings(config)
    with open_fleet(settings) as fleet:
        readers = fleet.look(keyspace).readers
    if as_json:
        for reader in readers:
            typer.echo(json.dumps(dataclasses.asdict(reader)))
    else:
        text = readers_text(readers) if readers else f"{keyspace}: no reader has reported"
        terminal().print(text)


@app.command()
def forget(
    keyspace: Keyspace,
    name: Annotated[str, typer.Argument(help="The reader's name")],
    config: Config = None,
    *,
    reason: Reason = "",
) -> None:
    """Forget a reader that is gone for good, and delete its consumer group."""
    settings = load_settings(config)
    with recorded(settings, keyspace, "readers forget", name, reason):
        forget_reader(settings.kafka_client(), keyspace, name)
    typer.echo(f"keyspace {keyspace}: reader {name} is forgotten")
