"""Chooses the number of rows of the next chunk, and averages a copy's rate. Pure."""

from typing import Final

from producers.copy.chunk import CHUNK_BYTES_MAX
from producers.options import CopySettings

ROWS_FIRST: Final = 1_000
ROWS_MIN: Final = 10
# Largest factor per step, up or down: a single slow or fast chunk says little.
STEP: Final = 4
# Aim below the limit, for rows differ in size.
BYTES_AIMED: Final = CHUNK_BYTES_MAX // 2
_US: Final = 1_000_000


def next_rows(
    rows_max: int, rows: int, bytes_read: int, elapsed_s: float, limits: CopySettings
) -> int:
    """The next chunk's limit of rows, after one with `rows_max` that returned `rows`."""
    if rows == 0:
        return rows_max
    by_time = rows * limits.chunk_ms / 1000 / max(elapsed_s, 0.001)
    by_bytes = rows * BYTES_AIMED / max(bytes_read, 1)
    wanted = min(by_time, by_bytes, rows_max * STEP)
    return int(min(max(wanted, rows_max / STEP, ROWS_MIN), limits.chunk_rows_max))


def next_rate(rows_per_s: float, rows: int, elapsed_us: int) -> float:
    """The rate after `rows` more in `elapsed_us`, averaged over about a second for a person."""
    elapsed_us = max(1, elapsed_us)
    weight = min(1.0, elapsed_us / _US)
    return round(rows_per_s * (1 - weight) + rows * _US / elapsed_us * weight, 1)
