"""When rows are committed, checked without a server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.session.committer import (
    ARRIVAL_US,
    BACKLOG_FACTOR,
    BACKLOG_LAG_MS,
    CELL_GAP_S,
    COMMIT_AGE_S_MAX,
    COMMIT_BYTES_MAX,
    COMMIT_GAP_S,
    CommitPace,
    rest_s,
)
from topics.progress.record import GRID_US

TIMES_US = st.integers(min_value=0, max_value=2**53)
PACE = CommitPace(commit_rows=5_000, commit_ms=20)


@given(TIMES_US)
def test_a_rest_ends_just_inside_the_next_cell(server_us: int) -> None:
    """Whenever it begins, a rest ends when the first row of the grid's next cell can be there."""
    woken_us = server_us + round(rest_s(server_us) * 1_000_000)

    assert woken_us // GRID_US == server_us // GRID_US + 1
    assert woken_us % GRID_US == ARRIVAL_US


@given(TIMES_US, TIMES_US)
def test_rows_that_move_the_frontier_wait_less(head_us: int, committed_us: int) -> None:
    """Rows of a later cell than the committed head's may follow sooner, unless in a backlog."""
    moves = head_us // GRID_US > committed_us // GRID_US

    gap_s = PACE.dry_gap_s(head_us, committed_us, BACKLOG_LAG_MS)

    assert gap_s == (CELL_GAP_S if moves else COMMIT_GAP_S)
    assert PACE.dry_gap_s(head_us, committed_us, BACKLOG_LAG_MS + 1) == COMMIT_GAP_S


def test_a_batch_is_due_by_number_by_bytes_or_by_age() -> None:
    """Each limit alone makes a batch due; many rows that are young wait for `commit_ms`."""

    def is_due(rows: int = 1, size: int = 1, age_s: float = 0.0, lag_ms: int = 0) -> bool:
        return PACE.is_due(rows=rows, size=size, age_s=age_s, lag_ms=lag_ms)

    assert not is_due()
    assert is_due(age_s=COMMIT_AGE_S_MAX)
    assert is_due(size=COMMIT_BYTES_MAX)
    assert not is_due(rows=5_000, age_s=0.019)
    assert is_due(rows=5_000, age_s=0.02)
    assert not is_due(rows=0, size=COMMIT_BYTES_MAX, age_s=COMMIT_AGE_S_MAX)


def test_a_longer_interval_spaces_the_commits_of_rows_that_trickle_in() -> None:
    """With `commit_ms` above the gaps, no commit follows another sooner, new cells or not."""
    slow = CommitPace(commit_rows=5_000, commit_ms=400)

    assert slow.dry_gap_s(10 * GRID_US, 0, 0) == 0.4
    assert not slow.is_due(rows=1, size=1, age_s=0.39, lag_ms=0)
    assert slow.is_due(rows=1, size=1, age_s=0.4, lag_ms=0)


def test_a_backlog_is_drained_in_larger_commits() -> None:
    """Once the log is more than a second behind, a commit gathers ten times the rows."""
    late_ms = BACKLOG_LAG_MS + 1

    assert PACE.rows_wanted(BACKLOG_LAG_MS) == 5_000
    assert PACE.rows_wanted(late_ms) == 5_000 * BACKLOG_FACTOR
    assert not PACE.is_due(rows=5_000, size=1, age_s=0.1, lag_ms=late_ms)
    assert PACE.is_due(rows=50_000, size=1, age_s=0.1, lag_ms=late_ms)


def test_pauses_and_limits_are_what_readers_were_promised() -> None:
    """D10: numbers instead of the constants: 5 ms to a new cell, 20 ms without, 10 ms of rest."""
    cell_us = 10_000

    assert PACE.dry_gap_s(cell_us, cell_us - 1, 0) == pytest.approx(0.005)
    assert PACE.dry_gap_s(cell_us - 1, 0, 0) == pytest.approx(0.020)
    assert PACE.dry_gap_s(cell_us, cell_us - 1, 1_001) == pytest.approx(0.020)
    assert rest_s(0) == pytest.approx(0.011)
    assert rest_s(cell_us - 1) == pytest.approx(0.001_001)


def test_batches_have_limits_in_numbers() -> None:
    """D10: a quarter of a second, 32 MB, and ten times the rows for a second's backlog."""

    def is_due(rows: int, size: int, age_s: float, lag_ms: int) -> bool:
        return PACE.is_due(rows=rows, size=size, age_s=age_s, lag_ms=lag_ms)

    assert is_due(1, 1, 0.25, 0)
    assert not is_due(1, 1, 0.249, 0)
    assert is_due(1, 32 * 1024 * 1024, 0.0, 0)
    assert not is_due(1, 32 * 1024 * 1024 - 1, 0.0, 0)
    assert (PACE.rows_wanted(1_000), PACE.rows_wanted(1_001)) == (5_000, 50_000)
