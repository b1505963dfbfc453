"""The state of a keyspace as text for a terminal, and as JSON. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from shardstream.status.runbook import runbook_place
from topics.fleet.view import (
    ApplierView,
    KeyspaceView,
    ReaderView,
    ShardCondition,
    ShardLevel,
    ShardView,
)
from topics.keyspace.topology import ReshardEntry, ReshardState
from topics.named_readers import ReaderKind
from topics.progress.copy_topic import CopyState, TableCopy

_STYLES: Final = {
    ShardLevel.OK: "green",
    ShardLevel.AMBER: "yellow",
    ShardLevel.RED: "bold red",
    ShardLevel.FILLING: "blue",
    ShardLevel.ENDED: "dim",
}
# A DDL usually goes to all shards; the newest ones show how far it has come.
DDLS_MAX: Final = 8
# Of the shards whose producers may be off for the shortest times: the others have longer.
OFF_MAX: Final = 8


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
    for name in ("key", "definition", "identity", "last_key", "last_key_text", "database"):
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


def long_duration(seconds: float) -> str:
    """Return a time in its two largest units, as 3 h 10 min."""
    parts: list[str] = []
    rest = int(seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def headline(view: KeyspaceView, max_behind_s: float) -> str:
    """Return the line an operator reads first: what can be read, or who holds readers back.

    `view.causes` and `readable` say the rest.
    """
    if view.held_by and view.is_held_back(round(max_behind_s * 1_000)):
        return f"{view.keyspace}: {', '.join(view.held_by)} {view.reason}"
    behind = _seconds(view.behind_ms or 0)
    return f"{view.keyspace}: {readable(view)}, {behind} behind"


def readable(view: KeyspaceView) -> str:
    """Return what readers can have, and since when they are held back."""
    if view.frontier_us is None:
        return "nothing can be read yet"
    moment = _time(view.frontier_us)
    if view.held_since_us is None:
        return f"everything older than {moment} can be read"
    since = _time(view.held_since_us)
    return f"readers are held back since {since}; only what is older than {moment} can be read"


def _cause_lines(view: KeyspaceView) -> list[RenderableType]:
    """Return what is wrong with each shard that holds readers back, and what to do about it.

    Commands have a line each that nothing breaks: they are copied.
    """
    lines: list[RenderableType] = []
    for cause in view.causes:
        place = runbook_place(cause.error, cause.alert)
        when = f". {cause.when}" if cause.command and cause.when else ""
        lines.append(Text(f"{cause.shard}: {cause.text}; see {place}{when}"))
        if cause.command:
            lines.append(Text(f"  {cause.command}", no_wrap=True, overflow="ignore"))
    return [*lines, Text(readable(view))] if lines else []


def keyspace_text(view: KeyspaceView, max_behind_s: float) -> RenderableType:
    """Return the headline, a table of shards, and copies and reshards that are under way."""
    bad = view.is_held_back(round(max_behind_s * 1_000))
    names = ("shard", "state", "behind", "records", "per s", "source lag", "server", "progress")
    # A narrow terminal wraps a cell: a server without its port says little.
    columns = (Column(name, overflow="fold") for name in names)
    table = Table(*columns, box=box.SIMPLE, padding=0)
    for shard in view.shards:
        table.add_row(*_cells(shard), style=_STYLES[shard.level])
    parts: list[RenderableType] = [
        Text(headline(view, max_behind_s), style="bold red" if bad else "bold"),
        *(_cause_lines(view) if bad else ()),
        table,
    ]
    parts += [
        Text(f"{shard.shard}: {shard.skipped}; SKIP records in the log name the transactions")
        for shard in view.shards
        if shard.skipped is not None
    ]
    parts += [
        Text(f"{shard.shard}: {shard.passed}") for shard in view.shards if shard.passed is not None
    ]
    parts += _off_lines(view)
    parts += [
        Text(
            f"{shard.shard}: names of columns are proved by the server's catalog "
            f'(metadata = "proved"), those of {shard.proved:,} tables by now'
        )
        for shard in view.shards
        if shard.proved is not None
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


def _off_lines(view: KeyspaceView) -> list[Text]:
    """Return for how long producers may be off, of the shards with the shortest times."""
    found = [
        (shard.off_ms_max, shard)
        for shard in view.shards
        if shard.off_ms_max is not None and shard.condition is not ShardCondition.ENDED
    ]
    lines = []
    for off_ms, shard in sorted(found, key=lambda each: (each[0], each[1].shard))[:OFF_MAX]:
        kept_s = None if shard.binlogs is None else shard.binlogs.kept_s
        kept = "" if kept_s is None else f", and are kept for {long_duration(kept_s)}"
        if kept_s == 0:
            kept = ", and nothing keeps them: see shardstream preflight"
        off = ""
        if shard.is_silent and shard.silent_ms is not None:
            off = f"; it has been off for {long_duration(shard.silent_ms / 1_000)}"
        lines.append(
            Text(
                f"the producer of {shard.shard} may be off for {long_duration(off_ms / 1_000)}: so "
                f"far back the binlogs of {shard.server} reach{kept}{off}"
            )
        )
    return lines


def _ddl_lines(view: KeyspaceView) -> list[Text]:
    """Return the last DDL of the shards with the newest ones."""
    found = [(shard.ddl.at_us, shard.shard, shard.ddl) for shard in view.shards if shard.ddl]
    return [
        Text(f"last DDL on {name}: {ddl}, {_time(at_us)}")
        for at_us, name, ddl in sorted(found, reverse=True, key=lambda each: each[:2])[:DDLS_MAX]
    ]


def _reshard_lines(view: KeyspaceView) -> list[Text]:
    """Return lines on the reshards under way, on stopped writes, and on the last hop."""
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
    """Return how far each target of the running reshards is filled."""
    found = {(each.reshard_id, each.target): each for each in view.appliers}
    return [
        (entry, f"{target} {_filled(view, entry, target, found.get((entry.reshard_id, target)))}")
        for entry in view.reshards
        if entry.state == ReshardState.RUNNING.value
        for target in entry.targets
    ]


def _idle_targets(view: KeyspaceView) -> list[str]:
    """Return the targets of running reshards without a working producer, which `switch` needs."""
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
            f"is {behind} behind its sources: its applier on {applier.host} last reported {said} "
            f"ago; if it has ended, run {run}"
        )
    return f"is {behind} behind its sources, as its applier reported {said} ago"


def readers_text(readers: Sequence[ReaderView]) -> RenderableType:
    """Return a table of named readers, then notes on shared names and failed reports."""
    table = Table("reader", "behind", "events behind", "epoch", "host", "version", "last report")
    for reader in readers:
        table.add_row(
            reader.name
            if reader.kind == ReaderKind.APPLICATION
            else f"{reader.name} ({reader.kind})",
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
            f"{', '.join((f'{reader.host} ({reader.version})', *reader.others))}. Give "
            f"each process its own name"
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


def keyspace_json(view: KeyspaceView) -> dict[str, object]:
    """Return all of it, ready to be encoded as JSON."""
    return {
        **asdict(view),
        "causes": [
            {**asdict(cause), "runbook": runbook_place(cause.error, cause.alert)}
            for cause in view.causes
        ],
        "shards": [_shard_json(shard) for shard in view.shards],
        "copies": [copy_json(shard, copy) for shard, copy in view.copies],
    }


def _shard_json(view: ShardView) -> dict[str, object]:
    fields = asdict(view)
    del fields["condition"]
    level, is_silent = view.level.value, view.is_silent
    return {
        "state": view.condition.value,
        "level": level,
        "is_silent": is_silent,
        "off_ms_max": view.off_ms_max,
        **fields,
    }


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
