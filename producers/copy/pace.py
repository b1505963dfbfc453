"""How many rows the next chunk may have. Pure."""

from typing import Final

from producers.copy.chunk import CHUNK_BYTES_MAX
from producers.options import CopySettings

ROWS_FIRST: Final = 1_000
ROWS_MIN: Final = 10
# One step up or down at most by this: one slow or lucky chunk says little.
STEP: Final = 4
# Aim below the bound, rows differ in size.
BYTES_AIMED: Final = CHUNK_BYTES_MAX // 2


def next_rows(
    rows_max: int, rows: int, bytes_read: int, elapsed_s: float, limits: CopySettings
) -> int:
    """The next chunk's number of rows after one of `rows_max` that gave `rows`."""
    if rows == 0:
        return rows_max
    by_time = rows * limits.chunk_ms / 1000 / max(elapsed_s, 0.001)
    by_bytes = rows * BYTES_AIMED / max(bytes_read, 1)
    wanted = min(by_time, by_bytes, rows_max * STEP)
    return int(min(max(wanted, rows_max / STEP, ROWS_MIN), limits.chunk_rows_max))
