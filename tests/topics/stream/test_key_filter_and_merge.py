from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import KeyRange
from tests.topics.reading.record_merge import items_of, merge
from topics.errors import LogGap, LogRepeat, ProgressBroken, RowImageMissing
from topics.reading.merge import RawRecord, Run, RunMerge, SeqChecker
from topics.reading.row_filters import in_key_range
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import EventType, Op, Row, TokenText, VEvent

SHAPE = TableShape(
    "shop", "orders", (Column("id", ValueKind.LONG, "bigint"), Column("n", ValueKind.INT, "int"))
)
IN, OUT = b"\x10", b"\x90"
LOW = KeyRange.parse("-80")


def event(op: Op, before: bytes | None, after: bytes | None) -> VEvent:
    """A row event with these keyspace ids."""
    row: Row = {"id": 1, "n": 2}
    return VEvent(
        type=EventType.ROW,
        seq=1,
        token_text=TokenText(1, "-", ""),
        commit_us=1,
        gtid="u:1",
        row_index=0,
        last=True,
        database="shop",
        table="orders",
        op=op,
        keyspace_id_before=before,
        keyspace_id_after=after,
        before=row if op in {Op.UPDATE, Op.DELETE} else None,
        after=row if op is not Op.DELETE else None,
        statement=None,
        shape=SHAPE,
        shard="-",
        offset=3,
    )


@pytest.mark.parametrize(
    ("op", "before", "after", "seen_as"),
    [
        (Op.INSERT, None, IN, Op.INSERT),
        (Op.INSERT, None, OUT, None),
        (Op.READ, None, IN, Op.READ),
        (Op.READ, None, OUT, None),
        (Op.DELETE, IN, None, Op.DELETE),
        (Op.DELETE, OUT, None, None),
        (Op.UPDATE, IN, IN, Op.UPDATE),
        (Op.UPDATE, OUT, OUT, None),
        (Op.UPDATE, IN, OUT, Op.DELETE),
        (Op.UPDATE, OUT, IN, Op.INSERT),
    ],
)
def test_what_a_key_range_sees(
    op: Op, before: bytes | None, after: bytes | None, seen_as: Op | None
) -> None:
    """Rows inside are kept, rows outside are not; crossing the border is an INSERT or a DELETE."""
    made = event(op, before, after)

    found = in_key_range(made, LOW)

    assert (found and found.op) == seen_as
    if found is not None and seen_as is not op:
        gone = seen_as is Op.DELETE
        assert (found.before, found.after) == ((made.before, None) if gone else (None, made.after))
        assert (found.keyspace_id_before is None) is not gone
        assert (found.keyspace_id_after is None) is gone


@given(st.binary(max_size=9), st.binary(max_size=9))
def test_parts_of_a_key_range_make_the_whole(before: bytes, after: bytes) -> None:
    """What two halves see of an update is the update, or its delete in one and insert in one."""
    made = event(Op.UPDATE, before, after)

    halves = [in_key_range(made, KeyRange.parse(half)) for half in ("-80", "80-")]
    ops = sorted(found.op.value for found in halves if found is not None)

    assert ops in (["UPDATE"], ["DELETE", "INSERT"])


def test_others_than_rows_go_to_everyone() -> None:
    """DDL, JOURNAL and the marks of a copy need no keyspace id."""
    for kind in set(EventType) - {EventType.ROW}:
        made = replace(event(Op.NONE, None, None), type=kind, op=Op.NONE, before=None, after=None)
        assert in_key_range(made, LOW) is made


def test_rows_that_cannot_be_told_apart_stop_the_reader() -> None:
    """Without keyspace id, or with a partial image, the error names table and fix."""
    with pytest.raises(RowImageMissing, match=r"shop\.orders has no keyspace id: .* no vindex"):
        in_key_range(event(Op.INSERT, None, None), LOW)
    with pytest.raises(RowImageMissing, match="has 1 of 2 columns"):
        in_key_range(replace(event(Op.INSERT, None, IN), after={"id": 1}), LOW)


def record(timestamp_us: int, shard: str, offset: int) -> RawRecord:
    """A record without a value."""
    return RawRecord(timestamp_us, shard, offset, offset + 1, True, 0, None, b"")


def test_merge_checks_what_progress_promised() -> None:
    """A record that is older than the one before, or not older than the batch, is an error."""
    good = [record(1, "a", 0), record(3, "a", 1)]
    assert list(merge([iter(good), iter([record(1, "b", 0)])], 4)) == [
        good[0],
        record(1, "b", 0),
        good[1],
    ]
    with pytest.raises(ProgressBroken, match="offset 1, seq 2: time 3 us is not in"):
        list(merge([iter(good)], 3))
    with pytest.raises(ProgressBroken, match="shard a, offset 0"):
        list(merge([iter(good[::-1]), iter([record(9, "b", 0)])], 10))


def test_the_least_time_is_merged() -> None:
    """A transaction may be stamped with the epoch itself, by SET timestamp."""
    first = record(0, "-80", 1)

    assert list(merge([iter([first])], 1)) == [first]


def test_seq_is_checked() -> None:
    """A gap says how many are missing, a repeat which one came again."""
    seqs = SeqChecker("ks.-", 3)
    seqs.check(3, 10)

    with pytest.raises(LogGap, match="offset 12: seq 6 where 4 must be: 2 records are missing"):
        seqs.check(6, 12)
    with pytest.raises(LogRepeat, match="offset 12: seq 3 where 4 must be"):
        seqs.check(3, 12)


@given(
    st.lists(st.lists(st.lists(st.integers(0, 9), min_size=1), max_size=4), max_size=4),
    st.integers(1, 7),
)
def test_runs_are_merged_by_time_and_shard(shards: list[list[list[int]]], items_max: int) -> None:
    """However the items of shards are cut into runs, they come by time, then shard, then place."""
    streams: dict[str, Iterator[Run[list[tuple[int, str, int]]]]] = {}
    expected = []
    for number, runs in enumerate(shards):
        times = sorted(time for run in runs for time in run)
        items = [(time, f"{number}", at) for at, time in enumerate(times)]
        expected += items
        ends = list(accumulate((len(run) for run in runs), initial=0))
        streams[f"{number}"] = iter(
            [(items[begin:end], times[begin:end]) for begin, end in pairwise(ends)]
        )
    merging = RunMerge(streams)

    found = []
    while taken := merging.take(items_max):
        items = items_of(taken)
        assert len(items) <= items_max
        found += items

    assert found == sorted(expected)


def test_what_precedes_an_error_is_merged_first() -> None:
    """A shard whose log breaks does not take the rows before it along."""

    def broken() -> Iterator[Run[list[str]]]:
        yield ["a1", "a3"], [1, 3]
        raise LogGap("broken")

    merging = RunMerge({"a": broken(), "b": iter([(["b2", "b4"], [2, 4])])})

    assert items_of(merging.take(9)) == ["a1", "b2", "a3"]
    with pytest.raises(LogGap, match="broken"):
        merging.take(9)
