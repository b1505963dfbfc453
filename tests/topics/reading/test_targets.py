"""What a reader knows of a target before it hops there."""

import json

import pytest

from tests.topics.reading.shard_histories import START_US, History
from topics.errors import ProgressBroken
from topics.progress.record import (
    CLOCK_AHEAD_US_MAX,
    GRID_US,
    MARK_KINDS,
    Cut,
    JournalKind,
    Mark,
    MarkKind,
)
from topics.reading.hops import CLOCKS_APART_US_MAX, Target

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


@pytest.mark.parametrize(("later_us", "has_lost"), [(0, False), (GRID_US, True)])
def test_a_log_that_begins_long_after_the_hop_was_started_over(
    later_us: int, has_lost: bool
) -> None:
    """A log may begin long after the first END of a slow merge, but it begins before the hop."""
    hop_time_us = START_US + 10 * CLOCKS_APART_US_MAX
    history = History("-80", now_us=hop_time_us, head_us=hop_time_us)
    history.heartbeat(CLOCKS_APART_US_MAX + later_us)

    assert observed(history).has_lost(hop_time_us) is has_lost


def test_an_end_in_the_log_of_a_target_is_refused() -> None:
    """A mark that can be no target's is neither a BEGIN nor taken for a CANCEL."""
    history = long_history()
    history.commit(
        [(GRID_US, 1)], mark=lambda offset: Mark(MarkKind.END, offset, "r1", *SPLIT, None)
    )

    with pytest.raises(ProgressBroken, match="shard -80: END of reshard r1 at offset"):
        observed(history)


@pytest.mark.parametrize("kind", MarkKind)
def test_every_mark_has_a_row_of_the_journal(kind: MarkKind) -> None:
    """The kind that a mark's record names stands for the mark alone."""
    row = json.loads(Mark(kind, 0, "r1", *SPLIT, None).journal_text())

    assert MARK_KINDS[JournalKind(row["kind"])] is kind
    assert len(MARK_KINDS) == len(JournalKind)
