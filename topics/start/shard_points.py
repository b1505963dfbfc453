"""Finds where a reader starts in one shard log, from the progress of the shard. Pure."""

from collections.abc import Iterable
from typing import Final

from event_token.position import ShardPosition
from topics.errors import PositionTooOld
from topics.progress.cells import begins_us, cut_at, first_offset_of
from topics.progress.record import CLOCK_AHEAD_US_MAX, Progress, cell_start_us

# Compaction leaves a record or two before the contiguous part; the reader itself notices breaks
# further on.
BREAK_LOOKAHEAD: Final = 1_000


def earliest_point(history: Iterable[Progress], log_start: int) -> ShardPosition:
    """Return the first place from which a log can be read in order.

    That is its beginning while it is complete, else its first complete grid cell. `history` is the
    whole progress, in order.
    """
    found: ShardPosition | None = None
    is_kept = False  # whether the log is known to have the first record after `found`
    chain_seq, seen = 0, 0
    last: Progress | None = None
    for progress in history:
        if progress.first_seq != chain_seq + 1:
            found, is_kept, seen = None, False, 0
        if found is not None and not is_kept and progress.last_seq > found.seq:
            is_kept = first_offset_of(progress) >= log_start
            found = found if is_kept else None
        if found is None:
            found = _first_point(progress, log_start)
            is_kept = found is not None and (progress.last_seq > found.seq or log_start == 0)
        chain_seq, last, seen = progress.last_seq, progress, seen + 1
        if is_kept and seen > BREAK_LOOKAHEAD:
            break
    if found is not None:
        return found
    if last is None:
        return ShardPosition(log_start, 0, None)
    # No cell begins in the rest of the log, so start at its end.
    return ShardPosition(max(last.end_offset, log_start), last.last_seq, None)


def _first_point(progress: Progress, log_start: int) -> ShardPosition | None:
    if progress.first_seq == 1 and (
        progress.last_seq == 0 or first_offset_of(progress) >= log_start
    ):
        return ShardPosition(log_start, 0, None)
    for tick in progress.ticks:
        if tick.offset >= log_start:
            cut = cut_at(progress, tick)
            return ShardPosition(cut.offset, cut.seq, None)
    return None


def latest_point(progress: Progress | None, log_start: int) -> ShardPosition:
    """Return the end of a log, from its last progress record."""
    if progress is None:
        return ShardPosition(log_start, 0, None)
    return ShardPosition(max(progress.end_offset, log_start), progress.last_seq, None)


def point_at_time(
    shard: str,
    history: Iterable[Progress],
    time_us: int,
    log_start: int,
    *,
    may_begin_later: bool = False,
) -> ShardPosition | None:
    """Return the first record not older than a grid time; None while the head is before it.

    `history` is the progress from a record that is old enough, or all of it. PositionTooOld when
    records of that time may have been removed, or, unless `may_begin_later`, when the log was begun
    after it.
    """
    proven = False  # whether everything below is known to be older than the time
    chain_seq: int | None = None
    for progress in history:
        # Heartbeats before the first row look as the first one does, and are later.
        first_us = None if may_begin_later or chain_seq is not None else begins_us(progress)
        if first_us is not None and first_us > time_us:
            raise PositionTooOld(
                f"shard {shard}: its log begins at {first_us} us, after the start at {time_us} us: "
                f"a producer began it there, and what was committed before is not in it. Start "
                f"from us:{first_us} or later, or from earliest, which begins each log where it "
                f"does"
            )
        follows = chain_seq is not None and progress.first_seq == chain_seq + 1
        long_ago = progress.head_us <= time_us - CLOCK_AHEAD_US_MAX
        proven = (proven and follows) or progress.first_seq == 1 or long_ago
        chain_seq = progress.last_seq
        for tick in progress.ticks:
            # Everything below a tick is older than the tick.
            proven = proven or tick.timestamp_us <= time_us
            if tick.timestamp_us >= time_us:
                _check_kept(shard, time_us, kept=proven and tick.offset >= log_start)
                cut = cut_at(progress, tick)
                return ShardPosition(cut.offset, cut.seq, None)
        if cell_start_us(progress.head_us) >= time_us:
            _check_kept(shard, time_us, kept=proven)
            offset = max(progress.end_offset, log_start)
            return ShardPosition(offset, progress.last_seq, None)
    return None


def _check_kept(shard: str, time_us: int, *, kept: bool) -> None:
    if not kept:
        raise PositionTooOld(
            f"shard {shard}: its log no longer reaches back to {time_us} us: retention has "
            f"removed records of that time. Start from a later time, or from earliest",
        )


def start_frontier_us(heads_us: Iterable[int | None]) -> int:
    """Return the frontier of a start at the logs' ends: no later record is older."""
    return min((0 if head is None else cell_start_us(head)) for head in heads_us)
