"""When rows are committed: with the readers' grid at the live edge, in large batches behind it.

Pure: times, rows and sizes come from the session.
"""

from dataclasses import dataclass
from typing import Final

from topics.progress.record import GRID_US

# The frontier of readers moves in cells of the grid: rows are committed once those of a new cell
# have come. A commit before that brings nobody a row sooner, and each one costs the broker a round
# of requests and markers. Cells that pass faster than commits can follow share one; rows behind
# which no new cell begins wait for the longer of these.
CELL_GAP_S: Final = GRID_US / 2_000_000
COMMIT_GAP_S: Final = 2 * GRID_US / 1_000_000
# A transaction has its time before the server has stored and sent it.
ARRIVAL_US: Final = 1_000
# Rows that trickle in without a pause are committed at the latest after this time.
COMMIT_AGE_S_MAX: Final = 0.25
# A log that is behind by more than this is draining a backlog: fewer and larger commits then, for
# each one stands still for some 10 ms, and nobody waits for rows this old to the millisecond.
BACKLOG_LAG_MS: Final = 1_000
BACKLOG_FACTOR: Final = 10
# Rows of many bytes are committed before their number is reached: readers hold a transaction's
# rows, and so much waits for the flush.
COMMIT_BYTES_MAX: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CommitPace:
    """`commit_rows` and `commit_ms` are the settings of these names."""

    commit_rows: int
    commit_ms: int

    def rows_wanted(self, lag_ms: int) -> int:
        """How many rows a commit gathers while changes keep coming to a log so far behind."""
        return self.commit_rows * (BACKLOG_FACTOR if is_backlog(lag_ms) else 1)

    def is_due(self, *, rows: int, size: int, age_s: float, lag_ms: int) -> bool:
        """Whether so many rows, of `size` bytes, are enough or old enough for a commit."""
        if rows == 0:
            return False
        is_many = rows >= self.rows_wanted(lag_ms) and age_s * 1000 >= self.commit_ms
        return is_many or age_s >= COMMIT_AGE_S_MAX or size >= COMMIT_BYTES_MAX


def is_backlog(lag_ms: int) -> bool:
    """Whether a log so far behind is draining a backlog."""
    return lag_ms > BACKLOG_LAG_MS


def dry_gap_s(head_us: int, committed_us: int, lag_ms: int) -> float:
    """How long after the last commit, with head `committed_us`, rows up to `head_us` may follow.

    That is where nothing more waits, for a moment at least, on a log so far behind.
    """
    moves_frontier = head_us // GRID_US > committed_us // GRID_US
    return CELL_GAP_S if moves_frontier and not is_backlog(lag_ms) else COMMIT_GAP_S


def rest_s(server_us: int) -> float:
    """How long until the first row of the grid's next cell can have come, by the server's clock."""
    return (GRID_US - server_us % GRID_US + ARRIVAL_US) / 1_000_000
