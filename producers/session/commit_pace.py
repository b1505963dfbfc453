"""When rows are committed: by the readers' grid at the live edge, in large batches behind it.

Pure: the session passes times, rows and sizes.
"""

from dataclasses import dataclass
from typing import Final

from topics.progress.record import GRID_US

# Readers' frontier moves by cells of the grid, so rows are committed when those of a new cell have
# come. An earlier commit would show nobody a row sooner, and each costs the broker requests and
# markers. Cells that pass faster than commits share one; rows that no new cell follows wait for
# the longer gap.
CELL_GAP_S: Final = GRID_US / 2_000_000
COMMIT_GAP_S: Final = 2 * GRID_US / 1_000_000
# A transaction is stamped before the server has stored and sent it.
ARRIVAL_US: Final = 1_000
# Rows that trickle in without a pause are committed after this time at the latest.
COMMIT_AGE_S_MAX: Final = 0.25
# A log that is further behind drains a backlog, in fewer and larger commits: each one pauses the
# stream for some 10 ms, and nobody waits for rows this old to the millisecond.
BACKLOG_LAG_MS: Final = 1_000
BACKLOG_FACTOR: Final = 10
# Large rows are committed before their number is reached: readers hold the rows of a transaction,
# and the flush waits for as many bytes.
COMMIT_BYTES_MAX: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CommitPace:
    """`commit_rows` and `commit_ms` are the settings of these names."""

    commit_rows: int
    commit_ms: int

    def rows_wanted(self, lag_ms: int) -> int:
        """Rows per commit while changes keep coming to a log that is `lag_ms` behind."""
        return self.commit_rows * (BACKLOG_FACTOR if is_backlog(lag_ms) else 1)

    def is_due(self, *, rows: int, size: int, age_s: float, lag_ms: int) -> bool:
        """Whether `rows` of `size` bytes in all are enough, or old enough, for a commit."""
        if rows == 0:
            return False
        is_many = rows >= self.rows_wanted(lag_ms) and age_s * 1000 >= self.commit_ms
        return is_many or age_s >= COMMIT_AGE_S_MAX or size >= COMMIT_BYTES_MAX


def is_backlog(lag_ms: int) -> bool:
    """Whether a log that is `lag_ms` behind drains a backlog."""
    return lag_ms > BACKLOG_LAG_MS


def dry_gap_s(head_us: int, committed_us: int, lag_ms: int) -> float:
    """How long after the last commit, with head `committed_us`, rows up to `head_us` are due.

    For a stream with nothing more to read at the moment, on a log that is `lag_ms` behind.
    """
    moves_frontier = head_us // GRID_US > committed_us // GRID_US
    return CELL_GAP_S if moves_frontier and not is_backlog(lag_ms) else COMMIT_GAP_S


def rest_s(server_us: int) -> float:
    """How long until a row of the grid's next cell can have arrived, by the server's clock."""
    return (GRID_US - server_us % GRID_US + ARRIVAL_US) / 1_000_000
