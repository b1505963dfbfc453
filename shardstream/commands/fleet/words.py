"""What `shardstream status` says of a keyspace. Pure."""

import dataclasses
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from shardstream.commands.copy.progress import copy_json, duration, seconds_left
from topics.fleet.reader_views import ApplierView, ReaderView
from topics.fleet.view import KeyspaceView, ShardCondition, ShardLevel, ShardView
from topics.keyspace.topology import ReshardEntry, ReshardState

_STYLES: Final = {
    ShardLevel.OK: "green",
    ShardLevel.AMBER: "yellow",
    ShardLevel.RED: "bold red",
    ShardLevel.FILLING: "blue",
    ShardLevel.ENDED: "dim",
}
# A DDL usually goes to all shards; the newest ones tell how far.
DDLS_MAX: Final = 8


def headline(view: KeyspaceView, max_behind_s: float) -> str:
    """Return the sentence an operator reads first: what can be read, and who holds readers back."""
    if view.frontier_us is None:
        return f"{view.keyspace}: nothing can be read yet: {_holders(view)}"
    moment = _time(view.frontier_us)
    behind = _seconds(view.behind_ms or 0)
    if view.held_by and view.is_held_back(round(max_behind_s * 1_000)):
        return f"{view.keyspace}: {_holders(view)}; only what is older than {moment} can be read"
    return f"{view.keyspace}: everything older than {moment} can be read, {behind} behind"


def as_text(view: KeyspaceView, max_behind_s: float) -> RenderableType:
    """Return the headline, a table of shards, and copies and reshards that are under way."""
    bad = view.is_held_back(round(max_behind_s * 1_000))
    names = ("shard", "state", "behind", "records", "per s", "source lag", "server", "progress")
    # In a narrow terminal a cell goes on in the next line: a server without its port says little.
    columns = (Column(name, overflow="fold") for name in names)
    table = Table(*columns, box=box.SIMPLE, padding=0)
    for shard in view.shards:
        table.add_row(*_cells(shard), style=_STYLES[shard.level])
    parts: list[RenderableType] = [
        Text(headline(view, max_behind_s), style="bold red" if bad else "bold"),
        table,
    ]
    parts += [
        Text(f"{shard.shard}: {shard.skipped}; SKIP records in the log name the transactions")
        for shard in view.shards
        if shard.skipped is not None
    ]
    parts += _ddl_lines(view)
    for name, copy in view.copies:
        left = seconds_left(copy)
        rest = f", {duration(left)} left" if left is not None else ""
        note = f": {copy.note}" if copy.note else ""
        parts.append(
            Text(
                f"copy of {copy.name} on {name}: {copy.state.value}, {copy.rows:,} of about "
                f"{copy.rows_estimated:,} rows, {copy.rows_per_s:,.0f} rows/s{rest}{note}"
            )
        )
    parts += _reshard_lines(view)
    if view.readers:
        parts.append(readers_text(view.readers))
    return Group(*parts)


def _ddl_lines(view: KeyspaceView) -> list[Text]:
    """Return the last DDL of each shard, of many shards those with the newest ones."""
    found = [(shard.ddl.at_us, shard.shard, shard.ddl) for shard in view.shards if shard.ddl]
    return [
        Text(f"last DDL on {name}: {ddl}, {_time(at_us)}")
        for at_us, name, ddl in sorted(found, reverse=True, key=lambda each: each[:2])[:DDLS_MAX]
    ]


def _reshard_lines(view: KeyspaceView) -> list[Text]:
    """Return what is under way, where writes are stopped, and the last hop."""
    lines = [
        Text(
            f"reshard {entry.reshard_id}: {', '.join(entry.sources)} to "
            f"{', '.join(entry.targets)}, {entry.state}; see shardstream reshard status "
            f"{view.keyspace}"
        )
        for entry in view.reshards
    ]
    lines += [
        Text(
            f"writes are stopped on {', '.join(stop.shards)} since {_time(stop.since_us)}, by "
            f"reshard {stop.reshard_id}",
            style="bold red",
        )
        for stop in view.stopped
    ]
    lines += [Text(f"reshard {entry.reshard_id}: {text}") for entry, text in _targets(view)]
    lines += [Text(text) for text in _idle_targets(view)]
    if view.hops:
        hop = view.hops[-1]
        lines.append(
            Text(
                f"last hop at {_time(hop.hop_time_us or 0)}: {', '.join(hop.sources)} to "
                f"{', '.join(hop.targets)}, reshard {hop.reshard_id}"
            )
        )
    return lines


