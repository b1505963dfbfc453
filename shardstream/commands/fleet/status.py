"""`shardstream status`: one look, or one every second."""

import sys
import time
from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group
from rich.live import Live

from event_token.errors import UsageError
from shardstream.commands.fleet.words import as_json_line, as_text
from shardstream.settings.model import Settings
from topics.fleet.look import FleetWatch
from topics.fleet.view import KeyspaceView
from topics.schemas.registry import open_schema_ids

# As often as the status lines of producers change.
WATCH_S: Final = 1.0
# A person or a check waits for the answer, and starting the command takes some of its 10 s.
ANSWER_S: Final = 5.0


def run_status(
    settings: Settings,
    keyspace: str | None,
    *,
    max_behind_s: float,
    watch: bool = False,
    as_json: bool = False,
) -> bool:
    """Print the state of one keyspace, or of all; return whether readers can keep up with it.

    `max_behind_s`: how far behind the complete part of a stream may be. With `watch` until Ctrl-C.
    """
    if keyspace is not None:
        settings.keyspace(keyspace)
    keyspaces = [keyspace] if keyspace else sorted(settings.keyspaces)
    if not keyspaces:
        raise UsageError("the settings name no keyspace")
    client = settings.kafka_client().answering_within(ANSWER_S)
    schema_ids = open_schema_ids(client, settings.kafka.schema_registry_url)
    with FleetWatch(client, schema_ids) as fleet:
        if watch:
            _watch(fleet, keyspaces, max_behind_s, as_json=as_json)
        views = [fleet.look(name) for name in keyspaces]
    _print(views, max_behind_s, as_json=as_json)
    return not any(view.is_held_back(round(max_behind_s * 1_000)) for view in views)


def _print(views: Sequence[KeyspaceView], max_behind_s: float, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.writelines(as_json_line(view) for view in views)
        sys.stdout.flush()
        return
    console = Console(soft_wrap=True, highlight=False)
    for view in views:
        console.print(as_text(view, max_behind_s))


def _watch(
    fleet: FleetWatch, keyspaces: Sequence[str], max_behind_s: float, *, as_json: bool
) -> None:
    """Show it again and again; KeyboardInterrupt ends it."""
    if as_json:
        while True:
            _print([fleet.look(name) for name in keyspaces], max_behind_s, as_json=True)
            time.sleep(WATCH_S)
    with Live(refresh_per_second=4, screen=sys.stdout.isatty()) as live:
        while True:
            live.update(Group(*(as_text(fleet.look(name), max_behind_s) for name in keyspaces)))
            time.sleep(WATCH_S)
