"""Where grid cells begin in a shard log, told from its progress records. Pure."""

from typing import NamedTuple

from topics.progress.record import Progress, Tick


class Cut(NamedTuple):
    """A place between two records: the next offset, and the seq of the last record below it."""

    offset: int
    seq: int


def first_offset_of(progress: Progress) -> int:
    """Offset of the first record that this progress record adds; offsets inside are contiguous."""
    return progress.end_offset - (progress.last_seq - progress.first_seq + 1)


def cut_at(progress: Progress, tick: Tick) -> Cut:
    """The cut before the record to which a tick of this progress record points."""
    return Cut(tick.offset, progress.first_seq + (tick.offset - first_offset_of(progress)) - 1)


def ordered_from_seq(progress: Progress) -> int:
    """The first seq whose grid cell a reader knows that begins with this progress record.

    Records before its first tick go on in a cell that began earlier; behind a record without
    ticks, its head says enough.
    """
    if progress.first_seq == 1:
        return 1
    if progress.ticks:
        return cut_at(progress, progress.ticks[0]).seq + 1
    return progress.last_seq + 1
