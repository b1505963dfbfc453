"""`shardstream topology`: the shards of a keyspace."""

import json
import time
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table

from shardstream.commands.audit import recorded
from shardstream.commands.options import SHARD_NAMES, CommandLine, Config, Keyspace, Reason
from shardstream.commands.status_lines import terminal
from shardstream.settings.model import load_settings
from shardstream.shard_removal import plan_retire, run_retire
from topics.kafka.partition_reader import read_tail
from topics.keyspace.lineage import declare
from topics.keyspace.topology import (
    Topology,
    read_topology,
    require_topology,
    topology_to_json,
    update_topology,
)
from topics.names import ShardTopics
from topics.start.start_forms import parse_time

app = CommandLine(help="Show, declare or retire the shards of a keyspace.", no_args_is_help=True)


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
    client = load_settings(config).kafka_client()
    topology = require_topology(read_topology(client, keyspace), keyspace)
    if as_json:
        typer.echo(json.dumps(json.loads(topology_to_json(topology))))
        return
    console = terminal()
    console.print(f"keyspace {keyspace}, epoch {topology.epoch}")
    if topology.author is not None:
        author = topology.author
        why = f": {author.reason}" if author.reason else ""
        said = f"last changed by {author.by} at {_time_text(author.at_us)}{why}"
        console.print(said, markup=False)
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
        list[str], typer.Option("--shard", help="A shard that serves now; repeatable")
    ],
    reshard_id: Annotated[str, typer.Option("--id", help="Name of the reshard")],
    switched_at: Annotated[
        str | None,
        typer.Option(
            "--switched-at",
            help="When the new shards began to take writes, as 2026-01-31T12:00:00Z (default: now)",
        ),
    ] = None,
    config: Config = None,
    *,
    reason: Reason = "",
) -> None:
    """Declare a reshard that was done by other tools, without marks in the logs."""
    at_us = (
        time.time_ns() // 1_000 if switched_at is None else parse_time(switched_at, "--switched-at")
    )
    settings = load_settings(config)
    client = settings.kafka_client()
    for name in shard:
        read_tail(client, ShardTopics(keyspace, name).progress)  # UsageError if it does not exist

    def change(before: Topology | None) -> Topology:
        return declare(require_topology(before, keyspace), shard, reshard_id, at_us)

    subject = f"{reshard_id}: serving {', '.join(shard)} since {_time_text(at_us)}"
    with recorded(settings, keyspace, "topology set", subject, reason):
        after = update_topology(client, keyspace, change, reason)
    serving = ", ".join(entry.name for entry in after.serving())
    typer.echo(f"keyspace {keyspace}, epoch {after.epoch}: serving {serving}")


@app.command(context_settings=SHARD_NAMES)
def retire(
    keyspace: Keyspace,
    shard: Annotated[str, typer.Argument(help="A shard that has ended, e.g. 80-")],
    config: Config = None,
    *,
    reason: Reason = "",
    yes: Annotated[bool, typer.Option("--yes", help="Delete the topics of the shard")] = False,
) -> None:
    """Delete the topics of an ended shard, once every named reader has passed it."""
    settings = load_settings(config)
    planned = plan_retire(settings, keyspace, shard)
    if not yes:
        typer.echo(
            f"{planned.passed}, and readers without a name are unknown. Run the command again with "
            f"--yes to delete {', '.join(planned.topics)}, with all changes from before the reshard"
        )
        return
    with recorded(settings, keyspace, "topology retire", shard, reason):
        typer.echo(run_retire(planned))


def _time_text(time_us: int | None) -> str:
    if time_us is None:
        return ""
    return datetime.fromtimestamp(time_us / 1e6, tz=UTC).isoformat(timespec="milliseconds")
