"""`shardstream topology`: the shards of a keyspace."""

import json
import time
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from event_token.errors import UsageError
from shardstream.commands.options import SHARD_NAMES, Config, Keyspace
from shardstream.commands.single_options import CommandLine

app = CommandLine(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Show the shards of a keyspace, declare a reshard by other tools, or retire a shard."""


@app.command()
def show(
    keyspace: Keyspace,
    config: Config = None,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record on Kafka as JSON")
    ] = False,
) -> None:
    """Show the shards and reshards of a keyspace."""
    from shardstream.settings.model import load_settings
    from topics.keyspace.topology import read_topology, topology_to_json

    topology = read_topology(load_settings(config).kafka_client(), keyspace)
    if topology is None:
        raise UsageError(f"keyspace {keyspace} has no topology: start a producer of it first")
    if as_json:
        typer.echo(json.dumps(json.loads(topology_to_json(topology))))
        return
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"keyspace {keyspace}, epoch {topology.epoch}")
    shards = Table("shard", "state")
    for shard in topology.shards:
        shards.add_row(shard.name, shard.state.value)
    console.print(shards)
    if topology.reshards:
        reshards = Table("reshard", "from", "to", "state", "hop time")
        for r in topology.reshards:
            hop = _time_text(r.hop_time_us)
            reshards.add_row(r.reshard_id, ", ".join(r.sources), ", ".join(r.targets), r.state, hop)
        console.print(reshards)


@app.command("set")
def set_shards(
    keyspace: Keyspace,
    shard: Annotated[
        list[str], typer.Option("--shard", help="A shard that serves now; repeat for each")
    ],
    reshard_id: Annotated[str, typer.Option("--id", help="A name for the reshard")],
    switched_at: Annotated[
        str | None,
        typer.Option(
            "--switched-at",
            help="When the new shards began to take writes, as 2026-01-31T12:00:00Z (default: now)",
        ),
    ] = None,
    config: Config = None,
) -> None:
    """Declare a reshard that was done by other tools, without marks in the logs."""
    from shardstream.settings.model import load_settings
    from topics.kafka.partition_reader import read_tail
    from topics.keyspace.lineage import declare
    from topics.keyspace.topology import Topology, update_topology
    from topics.names import ShardTopics
    from topics.start.start_forms import parse_time

    at_us = (
        time.time_ns() // 1_000 if switched_at is None else parse_time(switched_at, "--switched-at")
    )
    client = load_settings(config).kafka_client()
    for name in shard:
        read_tail(client, ShardTopics(keyspace, name).progress)  # UsageError if it does not exist

    def change(before: Topology | None) -> Topology:
        if before is None:
            raise UsageError(f"keyspace {keyspace} has no topology: start a producer of it first")
        return declare(before, shard, reshard_id, at_us)

    after = update_topology(client, keyspace, change)
    serving = ", ".join(entry.name for entry in after.serving())
    typer.echo(f"keyspace {keyspace}, epoch {after.epoch}: serving {serving}")


@app.command(context_settings=SHARD_NAMES)
def retire(
    keyspace: Keyspace,
    shard: Annotated[str, typer.Argument(help="A shard that has ended, e.g. 80-")],
    config: Config = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Delete the topics of the shard")] = False,
) -> None:
    """Delete the topics of an ended shard, once every named reader has passed it."""
    from shardstream.commands.fleet.retire import run_retire
    from shardstream.settings.model import load_settings

    typer.echo(run_retire(load_settings(config), keyspace, shard, is_confirmed=yes))


def _time_text(time_us: int | None) -> str:
    if time_us is None:
        return ""
    return datetime.fromtimestamp(time_us / 1e6, tz=UTC).isoformat(timespec="milliseconds")
