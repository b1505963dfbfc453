"""`shardstream audit`: who changed a keyspace by a command; and how commands leave that behind."""

import json
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

import typer
from rich import box
from rich.table import Column, Table
from rich.text import Text

from shardstream.commands.options import CommandLine, Config, Json, Keyspace
from shardstream.commands.status_lines import terminal
from shardstream.settings.model import Settings, load_settings
from shardstream.settings.producer_settings import topic_settings
from topics.kafka.errors import TopicMissing
from topics.keyspace.audit import Act, read_acts, recorded_act
from topics.keyspace.topology import read_topology, require_topology

_UNKNOWN: Final = "not known: still running, or killed"

app = CommandLine()


@app.command()
def audit(
    keyspace: Keyspace,
    config: Config = None,
    *,
    as_json: Json = False,
) -> None:
    """Show who changed a keyspace by a command, when, why, and what came of it; newest last."""
    client = load_settings(config).kafka_client()
    require_topology(read_topology(client, keyspace), keyspace)
    try:
        acts = read_acts(client, keyspace)
    except TopicMissing:
        acts = []  # the first command that changes the keyspace creates it
    if as_json:
        for act in acts:
            typer.echo(json.dumps({**asdict(act), "outcome": act.outcome or None}))
        return
    names = ("time", "by", "command", "reason", "outcome")
    table = Table(*(Column(name, overflow="fold") for name in names), box=box.SIMPLE, padding=0)
    for act in acts:
        at = datetime.fromtimestamp(act.at_us / 1e6, UTC).isoformat(timespec="seconds")
        command = f"{act.command} {act.subject}"
        cells = (act.by, command, act.reason, act.outcome or _UNKNOWN)
        table.add_row(at.replace("+00:00", "Z"), *map(Text, cells))
    terminal().print(table if acts else f"{keyspace}: no command has changed it")


def recorded(
    settings: Settings, keyspace: str, command: str, subject: str, reason: str
) -> AbstractContextManager[None]:
    """Return the block in which a command changes a keyspace: see `recorded_act`.

    UsageError if there is no such keyspace: it gets no topic by a name that was mistyped.
    """
    client = settings.kafka_client()
    require_topology(read_topology(client, keyspace), keyspace)
    return recorded_act(client, keyspace, topic_settings(settings), Act(command, subject, reason))
