"""Plans of single shards, over generated logs."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import KeyRange, ShardPosition, StreamPosition
from tests.topics.reading.reshard_histories import Keyspace
from tests.topics.reading.shard_histories import (
    START_US,
    History,
    UnmergedReading,
    beginning,
    histories,
    whole_range,
)
from topics.errors import PositionTooOld
from topics.progress.record import GRID_US, cell_start_us
from topics.reading.planner import UnmergedPlanner

randoms = st.randoms(use_true_random=False)
WHOLE = KeyRange.parse("-")


@given(histories(), randoms, st.data())
def test_a_silent_shard_delays_no_other(
    made: list[History], random: Random, data: st.DataObject
) -> None:
    """Whatever is seen of a shard is read, however little is seen of the others."""
    kept = {h.shard: data.draw(st.integers(0, len(h.progress))) for h in made}
    seen = [History(h.shard, h.rows, h.progress[: kept[h.shard]]) for h in made]
    planner = UnmergedPlanner(beginning(made), whole_range(made), ticks_max=4)

    rows = [row for _, part in UnmergedReading(seen, planner, random).batches(5) for row in part]

    for history in seen:
        last_seq = history.progress[-1].last_seq if history.progress else 0
        assert [r for r in rows if r.shard == history.shard] == history.rows[:last_seq]


@given(histories(), randoms, st.one_of(st.none(), st.integers(1, 12)))
def test_the_frontier_is_what_all_shards_were_read_to(
    made: list[History], random: Random, max_rows: int | None
) -> None:
    """The frontier of a position never passes a row that comes after it, and reaches all heads."""
    planner = UnmergedPlanner(beginning(made), whole_range(made), ticks_max=4)
    reading = UnmergedReading(made, planner, random)
    frontier_us = 0

    for batch, rows in reading.batches(max_rows):
        assert all(row.timestamp_us >= frontier_us for row in rows)
        assert batch.frontier_us == cell_start_us(batch.frontier_us)
        frontier_us = batch.frontier_us

    assert planner.position.frontier_us == min(cell_start_us(h.head_us) for h in made)


def test_a_hop_does_not_wait_for_other_shards() -> None:
    """A split is hopped over at once, though a third shard has shown nothing since the start."""
    keyspace = Keyspace([8])
    silent, source = keyspace.start
    keyspace.histories[source].commit([(0, 2), (30_000, 1)])
    reshard = keyspace.begin_reshard([source], [12])
    keyspace.end(reshard, source, 0, 10_000)
    for target in reshard.targets:
        keyspace.begin(reshard, target, 0, 0)
        keyspace.histories[target].commit([(10_000, 1)])
    planner = UnmergedPlanner(keyspace.beginning(WHOLE), WHOLE)
    reading = UnmergedReading(list(keyspace.histories.values()), planner, Random(1))

    rows = [row for _, part in reading.batches() for row in part]

    assert sorted(rows) == keyspace.expected(WHOLE)
    assert sorted(planner.position.shards) == sorted([silent, *reshard.targets])
    assert planner.position.frontier_us == 0
    assert planner.wait(0).shards == (silent,)


def test_what_compaction_removed_stops_the_reader() -> None:
    """A position that progress does not reach back to is too old, as for a merged stream."""
    history = History("-")
    for cell in range(3):
        history.commit([(cell * GRID_US, 2)])
    start = StreamPosition(0, START_US, {"-": ShardPosition(0, 0, None)})
    planner = UnmergedPlanner(start, WHOLE)

    with pytest.raises(PositionTooOld, match="the reader is before seq 1"):
        planner.observe("-", history.progress[1], 0)
