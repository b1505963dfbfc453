from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token.position import ShardPosition, StreamPosition, later_of
from sinks.errors import TargetConflict
from sinks.resume import PlannedBatch
from sinks.table_topics.batch_writer import earliest_of, plan_batch


def at(epoch: int = 0, frontier_us: int = 0, **seqs: int) -> StreamPosition:
    """A position; shards are named by letters."""
    shards = {shard: ShardPosition(seq, seq, None) for shard, seq in seqs.items()}
    return StreamPosition(epoch, frontier_us, shards)


def span(start: StreamPosition, end: StreamPosition, *, is_first: bool = False) -> PlannedBatch:
    return PlannedBatch("query", 0 if is_first else 1, start, end)


def test_a_first_batch_is_written_whole() -> None:
    """Nothing is stored, so nothing is dropped."""
    plan = plan_batch(None, span(at(a=3), at(a=5), is_first=True))

    assert (plan.written, plan.end) == ({}, at(a=5))


def test_a_batch_that_follows_is_written_whole() -> None:
    """The batch begins where the topics end."""
    plan = plan_batch(at(a=3, b=1), span(at(a=3, b=1), at(a=5, b=1)))

    assert (plan.written, plan.end) == ({"a": 3, "b": 1}, at(a=5, b=1))


def test_a_batch_that_ran_before_is_dropped() -> None:
    """All its rows are at or below what is written, and the position does not go back."""
    plan = plan_batch(at(a=9), span(at(a=3), at(a=5)))

    assert (plan.written, plan.end) == ({"a": 9}, at(a=9))


def test_rows_of_a_shard_that_the_stream_has_left_are_dropped() -> None:
    """The topics stand behind a reshard that the batch lies before."""
    plan = plan_batch(at(1, b=9, c=1, d=0), span(at(0, a=3, b=1), at(0, a=5, b=4)))

    assert plan.written["a"] > 5
    assert plan.written["b"] == 9
    assert plan.end == at(1, b=9, c=1, d=0)


@pytest.mark.parametrize(
    ("stored", "start"),
    [(at(a=3, b=3), at(a=3, b=4)), (at(0, a=3), at(1, b=0, c=0)), (at(0, a=3), at(1, a=3))],
)
def test_a_gap_stops(stored: StreamPosition, start: StreamPosition) -> None:
    """Rows between what is written and the batch would never be written."""
    with pytest.raises(TargetConflict, match="would be left out"):
        plan_batch(stored, span(start, start))


def test_another_stream_stops() -> None:
    """Positions of other shards in the same epoch cannot be compared."""
    with pytest.raises(TargetConflict, match="another key range"):
        plan_batch(at(a=3), span(at(b=3), at(b=4)))


def test_a_checkpoint_without_positions_stops() -> None:
    """The query has written batches, and the topic of positions is gone."""
    with pytest.raises(TargetConflict, match="was deleted"):
        plan_batch(None, span(at(a=3), at(a=4)))


Step = tuple[dict[str, int], bool]


@st.composite
def streams(draw: st.DrawFn) -> list[StreamPosition]:
    """The ends of all batches of a stream: cuts that rise, now and then a hop."""
    positions = [at(a=0, b=0)]
    names = iter("cdefghijklmnop")
    for _ in range(draw(st.integers(1, 12))):
        last = positions[-1]
        seqs = {shard: p.seq for shard, p in last.shards.items()}
        frontier_us = last.frontier_us
        epoch = last.epoch
        if draw(st.integers(0, 4)) == 0:  # one shard is replaced by two
            del seqs[draw(st.sampled_from(sorted(seqs)))]
            seqs |= {next(names): 0, next(names): 0} if epoch < 6 else {}
            seqs = seqs or {next(names): 0}
            epoch += 1
        else:
            seqs = {shard: seq + draw(st.integers(0, 3)) for shard, seq in seqs.items()}
            frontier_us += 10
        positions.append(at(epoch, frontier_us, **seqs))
    return positions


def rows_between(start: StreamPosition, end: StreamPosition) -> list[tuple[str, int]]:
    """The rows of a batch, of positions of the same epoch."""
    if start.epoch != end.epoch:
        return []
    return [
        (shard, seq)
        for shard, p in start.shards.items()
        for seq in range(p.seq + 1, end.shards[shard].seq + 1)
    ]


def all_rows(positions: Sequence[StreamPosition]) -> list[tuple[str, int]]:
    return [row for a, b in pairwise(positions) for row in rows_between(a, b)]


@given(streams(), st.data())
def test_each_row_is_written_once_whatever_runs_again(
    positions: list[StreamPosition], data: st.DataObject
) -> None:
    """A task goes back to any earlier batch end, with other batch ends from there, at any time."""
    written: list[tuple[str, int]] = []
    stored: StreamPosition | None = None
    i = 0
    goes_back = data.draw(st.integers(0, 6))
    while i < len(positions) - 1:
        j = i + 1
        while j < len(positions) - 1 and positions[j].epoch == positions[i].epoch:
            if positions[j + 1].epoch != positions[i].epoch or not data.draw(st.booleans()):
                break
            j += 1
        plan = plan_batch(stored, span(positions[i], positions[j], is_first=stored is None))
        written += [
            (shard, seq)
            for shard, seq in rows_between(positions[i], positions[j])
            if seq > plan.written.get(shard, -1)
        ]
        stored = plan.end
        i = j
        if goes_back and data.draw(st.booleans()):
            goes_back -= 1
            i = data.draw(st.integers(0, i))

    assert sorted(written) == sorted(all_rows(positions))
    assert stored == positions[-1]
    for shard in {shard for shard, _ in written}:
        seqs = [seq for s, seq in written if s == shard]
        assert seqs == sorted(seqs)


@given(streams(), st.data())
def test_a_batch_beyond_what_is_written_stops(
    positions: list[StreamPosition], data: st.DataObject
) -> None:
    """The topics stand before the batch, with rows or a hop in between: never a silent gap."""
    i = data.draw(st.integers(0, len(positions) - 2))
    j = data.draw(st.integers(i + 1, len(positions) - 1))
    between = positions[i : j + 1]

    if all_rows(between) or between[0].epoch != between[-1].epoch:
        with pytest.raises(TargetConflict):
            plan_batch(positions[i], span(positions[j], positions[j]))


@given(streams(), st.data())
def test_tasks_at_different_positions_start_from_the_earliest(
    positions: list[StreamPosition], data: st.DataObject
) -> None:
    """A crash leaves tasks one batch apart; the earliest position leaves out rows of none."""
    i = data.draw(st.integers(0, len(positions) - 1))
    j = data.draw(st.integers(0, len(positions) - 1))

    assert earliest_of(positions[i], positions[j]) == positions[min(i, j)]
    assert later_of(positions[i], positions[j]) == positions[max(i, j)]
