"""Shows the progress of copies: a table, a bar per copy, or JSON."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from event_token.errors import Halt
from shardstream.commands.copy.requests import copied_shards
from shardstream.commands.status_lines import print_line
from shardstream.settings.model import Settings
from topics.progress.copy_topic import (
    CopyFeed,
    CopyState,
    TableCopy,
    read_copies,
)

REFRESH_S: Final = 0.5

ShardCopy = tuple[str, TableCopy]


def show_copies(
    settings: Settings,
    keyspace: str,
    shards: Sequence[str],
    tables: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Print the state of each copy."""
    found: list[ShardCopy] = []
    for topics in copied_shards(settings, keyspace, shards):
        copies = read_copies(settings.kafka_client(), topics).values()
        found += [(topics.shard, copy) for copy in _chosen(copies, tables)]
    if as_json:
        for shard, copy in found:
            sys.stdout.write(json.dumps(copy_json(shard, copy)) + "\n")
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


def watch_copies(
    settings: Settings,
    keyspace: str,
    shards: Sequence[str],
    tables: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Show progress until no copy is running. Halt when one has failed."""
    feeds = {
        topics.shard: CopyFeed(settings.kafka_client(), topics)
        for topics in copied_shards(settings, keyspace, shards)
    }
    try:
        for feed in feeds.values():
            feed.read_to_end()
        if as_json:
            _watch_json(keyspace, feeds, tables)
        else:
            _watch_bars(feeds, tables)
        failed = [c for _, c in _all(feeds, tables) if c.state is CopyState.FAILED]
    finally:
        for feed in feeds.values():
            feed.close()
    if failed:
        raise Halt("\n".join(copy.note for copy in failed))


def _watch_json(keyspace: str, feeds: dict[str, CopyFeed], tables: Sequence[str]) -> None:
    shown: dict[tuple[str, str], TableCopy] = {}
    while True:
        for shard, copy in _all(feeds, tables):
            if shown.get((shard, copy.name)) != copy:
                shown[shard, copy.name] = copy
                fields = {"keyspace": keyspace, **copy_json(shard, copy)}
                print_line(f"{keyspace}/{shard}", copy.state.value, fields, as_json=True)
        if not _advance(feeds, tables):
            return


def _watch_bars(feeds: dict[str, CopyFeed], tables: Sequence[str]) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]} rows  {task.fields[rate]} rows/s  {task.fields[left]}"),
    )
    bars: dict[tuple[str, str], TaskID] = {}
    with Progress(*columns) as progress:
        while True:
            for shard, copy in _all(feeds, tables):
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
            if not _advance(feeds, tables):
                return


def _advance(feeds: dict[str, CopyFeed], tables: Sequence[str]) -> bool:
    """Wait for progress; False when no copy is running."""
    if all(copy.state is not CopyState.COPYING for _, copy in _all(feeds, tables)):
        return False
    time.sleep(REFRESH_S)
    for feed in feeds.values():
        feed.poll(0)
    return True


def _all(feeds: dict[str, CopyFeed], tables: Sequence[str]) -> Iterator[ShardCopy]:
    for shard, feed in feeds.items():
        for copy in _chosen(feed.tables.values(), tables):
            yield shard, copy


def _chosen(copies: Any, tables: Sequence[str]) -> list[TableCopy]:
    return [copy for copy in copies if not tables or copy.name in tables]


def seconds_left(copy: TableCopy) -> float | None:
    """Estimate the seconds that a copy still needs; None when that is unknown.

    The server estimates a table's rows, often too low, and not those that a condition selects.
    """
    rows = copy.rows_estimated - copy.rows_read
    if copy.state is not CopyState.COPYING or copy.rows_per_s <= 0 or copy.where or rows <= 0:
        return None
    return rows / copy.rows_per_s


def copy_json(shard: str, copy: TableCopy) -> dict[str, Any]:
    """Return a copy as a JSON object."""
    fields = asdict(copy)
    for name in ("key", "last_key", "last_key_text", "database"):
        del fields[name]
    left = seconds_left(copy)
    return {
        "shard": shard,
        **fields,
        "table": copy.name,
        "state": copy.state.value,
        "last_key": copy.last_key_text,
        "seconds_left": None if left is None else round(left, 1),
    }


def duration(seconds: float) -> str:
    """Return hours:minutes:seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
