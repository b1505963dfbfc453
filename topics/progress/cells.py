"""Locates the grid cells of a shard log by its progress records. Pure."""

from typing import NamedTuple

from topics.progress.record import GRID_US, Progress, Tick, cell_start_us


class Cut(NamedTuple):
    """A place between two records: the next offset, and the seq of the last record below it."""

    offset: int
    seq: int


def first_offset_of(progress: Progress) -> int:
    """Return the offset of the first record covered by a progress record; they are contiguous."""
    return progress.end_offset - (progress.last_seq - progress.first_seq + 1)


def cut_at(progress: Progress, tick: Tick) -> Cut:
    """Return the cut before the record that a tick of this progress record points to."""
    return Cut(tick.offset, progress.first_seq + (tick.offset - first_offset_of(progress)) - 1)


def begins_us(progress: Progress) -> int | None:
    """Return the grid time from which on the log is complete, if this record begins it, else None.

    A new log begins at a position of the binlog. What was committed before is not in it, and only
    the first progress record tells when that was: by its first tick, or, without rows, by its head.
    """
    if progress.first_seq != 1:
        return None
    if progress.ticks:
        return progress.ticks[0].timestamp_us
    return cell_start_us(progress.head_us + GRID_US - 1)


def ordered_from_seq(progress: Progress) -> int:
    """Return the first seq whose grid cell is known to a reader starting at this progress record.

    Records before its first tick continue a cell that began earlier. Without ticks, only records
    after those of this progress record can be placed, by its head (watermark).
    """
    if progress.first_seq == 1:
        return 1
    if progress.ticks:
        return cut_at(progress, progress.ticks[0]).seq + 1
    return progress.last_seq + 1