def _targets(view: KeyspaceView) -> list[tuple[ReshardEntry, str]]:
    """Return how far each target of the reshards that run has been filled."""
    found = {(each.reshard_id, each.target): each for each in view.appliers}
    return [
        (entry, f"{target} {_filled(view, entry, target, found.get((entry.reshard_id, target)))}")
        for entry in view.reshards
        if entry.state == ReshardState.RUNNING.value
        for target in entry.targets
    ]


def _idle_targets(view: KeyspaceView) -> list[str]:
    """Return which targets of running reshards have no producer that works: `switch` needs it."""
    lines = []
    for shard in view.shards:
        if shard.condition is not ShardCondition.FILLING:
            continue
        run = f"shardstream produce {view.keyspace} {shard.shard}"
        if shard.silent_ms is None:
            lines.append(f"{shard.shard}: its producer has not run yet; run {run}")
        elif shard.is_silent:
            said = (
                f"{shard.shard}: its producer has written nothing for {_seconds(shard.silent_ms)}"
            )
            lines.append(f"{said}; if it has ended, run {run}")
    return lines


def _filled(
    view: KeyspaceView, entry: ReshardEntry, target: str, applier: ApplierView | None
) -> str:
    run = f"shardstream reshard run {view.keyspace} {entry.reshard_id} {target}"
    if applier is None:
        return f"is not being filled: no applier has reported; run {run}"
    behind, said = _seconds(applier.behind_ms), _seconds(applier.said_ms)
    if applier.is_silent:
        return (
            f"is {behind} behind its sources: its applier on {applier.host} last said so {said} "
            f"ago; if it has ended, run {run}"
        )
    return f"is {behind} behind its sources, as its applier said {said} ago"


def readers_text(readers: Sequence[ReaderView]) -> RenderableType:
    """Return a table of named readers; below it who shares a name, and whose reports fail."""
    table = Table("reader", "behind", "events behind", "epoch", "host", "version", "last report")
    for reader in readers:
        table.add_row(
            reader.name,
            "" if reader.behind_ms is None else _seconds(reader.behind_ms),
            ", ".join(f"{shard}: {n:,}" for shard, n in reader.events_behind.items()),
            str(reader.epoch),
            reader.host,
            reader.version,
            f"{_seconds(reader.said_ms)} ago",
        )
    notes = [
        Text(
            f"reader {reader.name}: several processes use this name at the same time: "
            f"{', '.join((f'{reader.host} ({reader.version})', *reader.others))}. Give each its own"
        )
        for reader in readers
        if reader.others
    ]
    notes += [
        Text(f"reader {reader.name}: {reader.failed:,} reports or offsets did not reach Kafka")
        for reader in readers
        if reader.failed
    ]
    return Group(table, *notes)


def as_json(view: KeyspaceView) -> dict[str, object]:
    """Return all of it as JSON's values."""
    return {
        **dataclasses.asdict(view),
        "shards": [_shard_json(shard) for shard in view.shards],
        "copies": [copy_json(shard, copy) for shard, copy in view.copies],
    }


def as_json_line(view: KeyspaceView) -> str:
    """Return all of it as one line of JSON."""
    return json.dumps(as_json(view)) + "\n"


def _shard_json(view: ShardView) -> dict[str, object]:
    fields = dataclasses.asdict(view)
    del fields["condition"]
    level, is_silent = view.level.value, view.is_silent
    return {"state": view.condition.value, "level": level, "is_silent": is_silent, **fields}


def _holders(view: KeyspaceView) -> str:
    names, many = ", ".join(view.held_by), len(view.held_by) != 1
    if view.held_since_us is None:
        return f"{names} {'hold' if many else 'holds'} all readers back: {view.reason}"
    since = _time(view.held_since_us)
    return f"{names} {'have' if many else 'has'} held all readers back since {since}: {view.reason}"


def _cells(view: ShardView) -> tuple[str, ...]:
    progress = "never" if view.silent_ms is None else f"{_seconds(view.silent_ms)} ago"
    return (
        view.shard,
        view.condition.value,
        "" if view.behind_ms is None else _seconds(view.behind_ms),
        f"{view.records:,}",
        f"{view.records_per_s:,.0f}",
        _seconds(view.source_lag_ms),
        view.server,
        progress,
    )


def _seconds(milliseconds: int) -> str:
    seconds = milliseconds / 1_000
    return f"{seconds:.1f} s" if seconds < 600 else duration(seconds)


def _time(time_us: int) -> str:
    moment = datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")
