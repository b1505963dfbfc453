"""`shardstream readers`: the named readers of a keyspace, with their lag."""

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console

from shardstream.commands.options import Config, Json, Keyspace
from shardstream.commands.single_options import CommandLine

app = CommandLine(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Show the readers that report under a name, or forget one."""


@app.command()
def show(keyspace: Keyspace, config: Config = None, *, as_json: Json = False) -> None:
    """Show each named reader: how far behind it is, and when it last reported."""
    from shardstream.commands.fleet.words import readers_text
    from shardstream.settings.model import load_settings
    from topics.fleet.look import FleetWatch
    from topics.schemas.registry import open_schema_ids

    settings = load_settings(config)
    client = settings.kafka_client()
    schema_ids = open_schema_ids(client, settings.kafka.schema_registry_url)
    with FleetWatch(client, schema_ids) as fleet:
        readers = fleet.look(keyspace).readers
    if as_json:
        for reader in readers:
            typer.echo(json.dumps(dataclasses.asdict(reader)))
        return
    console = Console(soft_wrap=True, highlight=False)
    console.print(readers_text(readers) if readers else f"{keyspace}: no reader has reported")


@app.command()
def forget(
    keyspace: Keyspace,
    name: Annotated[str, typer.Argument(help="The reader's name")],
    config: Config = None,
) -> None:
    """Forget a reader that is gone for good, and delete its consumer group."""
    from shardstream.settings.model import load_settings
    from topics.readers.feed import forget_reader

    forget_reader(load_settings(config).kafka_client(), keyspace, name)
    typer.echo(f"keyspace {keyspace}: reader {name} is forgotten")
