"""Resolves a start (a word, a time, a position) to a position in every shard log."""

import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from event_token import ClockUncertainty, KeyRange, ShardPosition, StreamPosition
from topics.errors import StartNotReached
from topics.kafka.client import ClientConfig
from topics.kafka.deadline import Deadline
from topics.keyspace.lineage import era_of, has_marks, overlapping, switched
from topics.keyspace.topology import ReshardEntry, Topology
from topics.progress.history import ProgressHistory
from topics.progress.record import MarkKind, cell_start_us
from topics.reading.followed_shards import check_shards
from topics.records.schema_ids import SchemaIds
from topics.start.from_copy import Name, copy_start_us
from topics.start.shard_points import earliest_point, latest_point, point_at_time, start_frontier_us
from topics.start.start_forms import ParsedStart, StartWord

# A start at the current time waits for the next heartbeats, which come every 250 ms. A shard whose
# log is further behind than this must catch up first.
START_WAIT_S: Final = 30.0
_START_POLL_S: Final = 0.05


def resolve_start(
    start: ParsedStart,
    *,
    config: ClientConfig,
    topology: Topology,
    key_range: KeyRange,
    schema_ids: SchemaIds,
    tables: Collection[Name] | None = None,
    clock: ClockUncertainty = ClockUncertainty(),  # noqa: B008 - frozen, and has no state
    wait_s: float = START_WAIT_S,
    at_end_if_behind: bool = False,
    may_begin_later: bool = False,
) -> StreamPosition:
    """Return the position of `start` for a reader of a key range.

    EARLIEST: the beginnings of the logs, or their first complete grid cells if retention has
    removed the beginnings. LATEST: their ends. A time (microseconds since the epoch): in each
    shard, the first record not older than the 10 ms cell of the time, less what `clock` says that
    timestamps may lie behind, so that nothing committed since is left out. COPY: the time at which
    the newest copies of `tables` (None: all) began; missing ones are requested. The shards are
    those that served at that time; no start on a target of a reshard lies before its BEGIN.
    `at_end_if_behind`: a log that has not reached the time is started at its end, not waited for.
    `may_begin_later`: a log that was begun after the time is taken from its beginning.

    UsageError when a position is of another range, PositionTooOld (Halt) when records of that time
    were removed, or are older than the log of a shard, StartNotReached (Retry) when the log of a
    shard does not reach the time within `wait_s`; for COPY see `copy_start_us`.
    """
    if start is StartWord.COPY:
        shards = topology.shards_for(key_range)
        start = copy_start_us(config, topology.keyspace, shards, tables)
        # A log that was begun later has its tables from its own copy.
        may_begin_later = True
    elif isinstance(start, int):
        start = max(0, start - clock.behind_us)
    if isinstance(start, StreamPosition):
        check_shards(start, key_range)
        return start
    places = _Places(start, config, topology.keyspace, schema_ids, Deadline(wait_s))
    places.at_end_if_behind, places.may_begin_later = at_end_if_behind, may_begin_later
    if start is StartWord.EARLIEST:
        era = era_of(topology, key_range, lambda r: places.are_whole(r, key_range))
    elif start is StartWord.LATEST:
        era = era_of(topology, key_range, lambda _: False)
    else:
        era = era_of(topology, key_range, lambda r: places.time_us < (r.hop_time_us or 0))
    # Declared reshards have no marks.
    entered = {s: r for r in switched(topology) if has_marks(r) for s in r.targets}
    left = {s: r for r in era.undone if has_marks(r) for s in r.sources}
    points = {s: places.point(s, entered.get(s), left.get(s)) for s in era.shards}
    return StreamPosition(topology.epoch - len(era.undone), places.frontier_us, points)


def resolve_start_of(
    start: StartWord | int,
    *,
    config: ClientConfig,
    keyspace: str,
    shards: Sequence[str],
    schema_ids: SchemaIds,
    wait_s: float = START_WAIT_S,
) -> StreamPosition:
    """Return the position of EARLIEST, LATEST or a time in these logs, without the topology.

    A log may begin after the time. Errors: see `resolve_start`.
    """
    places = _Places(start, config, keyspace, schema_ids, Deadline(wait_s))
    places.may_begin_later = True
    points = {shard: places.point(shard, None, None) for shard in shards}
    return StreamPosition(0, places.frontier_us, points)


