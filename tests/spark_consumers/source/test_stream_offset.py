import json
import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import EventToken, Flavor, ShardPosition, StreamPosition, parse_gtid_set
from event_token.errors import Halt
from spark_consumers.source.stream_offset import StreamOffset, choose_splits, tasks_between
from topics.reading.planner import ShardRange
from topics.reading.row_filters import ReadBeforeHop


@st.composite
def transactions(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Kafka transactions of a log as (end offset, last seq); commit markers take offsets too."""
    offset = seq = 0
    bounds = []
    for rows in draw(st.lists(st.integers(1, 50), min_size=1, max_size=40)):
        offset += rows
        seq += rows
        bounds.append((offset, seq))
        offset += draw(st.integers(1, 3))
    return bounds


def offset_at(offset: int, seq: int, frontier_us: int = 0) -> StreamOffset:
    """An offset of a stream of one shard."""
    return StreamOffset(
        StreamPosition(0, frontier_us, {"-": ShardPosition(offset, seq, None)}),
    )


@given(transactions(), st.integers(1, 200), st.data())
def test_tasks_are_the_range_once(
    bounds: list[tuple[int, int]], rows_max: int, data: st.DataObject
) -> None:
    """The tasks of a split range are contiguous and cover it."""
    first = data.draw(st.integers(0, len(bounds) - 1))
    start = offset_at(0, 0) if first == 0 else offset_at(*bounds[first - 1], frontier_us=70)
    end_offset, end_seq = bounds[-1]
    at = start.position.shards["-"]
    whole = ShardRange("-", at.offset, end_offset, at.seq + 1, end_seq)
    end = StreamOffset(
        offset_at(end_offset, end_seq, 90).position, {"-": choose_splits(whole, bounds, rows_max)}
    )
    document = json.loads(json.dumps(end.to_document()))

    tasks = tasks_between(start, StreamOffset.from_document(document))

    parts = [task.part for task in tasks]
    assert (parts[0].start_offset, parts[0].first_seq) == (at.offset, at.seq + 1)
    assert (parts[-1].end_offset, parts[-1].last_seq) == (end_offset, end_seq)
    for before, after in pairwise(parts):
        assert after.start_offset == before.end_offset
        assert after.first_seq == before.last_seq + 1
        assert (before.end_offset, before.last_seq) in bounds
    assert {task.late_before_us for task in tasks} == {start.position.frontier_us}
    largest = max(b - a for (_, a), (_, b) in pairwise([(0, 0), *bounds]))
    assert all(part.rows <= max(rows_max, largest) for part in parts)
    # No two neighbours would have fitted into one task.
    assert all(a.rows + b.rows > rows_max for a, b in pairwise(parts))


def test_tasks_are_as_large_as_they_may_be() -> None:
    """D10: in numbers: of ten transactions of ten rows, tasks of at most 35 rows take three."""
    whole = ShardRange("-", 0, 100, 1, 100)
    bounds = [(rows, rows) for rows in range(10, 101, 10)]

    assert choose_splits(whole, bounds, 35) == [(30, 30), (60, 60), (90, 90)]
    assert choose_splits(whole, bounds, 50) == [(50, 50)]
    assert choose_splits(whole, bounds, 100) == []
    assert choose_splits(whole, bounds, 99) == [(90, 90)]
    assert choose_splits(whole, bounds, 1) == bounds[:-1]


@pytest.mark.parametrize("place", [(0, 5), (10, 4), (99, 5), (6, 10)])
def test_split_outside_of_the_batch_stops(place: tuple[int, int]) -> None:
    """A split outside the batch, from an edited checkpoint, stops the query."""
    end = StreamOffset(offset_at(20, 10).position, {"-": [place]})

    with pytest.raises(Halt, match="lies outside the batch"):
        tasks_between(offset_at(5, 4), end)


def at(*shards: str, epoch: int = 0, seq: int = 0) -> StreamPosition:
    """A position in some shards."""
    return StreamPosition(epoch, 70, {s: ShardPosition(seq * 2, seq, None) for s in shards})


def test_what_was_seen_before_a_hop_is_part_of_the_offset() -> None:
    """The checkpoint passes it to the tasks of its shard until the stream leaves the shard."""
    token = EventToken(5, "80-", parse_gtid_set("0-1-7", Flavor.MARIADB))
    left = ReadBeforeHop(90)
    seen = ReadBeforeHop(80, 70, is_exact=True, tokens={"80-": token, "40-80": None})
    start = StreamOffset(at("-40", "40-80", "80-"), seen={"-40": left})

    hop = start.hopped_to(at("-40", "40-", epoch=1), {"40-": seen})
    document = json.loads(json.dumps(hop.to_document()))
    read = StreamOffset.from_document(document)
    end = read.moved_to(at("-40", "40-", epoch=1, seq=3), {})

    assert tasks_between(start, hop) == []
    assert read == hop
    assert read.seen == {"-40": left, "40-": seen}
    tasks = pickle.loads(pickle.dumps(tasks_between(read, end)))  # noqa: S301 - as Spark does
    assert [(task.part.shard, task.seen) for task in tasks] == [("-40", left), ("40-", seen)]
    assert end.moved_to(at("-40", "40-80", "80-.2", epoch=2), {}).seen == {"-40": left}


def test_a_first_batch_begins_where_its_end_says() -> None:
    """Run again, the batch has the same tasks, wherever `latest` is by then."""
    seen = {"-": ReadBeforeHop(90)}
    begin = StreamOffset(at("-", seq=3), seen=seen)

    end = begin.moved_to(at("-", seq=5), {}).begun_at(begin)
    read = StreamOffset.from_document(json.loads(json.dumps(end.to_document())))
    later = StreamOffset(at("-", seq=9))

    assert tasks_between(later, read) == tasks_between(begin, begin.moved_to(read.position, {}))
    assert [(t.part.first_seq, t.part.last_seq) for t in tasks_between(later, read)] == [(4, 5)]
    assert read.moved_to(at("-", seq=7), {}).begin is None


def test_offsets_of_before_have_seen_nothing() -> None:
    """Checkpoints without the field are accepted, and offsets without hops omit it."""
    offset = offset_at(5, 4)

    document = offset.to_document()

    assert set(document) == {"position"}
    assert StreamOffset.from_document(document).seen == {}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"position": 1},
        {"position": {"version": 99}},
        {"position": at("-").to_json_dict(), "seen": {"-": {"hop_time_us": 5}}},
    ],
)
def test_foreign_offsets_are_refused(document: dict[str, object]) -> None:
    """An offset of another source is refused."""
    with pytest.raises(Halt, match="an offset of another source"):
        StreamOffset.from_document(document)


def test_offsets_of_other_releases_are_refused() -> None:
    """A field or a version that this release does not know is named, not ignored."""
    document = offset_at(5, 4).to_document()

    with pytest.raises(Halt, match="an offset with later, which this release does not know"):
        StreamOffset.from_document({**document, "later": 1})
    position = {**offset_at(5, 4).position.to_json_dict(), "version": 2}
    with pytest.raises(Halt, match="version 2 instead of 1, written by another release"):
        StreamOffset.from_document({**document, "position": position})
    seen = ReadBeforeHop(hop_time_us=5).to_json_dict()
    with pytest.raises(Halt, match="hop_time_us, is_exact, later, tokens of a hop"):
        StreamOffset.from_document({**document, "seen": {"-": {**seen, "later": 1}}})
