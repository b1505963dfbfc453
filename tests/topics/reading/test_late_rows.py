"""Batches of rows that come after a shard was left out, which are bounded too."""

import pytest

from event_token import KeyRange, ShardPosition, StreamPosition
from tests.topics.reading.shard_histories import START_US, History
from topics.progress.record import GRID_US
from topics.reading.planner import Batch, MaxHold, Planner

FRONTIER_US = START_US + 100 * GRID_US
SHARDS = ("-40", "40-80", "80-")


def planner_behind(rows: dict[str, int], after: int = 0) -> Planner:
    """A planner with `rows` rows per shard before the frontier, one per cell; then `after`."""
    start = {shard: ShardPosition(0, 0, None) for shard in SHARDS}
    planner = Planner(StreamPosition(0, FRONTIER_US, start), KeyRange.parse("-"), MaxHold(1_000))
    for shard in SHARDS:
        history = History(shard)
        for _ in range(rows.get(shard, 0)):
            history.commit([(GRID_US, 1)])
        history.heartbeat(FRONTIER_US - history.head_us)
        for _ in range(after):
            history.commit([(GRID_US, 1)])
        history.heartbeat(GRID_US)
        for progress in history.progress:
            planner.observe(shard, progress, 0)
    return planner


def batch_of(planner: Planner, max_rows: int) -> Batch:
    """The next batch."""
    batch = planner.next_batch(0, max_rows)
    assert isinstance(batch, Batch)
    return batch


@pytest.mark.parametrize("max_rows", [1, 2, 4, 7, 12])
def test_late_rows_of_all_shards_are_bounded_together(max_rows: int) -> None:
    """D5: however many shards come late, a batch has at most `max_rows` rows."""
    planner = planner_behind(dict.fromkeys(SHARDS, 9), after=3)
    sizes = []
    for _ in range(40):
        batch = planner.next_batch(0, max_rows)
        if not isinstance(batch, Batch):
            break
        sizes.append(batch.rows)
        planner.advance(batch)

    # The last cells hold one row of each shard, and a cell is never split.
    assert max(sizes) <= max(max_rows, len(SHARDS))
    assert max(sizes[: 27 // max_rows]) <= max_rows
    assert sum(sizes) == 3 * 12


def test_late_rows_take_half_of_a_batch() -> None:
    """D5: of ten rows at most five are late, taken shard by shard."""
    planner = planner_behind(dict.fromkeys(SHARDS, 9))

    batch = batch_of(planner, 10)

    late = {shard: part.rows for shard, part in batch.ranges.items()}
    assert late == {"-40": 5}
    assert batch.late_shards == {"-40"}
    planner.advance(batch)
    late = {shard: part.rows for shard, part in batch_of(planner, 10).ranges.items()}
    assert late == {"-40": 4, "40-80": 1}


def test_late_rows_that_just_fit_are_all_taken() -> None:
    """D5: a shard with exactly as many late rows as a batch takes is level after it."""
    planner = planner_behind({"-40": 5}, after=1)

    batch = batch_of(planner, 10)

    assert batch.ranges["-40"].rows == 6
    assert batch.frontier_us > FRONTIER_US