class _Places:
    """Finds one start in one shard after the other."""

    def __init__(
        self,
        start: StartWord | int,
        config: ClientConfig,
        keyspace: str,
        schema_ids: SchemaIds,
        deadline: Deadline,
    ) -> None:
        self._start = start
        self.time_us = 0 if isinstance(start, StartWord) else cell_start_us(start)
        self.at_end_if_behind = False
        self.may_begin_later = False
        self._deadline = deadline
        self._open = partial(ProgressHistory, config, keyspace, schema_ids=schema_ids)
        self._heads: list[int | None] = []

    @property
    def frontier_us(self) -> int:
        """The frontier of the position, after all of its points are known."""
        return start_frontier_us(self._heads) if self._start is StartWord.LATEST else self.time_us

    def are_whole(self, reshard: ReshardEntry, key_range: KeyRange) -> bool:
        """Tell whether a reader can start before a reshard: sources exist, targets since BEGIN."""
        for shard in overlapping(reshard.sources, key_range):
            with self._open(shard) as history:
                if not history.exists():
                    return False
        for shard in overlapping(reshard.targets, key_range) if has_marks(reshard) else ():
            with self._open(shard) as history:
                begin = self._begin(history, reshard)
                if begin is None or begin.offset < history.log_start():
                    return False
        return True

    def point(
        self, shard: str, entered: ReshardEntry | None, left: ReshardEntry | None
    ) -> ShardPosition:
        """Return the start in a shard that these reshards made serving or retired."""
        with self._open(shard) as history:
            begin = None if entered is None else self._begin(history, entered)
            end = None
            if left is not None:
                ended = history.mark_of(MarkKind.END, left.reshard_id, left.hop_time_us or 0)
                end = None if ended is None else latest_point(ended.progress, 0)
            found = self._found(history, shard, end, is_entered=begin is not None)
            if begin is not None and found.seq < begin.seq:
                return begin
            return end if end is not None and found.offset > end.offset else found

    def _found(
        self,
        history: ProgressHistory,
        shard: str,
        end: ShardPosition | None,
        *,
        is_entered: bool,
    ) -> ShardPosition:
        if self._start is StartWord.EARLIEST:
            records = (found.progress for found in history.records())
            return earliest_point(records, history.log_start())
        if self._start is StartWord.LATEST:
            last = history.last()
            progress = None if last is None else last.progress
            self._heads.append(None if progress is None else progress.head_us)
            return latest_point(progress, history.log_start())
        return self._at_time(history, shard, end, is_entered=is_entered)

    def _begin(self, history: ProgressHistory, reshard: ReshardEntry) -> ShardPosition | None:
        """Return the place of a target's BEGIN; None if retention, or a reset, has removed it."""
        hop_time_us = reshard.hop_time_us or 0
        while True:
            found = history.mark_of(MarkKind.BEGIN, reshard.reshard_id, hop_time_us)
            if found is not None:
                last = found.progress
                return ShardPosition(last.end_offset - 1, last.last_seq - 1, None)
            if not history.reaches_back_to(hop_time_us):
                return None
            if self._deadline.passed:
                raise StartNotReached(
                    f"shard {history.topics.shard}: its log has not reached BEGIN of reshard "
                    f"{reshard.reshard_id}, which the topology has as switched, within "
                    f"{self._deadline.seconds:g} s. Is its producer running?",
                )
            time.sleep(_START_POLL_S)

    def _at_time(
        self,
        history: ProgressHistory,
        shard: str,
        end: ShardPosition | None,
        *,
        is_entered: bool,
    ) -> ShardPosition:
        offset = history.offset_for_time(self.time_us)
        log_start = history.log_start()
        # What came before BEGIN is in the sources.
        later_ok = self.may_begin_later or is_entered
        while True:
            last = history.last()
            records = (found.progress for found in history.records(offset))
            point = point_at_time(shard, records, self.time_us, log_start, may_begin_later=later_ok)
            if point is not None:
                return point
            if end is not None:
                return end  # everything that the shard ever logged is older
            if self.at_end_if_behind:
                return latest_point(last.progress if last else None, log_start)
            if self._deadline.passed:
                reached = "nothing yet" if last is None else f"{last.progress.head_us} us"
                raise StartNotReached(
                    f"shard {shard}: its log has reached {reached}, not the start at "
                    f"{self.time_us} us, within {self._deadline.seconds:g} s. Is its producer "
                    f"running? Start from an earlier time, or again once it has caught up",
                )
            time.sleep(_START_POLL_S)
