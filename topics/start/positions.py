"""Resolves a start (a word, a time, a position) to a position in every shard log."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from event_token import ClockUncertainty, KeyRange, ShardPosition, StreamPosition
from topics.errors import (
    BrokersUnreachable,
    NoBrokerAnswers,
    PositionTooOld,
    StartNotReached,
    WrongPosition,
)
from topics.kafka.client import ClientConfig, Deadline, check_reachable
from topics.kafka.lookups import Lookup, Lookups, Pause
from topics.keyspace.lineage import era_of, has_marks, overlapping, switched
from topics.keyspace.topology import ReshardEntry, Topology, read_topology, require_topology
from topics.progress.history import NextProgress, ProgressHistory
from topics.progress.record import (
    CLOCK_AHEAD_US_MAX,
    MarkKind,
    Progress,
    begins_us,
    cell_start_us,
    cut_at,
    first_offset_of,
)
from topics.reading.followed_shards import check_shards
from topics.records.table_shape import SchemaIds
from topics.start.copies import Name, copy_start_us
from topics.start.start_forms import ParsedStart, StartWord

# Compaction leaves a record or two before the contiguous part; the reader itself notices breaks
# further on.
BREAK_LOOKAHEAD: Final = 1_000


def earliest_point(next_progress: NextProgress, log_start: int) -> Lookup[ShardPosition]:
    """Return the first place from which a log can be read in order.

    That is its beginning while it is complete, else its first complete grid cell. `next_progress`
    goes over the whole progress, in order.
    """
    found: ShardPosition | None = None
    is_kept = False  # whether the log is known to have the first record after `found`
    chain_seq, seen = 0, 0
    last: Progress | None = None
    while (record := (yield from next_progress())) is not None:
        progress = record.progress
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
    next_progress: NextProgress,
    time_us: int,
    log_start: int,
    *,
    may_begin_later: bool = False,
) -> Lookup[ShardPosition | None]:
    """Return the first record not older than a grid time; None while the head is before it.

    `next_progress` goes over the progress from a record that is old enough, or all of it.
    PositionTooOld when records of that time may have been removed, or, unless `may_begin_later`,
    when the log was begun after it.
    """
    proven = False  # whether everything below is known to be older than the time
    chain_seq: int | None = None
    while (record := (yield from next_progress())) is not None:
        progress = record.progress
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


def check_not_ahead(position: StreamPosition, now_us: int) -> None:
    """Raise WrongPosition when the frontier lies in the future: what comes would be before it.

    For positions that strangers send. No reader of this product makes such a one, and one that has
    made its position itself must go on also where the clock of its host is slow.
    """
    ahead_us = position.frontier_us - now_us
    if ahead_us > CLOCK_AHEAD_US_MAX:
        raise WrongPosition(
            f"the position says that all before {position.frontier_us} us has come, which is "
            f"{ahead_us / 1e6:g} s ahead of this host's clock: start from an earlier one, or from "
            f"a time"
        )


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
    requests_copies: bool = True,
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
    `requests_copies`: as of `copy_start_us`.

    WrongPosition when a position is of another range, PositionTooOld (Halt) when records of that
    time were removed, or are older than the log of a shard, StartNotReached (Retry) when the log of
    a shard does not reach the time within `wait_s`; for COPY see `copy_start_us`.
    """
    if start is StartWord.COPY:
        shards = topology.shards_for(key_range)
        start = copy_start_us(
            config, topology.keyspace, shards, tables, requests_copies=requests_copies
        )
        # A log that was begun later has its tables from its own copy.
        may_begin_later = True
    elif isinstance(start, int):
        start = max(0, start - clock.behind_us)
    if isinstance(start, StreamPosition):
        check_shards(start, key_range)
        return start
    places = _Places(start, topology.keyspace, schema_ids, Deadline(wait_s))
    places.at_end_if_behind, places.may_begin_later = at_end_if_behind, may_begin_later
    with Lookups(config) as lookups:

        def is_before(reshard: ReshardEntry) -> bool:
            if start is StartWord.EARLIEST:
                return places.are_whole(reshard, key_range, lookups)
            is_time = start is not StartWord.LATEST
            return is_time and places.time_us < (reshard.hop_time_us or 0)

        era = era_of(topology, key_range, is_before)
        # Declared reshards have no marks.
        entered = {s: r for r in switched(topology) if has_marks(r) for s in r.targets}
        left = {s: r for r in era.undone if has_marks(r) for s in r.sources}
        points = lookups.results(
            {s: places.point(s, entered.get(s), left.get(s)) for s in era.shards}
        )
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
    places = _Places(start, keyspace, schema_ids, Deadline(wait_s))
    places.may_begin_later = True
    with Lookups(config) as lookups:
        points = lookups.results({shard: places.point(shard, None, None) for shard in shards})
    return StreamPosition(0, places.frontier_us, points)


