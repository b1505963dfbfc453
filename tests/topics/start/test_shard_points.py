import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import ShardPosition, StreamPosition
from tests.topics.reading.shard_histories import (
    START_US,
    History,
    Reading,
    histories,
    whole_range,
)
from topics.errors import PositionTooOld
from topics.progress.cells import begins_us
from topics.progress.record import CLOCK_AHEAD_US_MAX, GRID_US, cell_start_us
from topics.reading.planner import Planner
from topics.start.shard_points import earliest_point, latest_point, point_at_time, start_frontier_us


@given(histories(shards_max=1), st.integers(0, 300))
def test_a_time_splits_a_log_exactly(made: list[History], cells: int) -> None:
    """Everything below the point of a time is older than it, everything from it on is not."""
    (history,) = made
    time_us = cell_start_us(START_US) + cells * GRID_US
    first_us = begins_us(history.progress[0])
    assert first_us is not None
    if time_us < first_us:
        with pytest.raises(PositionTooOld, match=f"shard -: its log begins at {first_us} us"):
            point_at_time("-", history.progress, time_us, 0)

    point = point_at_time("-", history.progress, time_us, 0, may_begin_later=time_us < first_us)

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
    start = earliest_point(kept, log_start)
    position = StreamPosition(0, 0, {history.shard: start})
    left = History(history.shard, history.rows, kept)

    reading = Reading([left], Planner(position, whole_range(made)), data.draw(st.randoms()))
    rows = [row for _, part in reading.batches() for row in part]

    assert start.offset >= log_start or not rows
    assert rows == history.rows[start.seq :]
    if log_start == 0 and kept == history.progress:
        assert start == ShardPosition(0, 0, None)


def test_a_time_that_retention_has_passed_is_too_old() -> None:
    """A time before the kept progress or log is refused, a later one is not."""
    made = History("-")
    for _ in range(4):
        made.commit([(10 * GRID_US, 1)])

    with pytest.raises(PositionTooOld, match="shard -: its log no longer reaches back"):
        point_at_time("-", made.progress[2:], START_US + 10 * GRID_US, 0)
    with pytest.raises(PositionTooOld):
        point_at_time("-", made.progress, START_US + 10 * GRID_US, made.rows[1].offset)
    found = point_at_time("-", made.progress[1:], START_US + 30 * GRID_US, made.rows[1].offset)
    assert found == ShardPosition(made.rows[2].offset, 2, None)


def test_a_time_before_a_kept_heartbeat_is_too_old() -> None:
    """D1: kept progress that begins with a heartbeat does not prove that older records are gone."""
    made = History("-")
    made.commit([(10 * GRID_US, 1)])
    made.heartbeat(10 * GRID_US)
    kept = made.progress[1:]

    with pytest.raises(PositionTooOld, match="shard -: its log no longer reaches back"):
        point_at_time("-", kept, START_US + 5 * GRID_US, 0)
    with pytest.raises(PositionTooOld):
        point_at_time("-", kept, cell_start_us(made.head_us), 0)
    assert point_at_time("-", made.progress, cell_start_us(made.head_us), 0) == ShardPosition(
        1, 1, None
    )
    long_after_us = cell_start_us(made.head_us) + CLOCK_AHEAD_US_MAX
    made.heartbeat(long_after_us - made.head_us)
    assert point_at_time("-", kept + made.progress[2:], long_after_us, 0) == ShardPosition(
        1, 1, None
    )


def test_a_time_at_the_first_kept_tick_is_kept() -> None:
    """D1: records below a tick are older than the tick, so a start exactly there skips nothing."""
    made = History("-")
    for _ in range(3):
        made.commit([(10 * GRID_US, 1)])
    tick = made.progress[1].ticks[0]

    found = point_at_time("-", made.progress[1:], tick.timestamp_us, tick.offset)

    assert found == ShardPosition(made.rows[1].offset, 1, None)
    with pytest.raises(PositionTooOld):
        point_at_time("-", made.progress[1:], tick.timestamp_us - GRID_US, tick.offset)


def test_a_break_in_progress_is_passed_by_earliest() -> None:
    """Earliest skips the record that compaction leaves before the complete part."""
    made = History("-")
    for _ in range(5):
        made.commit([(GRID_US, 2)])

    start = earliest_point([made.progress[0], *made.progress[3:]], 0)

    assert start == ShardPosition(made.rows[6].offset, 6, None)


def test_latest_is_behind_the_last_record() -> None:
    """Latest is the end of each log, with the least head as frontier; 0 where none is known."""
    made = History("-")
    made.commit([(12_345, 2)])

    assert latest_point(made.progress[-1], 0) == ShardPosition(2, 2, None)
    assert latest_point(None, 4) == ShardPosition(4, 0, None)
    assert start_frontier_us([START_US + 12_345, START_US + 99_999]) == START_US + 10_000
    assert start_frontier_us([START_US, None]) == 0
