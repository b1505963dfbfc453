"""Checks of a stream across reshards: each record once, in order, and the resulting rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from event_token import Order, compare
from tests.producers.session.producing import WrittenLog
from topics.progress.record import MarkKind
from topics.records.vevent import EventType, Op, Row, VEvent

Key = tuple[Any, ...]
KEYS = {"orders": ("id",), "sessions": ("user_id", "name")}


def served_part(log: WrittenLog) -> list[VEvent]:
    """Return the records of a shard's log that belong to the stream: from BEGIN to END."""
    marks = {p.mark.kind: p.mark.offset for p in log.progress if p.mark is not None}
    first = marks.get(MarkKind.BEGIN, 0)
    last = marks.get(MarkKind.END, log.events[-1].offset)
    assert all(event.type is not EventType.ROW for event in log.events if event.offset > last)
    return [event for event in log.events if first <= event.offset <= last]


def check_order(events: Sequence[VEvent], logs: Mapping[str, WrittenLog]) -> None:
    """Check that the stream is what the shards logged while serving: once, in merged order."""
    wanted = [event for log in logs.values() for event in served_part(log)]
    wanted.sort(key=lambda event: (event.timestamp_us, event.shard, event.offset))
    assert [(e.timestamp_us, e.shard, e.seq) for e in events] == [
        (e.timestamp_us, e.shard, e.seq) for e in wanted
    ]
    assert not any(event.late or event.possible_duplicate for event in events)


def check_origins(source: Sequence[VEvent], target: WrittenLog) -> int:
    """Check that each replicated row has its source's token; return the number of such rows."""
    tokens = {event.token_text: event for event in source if event.type is EventType.ROW}
    [begin] = [p.mark for p in target.progress if p.mark and p.mark.kind is MarkKind.BEGIN]
    brought = [e for e in target.events if e.table in KEYS and e.offset < begin.offset]
    for event in brought:
        assert event.token_text.origin in tokens, f"seq {event.seq} has no known origin"
        assert compare(event.token, tokens[event.token_text.origin].token) is Order.EQUAL
    own = [event for event in target.events if event.offset > begin.offset]
    assert all(event.token_text.origin is None for event in own)
    return len(brought)


def replayed(events: Sequence[VEvent]) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows that the stream results in, by table, sorted; the user comes first.

    Each change must find its row as the previous change of that key left it, so that a lost,
    repeated or reordered change is noticed. Copied rows are upserts, and prove nothing.
    """
    rows: dict[Key, Row] = {}
    told: dict[Key, Row | None] = {}  # what the last change left, not a copy
    for event in events:
        if event.type is not EventType.ROW or event.table not in KEYS:
            continue
        where = f"{event.shard} seq {event.seq}: {event.op} of {event.before or event.after}"
        if event.before is not None:
            key = _key(event.table, event.before)
            assert told.get(key, event.before) == event.before, where
            told[key] = None
            rows.pop(key, None)
        if event.after is not None:
            key = _key(event.table, event.after)
            if event.op is not Op.READ:
                assert told.get(key) is None, where
                told[key] = event.after
            rows[key] = event.after
    found: dict[str, list[tuple[Any, ...]]] = {table: [] for table in KEYS}
    for (table, *_), row in rows.items():
        found[table].append((row["user_id"], *row.values()))
    return {table: sorted(of) for table, of in found.items()}


def _key(table: str, row: Row) -> Key:
    return (table, *(row[name] for name in KEYS[table]))