class _Places:
    """Finds one start in shards; the look-ups of several run together."""

    def __init__(
        self, start: StartWord | int, keyspace: str, schema_ids: SchemaIds, deadline: Deadline
    ) -> None:
        self._start = start
        self.time_us = 0 if isinstance(start, StartWord) else cell_start_us(start)
        self.at_end_if_behind = False
        self.may_begin_later = False
        self._deadline = deadline
        self._keyspace = keyspace
        self._schema_ids = schema_ids
        self._heads: list[int | None] = []

    @property
    def frontier_us(self) -> int:
        """The frontier of the position, after all of its points are known.

        A log that is started at its end before the time may go on with older records.
        """
        if self._start is StartWord.LATEST:
            return start_frontier_us(self._heads)
        return min(self.time_us, start_frontier_us(self._heads)) if self._heads else self.time_us

    def are_whole(self, reshard: ReshardEntry, key_range: KeyRange, lookups: Lookups) -> bool:
        """Return whether a reader can start before a reshard: sources and BEGINs exist."""
        sources = overlapping(reshard.sources, key_range)
        targets = overlapping(reshard.targets, key_range) if has_marks(reshard) else ()
        exist = lookups.results({s: self._history(s).exists() for s in sources})
        return all(exist.values()) and all(
            lookups.results({s: self._has_begin(s, reshard) for s in targets}).values()
        )

    def _has_begin(self, shard: str, reshard: ReshardEntry) -> Lookup[bool]:
        history = self._history(shard)
        begin = yield from self._begin(history, reshard)
        if begin is None:
            return False
        log_start = yield from history.log_start()
        return begin.offset >= log_start

    def point(
        self, shard: str, entered: ReshardEntry | None, left: ReshardEntry | None
    ) -> Lookup[ShardPosition]:
        """Return the start in a shard that these reshards made serving or retired."""
        history = self._history(shard)
        begin = None
        if entered is not None:
            begin = yield from self._begin(history, entered)
        end = None
        if left is not None:
            hop_time_us = left.hop_time_us or 0
            ended = yield from history.mark_of(MarkKind.END, left.reshard_id, hop_time_us)
            end = None if ended is None else latest_point(ended.progress, 0)
        if isinstance(self._start, StartWord):
            found = yield from self._at_word(history)
        else:
            found = yield from self._at_time(history, shard, end, is_entered=begin is not None)
        if begin is not None and found.seq < begin.seq:
            return begin
        return end if end is not None and found.offset > end.offset else found

    def _history(self, shard: str) -> ProgressHistory:
        return ProgressHistory(self._keyspace, shard, self._schema_ids)

    def _at_word(self, history: ProgressHistory) -> Lookup[ShardPosition]:
        if self._start is StartWord.EARLIEST:
            log_start = yield from history.log_start()
            next_progress = yield from history.records()
            return (yield from earliest_point(next_progress, log_start))
        last = yield from history.last()
        progress = None if last is None else last.progress
        self._heads.append(None if progress is None else progress.head_us)
        log_start = yield from history.log_start()
        return latest_point(progress, log_start)

    def _begin(
        self, history: ProgressHistory, reshard: ReshardEntry
    ) -> Lookup[ShardPosition | None]:
        """Return the place of a target's BEGIN; None if retention, or a reset, has removed it."""
        hop_time_us = reshard.hop_time_us or 0
        while True:
            found = yield from history.mark_of(MarkKind.BEGIN, reshard.reshard_id, hop_time_us)
            if found is not None:
                last = found.progress
                return ShardPosition(last.end_offset - 1, last.last_seq - 1, None)
            reaches_back = yield from history.reaches_back_to(hop_time_us)
            if not reaches_back:
                return None
            if self._deadline.passed:
                raise StartNotReached(
                    f"shard {history.topics.shard}: its log has not reached BEGIN of reshard "
                    f"{reshard.reshard_id}, which the topology has as switched, within "
                    f"{self._deadline.seconds:g} s. Is its producer running?",
                )
            yield Pause(_START_POLL_S)

    def _at_time(
        self,
        history: ProgressHistory,
        shard: str,
        end: ShardPosition | None,
        *,
        is_entered: bool,
    ) -> Lookup[ShardPosition]:
        offset = yield from history.offset_for_time(self.time_us)
        log_start = yield from history.log_start()
        # What came before BEGIN is in the sources.
        later_ok = self.may_begin_later or is_entered
        while True:
            last = yield from history.last()
            records = yield from history.records(offset)
            point = yield from point_at_time(
                shard, records, self.time_us, log_start, may_begin_later=later_ok
            )
            if point is not None:
                return point
            if end is not None:
                return end  # everything that the shard ever logged is older
            if self.at_end_if_behind:
                self._heads.append(None if last is None else last.progress.head_us)
                return latest_point(last.progress if last else None, log_start)
            if self._deadline.passed:
                reached = "nothing yet" if last is None else f"{last.progress.head_us} us"
                raise StartNotReached(
                    f"shard {shard}: its log has reached {reached}, not the start at "
                    f"{self.time_us} us, within {self._deadline.seconds:g} s. Is its producer "
                    f"running? Start from an earlier time, or again once it has caught up",
                )
            yield Pause(_START_POLL_S)


def find_topology(config: ClientConfig, keyspace: str) -> Topology | None:
    """Return the topology of a keyspace, for a reader that begins; None if it has none.

    BrokersUnreachable (Retry) when no broker answers within ten seconds.
    """
    try:
        check_reachable(config)
    except NoBrokerAnswers as error:  # a reader may start while the brokers restart
        raise BrokersUnreachable(str(error)) from error
    return read_topology(config, keyspace)


def known_topology(config: ClientConfig, keyspace: str) -> Topology:
    """Return the topology as `find_topology` does; UsageError when there is none."""
    return require_topology(find_topology(config, keyspace), keyspace)
