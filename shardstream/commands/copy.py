"""`shardstream copy`: copy existing rows into the stream (snapshot, backfill)."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from event_token.errors import Halt, UsageError
from shardstream.commands.audit import recorded
from shardstream.commands.options import (
    CommandLine,
    Config,
    Json,
    Keyspace,
    Reason,
    takes_fields,
)
from shardstream.commands.status_lines import print_line, terminal
from shardstream.settings.model import Settings, load_settings
from shardstream.status.keyspace_report import copy_json, duration, seconds_left
from topics.names import ShardTopics
from topics.progress.copy_topic import (
    CopyAction,
    CopyFeed,
    CopyRequest,
    CopyState,
    TableCopy,
    ask_and_wait,
    read_copies,
)

# A producer looks for requests ten times a second; a reconnect takes some seconds.
ANSWER_S_MAX: Final = 30.0
REFRESH_S: Final = 0.5

ShardCopy = tuple[str, TableCopy]

app = CommandLine(
    help="Copy existing rows into the stream (snapshot, backfill).", no_args_is_help=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhichCopies:
    """The copies that a command is about: of which shards and tables."""

    keyspace: Keyspace
    config: Config = None
    shard: Annotated[
        list[str] | None, typer.Option("--shard", help="Shard; repeatable (default: all)")
    ] = None
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="database.table; repeatable (default: all)"),
    ] = None

    def topics(self, settings: Settings) -> list[ShardTopics]:
        """Return the topics of the named shards, or of all; UsageError for an unknown shard."""
        names = self.shard or sorted(settings.keyspace(self.keyspace).shards)
        for shard in names:
            settings.shard(self.keyspace, shard)
        return [ShardTopics(self.keyspace, shard) for shard in names]

    def of(self, copies: Iterable[TableCopy]) -> list[TableCopy]:
        """Return those of the named tables."""
        return [copy for copy in copies if not self.table or copy.name in self.table]


@app.command()
@takes_fields
def start(
    which: WhichCopies,
    where: Annotated[
        str, typer.Option("--where", help="SQL condition on the rows of the named tables")
    ] = "",
    *,
    reason: Reason = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Show progress until the copies end")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy tables into the shard logs while changes continue."""
    _request(which, CopyAction.START, reason, where)
    if wait:
        _watch_copies(which, as_json=as_json)


