"""What a reader knows of a target before it hops there."""

import pytest

from tests.topics.reading.shard_histories import START_US, History
from topics.progress.cells import Cut
from topics.progress.record import CLOCK_AHEAD_US_MAX, GRID_US, Mark, MarkKind
from topics.reading.hops import Target

SPLIT = (("-",), ("-80", "80-"))


def long_history() -> History:
    """A target whose progress no longer has its first record; offsets are ahead of seq."""
    history = History("-80")
    for _ in range(10):
        history.commit([(GRID_US, 1)])
    del history.progress[0]
    return history


def observed(history: History, from_us: int = START_US) -> Target:
    """The target after all progress."""
    target = Target(history.shard, "r1", from_us)
    for progress in history.progress:
        target.observe(progress, 0)
    return target


def test_a_target_is_read_from_its_begin_to_its_end() -> None:
    """Where rows end is taken from progress, also before as many rows came as offsets passed."""
    history = long_history()
    begin = Cut(history.end_offset + 1, 10)
    history.commit(
        [(GRID_US, 1)],
        mark=lambda offset: Mark(MarkKind.BEGIN, offset, "r1", *SPLIT, history.now_us),
    )
    history.commit([(GRID_US, 1)])

    known = observed(history).known

    assert known is not None
    assert known.at == begin
    assert known.cut(known.head_cell_us + GRID_US) == Cut(history.end_offset, 12)


@pytest.mark.parametrize(("later_us", "has_lost"), [(0, False), (-1, True)])
def test_progress_that_begins_long_before_a_begin_is_complete(
    later_us: int, has_lost: bool
) -> None:
    """A BEGIN that may be gone was at most as far ahead as clocks may be."""
    history = long_history()
    from_us = history.progress[0].head_us + CLOCK_AHEAD_US_MAX + later_us

    target = observed(history, from_us)

    assert target.has_lost(START_US) is has_lost


@pytest.mark.parametrize(("later_us", "has_lost"), [(0, True), (GRID_US, False)])
def test_a_begin_is_lost_once_the_head_is_at_the_hop_time(later_us: int, has_lost: bool) -> None:
    """A target without BEGIN whose head has not reached the hop time may still get it."""
    target = observed(long_history())
    assert target.known is not None

    assert target.has_lost(target.known.head_cell_us + later_us) is has_lost
