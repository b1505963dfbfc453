from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import ShardPosition, StreamPosition
from tests.topics.reading.shard_histories import (
    START_US,
    History,
    HistoryTopics,
    Reading,
    histories,
    result_of,
    whole_range,
)
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.errors import PositionTooOld, WrongPosition
from topics.kafka.client import Deadline
from topics.progress.record import (
    CLOCK_AHEAD_US_MAX,
    GRID_US,
    Progress,
    begins_us,
    cell_start_us,
)
from topics.reading.planner import Planner
from topics.start.positions import (
    _Places,
    check_not_ahead,
    earliest_point,
    latest_point,
    point_at_time,
    start_frontier_us,
)


def point_at(
    progress: Iterable[Progress], time_us: int, log_start: int, *, may_begin_later: bool = False
) -> ShardPosition | None:
    """The point of a time in a log with this progress."""
    return result_of(
        lambda records: point_at_time(
            "-", records, time_us, log_start, may_begin_later=may_begin_later
        ),
        progress,
    )


@given(histories(shards_max=1), st.integers(0, 300))
def test_a_time_splits_a_log_exactly(made: list[History], cells: int) -> None:
    """Everything below the point of a time is older than it, everything from it on is not."""
    (history,) = made
    time_us = cell_start_us(START_US) + cells * GRID_US
    first_us = begins_us(history.progress[0])
    assert first_us is not None
    if time_us < first_us:
        with pytest.raises(PositionTooOld, match=f"shard -: its log begins at {first_us} us"):
            point_at(history.progress, time_us, 0)

    point = point_at(history.progress, time_us, 0, may_begin_later=time_us < first_us)

    if point is None:
        assert history.head_us < time_us + GRID_US
        return
    assert all(row.timestamp_us < time_us for row in history.rows[: point.seq])
    assert all(row.timestamp_us >= time_us for row in history.rows[point.seq :])
    assert all(row.offset < point.offset for row in history.rows[: point.seq])
    assert all(row.offset >= point.offset for row in history.rows[point.seq :])


@given(histories(shards_max=1), st.data())
def test_earliest_after_retention_can_be_read_to_the_end(
    made: list[History], data: st.DataObject
) -> None:
    """Whatever log and progress have lost at their start, the rest is read in order."""
    (history,) = made
    log_start = data.draw(st.integers(0, history.end_offset))
    # Progress is kept for longer than the log.
    lost = sum(p.end_offset < log_start for p in history.progress)
    kept = history.progress[data.draw(st.integers(0, lost)) :]
    start = result_of(partial(earliest_point, log_start=log_start), kept)
    position = StreamPosition(0, 0, {history.shard: start})
    left = History(history.shard, history.rows, kept)

    reading = Reading([left], Planner(position, whole_range(made)), data.draw(st.randoms()))
    rows = [row for _, part in reading.batches() for row in part]

    assert start.offset >= log_start or not rows
    assert rows == history.rows[start.seq :]
    if log_start == 0 and kept == history.progress:
        assert start == ShardPosition(0, 0, None)


@given(histories(), st.integers(0, 2_000), st.data())
def test_a_start_that_a_log_has_not_reached(
    made: list[History], cells: int, data: st.DataObject
) -> None:
    """Logs started at their ends may go on with older rows, and none is before the frontier."""
    time_us = cell_start_us(START_US) + cells * GRID_US
    known = [data.draw(st.integers(0, len(history.progress))) for history in made]
    places = _Places(time_us, "shop", MemorySchemaIds(), Deadline(0))
    places.at_end_if_behind = places.may_begin_later = True
    for history, count in zip(made, known, strict=True):
        topics = HistoryTopics(replace(history, progress=history.progress[:count]))
        lookup = places._at_time(topics, history.shard, None, is_entered=False)
        point = topics.result(lookup)
        rows = history.rows[point.seq :]
        assert all(row.timestamp_us >= places.frontier_us for row in rows)

    assert places.frontier_us <= time_us


def test_a_position_of_the_future() -> None:
    """What comes behind it would be older than what it says has come."""
    position = StreamPosition(0, START_US + CLOCK_AHEAD_US_MAX, {"-": ShardPosition(0, 0, None)})
    check_not_ahead(position, START_US)

    with pytest.raises(WrongPosition, match="s ahead of this host's clock"):
        check_not_ahead(position, START_US - GRID_US)


def test_a_time_that_retention_has_passed_is_too_old() -> None:
    """A time before the kept progress or log is refused, a later one is not."""
    made = History("-")
    for _ in range(4):
        made.commit([(10 * GRID_US, 1)])

    with pytest.raises(PositionTooOld, match="shard -: its log no longer reaches back"):
        point_at(made.progress[2:], START_US + 10 * GRID_US, 0)
    with pytest.raises(PositionTooOld):
        point_at(made.progress, START_US + 10 * GRID_US, made.rows[1].offset)
    found = point_at(made.progress[1:], START_US + 30 * GRID_US, made.rows[1].offset)
    assert found == ShardPosition(made.rows[2].offset, 2, None)


def test_a_time_before_a_kept_heartbeat_is_too_old() -> None:
    """D1: kept progress that begins with a heartbeat does not prove that older records are gone."""
    made = History("-")
    made.commit([(10 * GRID_US, 1)])
    made.heartbeat(10 * GRID_US)
    kept = made.progress[1:]

    with pytest.raises(PositionTooOld, match="shard -: its log no longer reaches back"):
        point_at(kept, START_US + 5 * GRID_US, 0)
    with pytest.raises(PositionTooOld):
        point_at(kept, cell_start_us(made.head_us), 0)
    assert point_at(made.progress, cell_start_us(made.head_us), 0) == ShardPosition(1, 1, None)
    long_after_us = cell_start_us(made.head_us) + CLOCK_AHEAD_US_MAX
    made.heartbeat(long_after_us - made.head_us)
    assert point_at(kept + made.progress[2:], long_after_us, 0) == ShardPosition(1, 1, None)


def test_a_time_at_the_first_kept_tick_is_kept() -> None:
    """D1: records below a tick are older than the tick, so a start exactly there skips nothing."""
    made = History("-")
    for _ in range(3):
        made.commit([(10 * GRID_US, 1)])
    tick = made.progress[1].ticks[0]

    found = point_at(made.progress[1:], tick.timestamp_us, tick.offset)

    assert found == ShardPosition(made.rows[1].offset, 1, None)
    with pytest.raises(PositionTooOld):
        point_at(made.progress[1:], tick.timestamp_us - GRID_US, tick.offset)


def test_a_break_in_progress_is_passed_by_earliest() -> None:
    """Earliest skips the record that compaction leaves before the complete part."""
    made = History("-")
    for _ in range(5):
        made.commit([(GRID_US, 2)])

    kept = [made.progress[0], *made.progress[3:]]
    start = result_of(partial(earliest_point, log_start=0), kept)

    assert start == ShardPosition(made.rows[6].offset, 6, None)


def test_latest_is_behind_the_last_record() -> None:
    """Latest is the end of each log, with the least head as frontier; 0 where none is known."""
    made = History("-")
    made.commit([(12_345, 2)])

    assert latest_point(made.progress[-1], 0) == ShardPosition(2, 2, None)
    assert latest_point(None, 4) == ShardPosition(4, 0, None)
    assert start_frontier_us([START_US + 12_345, START_US + 99_999]) == START_US + 10_000
    assert start_frontier_us([START_US, None]) == 0