@app.command()
@takes_fields
def status(
    which: WhichCopies,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh until all copies have ended")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the progress of copies: rows copied, rows per second, time left."""
    show = _watch_copies if watch else _show_copies
    show(which, as_json=as_json)


@app.command()
@takes_fields
def pause(which: WhichCopies, *, reason: Reason = "") -> None:
    """Pause copies."""
    _request(which, CopyAction.PAUSE, reason)


@app.command()
@takes_fields
def resume(which: WhichCopies, *, reason: Reason = "") -> None:
    """Resume copies that were paused, or that failed and whose cause is fixed."""
    _request(which, CopyAction.RESUME, reason)


@app.command()
@takes_fields
def cancel(which: WhichCopies, *, reason: Reason = "") -> None:
    """End copies; the rows copied so far stay in the log."""
    _request(which, CopyAction.CANCEL, reason)


def _request(which: WhichCopies, action: CopyAction, reason: str, where: str = "") -> None:
    """Send a request to each shard's producer, and print what it answers.

    UsageError lists everything that was refused; Retry when a producer does not answer.
    """
    settings = load_settings(which.config)
    verb, tables, shards = action.value, tuple(which.table or ()), which.topics(settings)
    subject = f"{', '.join(tables) or 'all tables'} on {', '.join(each.shard for each in shards)}"
    subject += f" where {where}" if where else ""
    with recorded(settings, which.keyspace, f"copy {verb}", subject, reason):
        problems = []
        for topics in shards:
            # Each with an id of its own.
            request = CopyRequest(action, tables, where, reason=reason)
            answer = ask_and_wait(settings.kafka_client(), topics, request, ANSWER_S_MAX)
            for name in answer.tables:
                terminal().print(f"{topics.log}: {verb} {name}", markup=False)
            problems += [f"{topics.log}: {problem}" for problem in answer.problems]
            if not answer.tables and not answer.problems:
                terminal().print(f"{topics.log}: no table to {verb}", markup=False)
        if problems:
            raise UsageError("\n".join(problems))


def _show_copies(which: WhichCopies, *, as_json: bool) -> None:
    """Print the state of each copy."""
    settings = load_settings(which.config)
    found: list[ShardCopy] = []
    for topics in which.topics(settings):
        copies = read_copies(settings.kafka_client(), topics).values()
        found += [(topics.shard, copy) for copy in which.of(copies)]
    if as_json:
        for shard, copy in found:
            typer.echo(json.dumps(copy_json(shard, copy)))
        return
    table = Table("shard", "table", "state", "rows", "estimated", "rows/s", "left", "note")
    for shard, copy in found:
        left = seconds_left(copy)
        rate = f"{copy.rows_per_s:.0f}" if copy.state is CopyState.COPYING else ""
        table.add_row(
            *(shard, copy.name, copy.state.value, f"{copy.rows:,}", f"{copy.rows_estimated:,}"),
            *(rate, "" if left is None else duration(left), copy.note),
        )
    Console().print(table if found else "no copies")


def _watch_copies(which: WhichCopies, *, as_json: bool) -> None:
    """Show progress until no copy is running. Halt when one has failed."""
    settings = load_settings(which.config)
    feeds = {
        topics.shard: CopyFeed(settings.kafka_client(), topics) for topics in which.topics(settings)
    }
    try:
        for feed in feeds.values():
            feed.read_to_end()
        states = _states(feeds, which)
        copies = _print_lines(which.keyspace, states) if as_json else _print_bars(states)
    finally:
        for feed in feeds.values():
            feed.close()
    failed = [copy for _, copy in copies if copy.state is CopyState.FAILED]
    if failed:
        raise Halt("\n".join(copy.note for copy in failed))


def _states(feeds: Mapping[str, CopyFeed], which: WhichCopies) -> Iterator[list[ShardCopy]]:
    """Yield the copies every REFRESH_S, for the last time when none is running."""
    while True:
        copies = [
            (shard, copy)
            for shard, feed in feeds.items()
            for copy in which.of(feed.tables.values())
        ]
        yield copies
        if all(copy.state is not CopyState.COPYING for _, copy in copies):
            return
        time.sleep(REFRESH_S)
        for feed in feeds.values():
            feed.poll(0)


def _print_lines(keyspace: str, states: Iterator[list[ShardCopy]]) -> list[ShardCopy]:
    """Print a line of JSON for each new state of a copy; return the last states."""
    shown: dict[tuple[str, str], TableCopy] = {}
    copies: list[ShardCopy] = []
    for copies in states:
        for shard, copy in copies:
            if shown.get((shard, copy.name)) != copy:
                shown[shard, copy.name] = copy
                fields = {"keyspace": keyspace, **copy_json(shard, copy)}
                print_line(f"{keyspace}/{shard}", copy.state.value, fields, as_json=True)
    return copies


def _print_bars(states: Iterator[list[ShardCopy]]) -> list[ShardCopy]:
    """Show a bar for each copy; return the last states."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]} rows  {task.fields[rate]} rows/s  {task.fields[left]}"),
    )
    bars: dict[tuple[str, str], TaskID] = {}
    copies: list[ShardCopy] = []
    with Progress(*columns) as progress:
        for copies in states:
            for shard, copy in copies:
                key = (shard, copy.name)
                if key not in bars:
                    bars[key] = progress.add_task(f"{shard} {copy.name}", rows="", rate="", left="")
                left = seconds_left(copy)
                is_done = copy.state is CopyState.COMPLETED
                progress.update(
                    bars[key],
                    completed=copy.rows_read,
                    total=copy.rows_read if is_done else max(copy.rows_estimated, copy.rows_read),
                    rows=f"{copy.rows:,}",
                    rate=f"{copy.rows_per_s:,.0f}",
                    left=copy.state.value if left is None else f"{duration(left)} left",
                )
    return copies
