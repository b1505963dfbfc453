"""Plans batches on the driver: where a query begins, and where its next batch ends.

Reads progress, never rows. A batch query has one batch, and a leg more for each hop in it.
"""

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from event_token import ClockUncertainty, StreamPosition
from event_token.errors import Retry, UsageError
from spark_consumers.source.options import SourceOptions
from spark_consumers.source.stream_offset import Seen, Splits, StreamOffset, choose_splits
from topics.errors import LogShrank, StartNotReached
from topics.kafka.client import Deadline, topic_ids
from topics.kafka.lookups import Lookup, Lookups
from topics.keyspace.lineage import retired_us
from topics.keyspace.topology import Topology, read_topology
from topics.names import ShardTopics
from topics.progress.history import ProgressHistory
from topics.progress.record import Progress
from topics.reading.followed_shards import Stall, Wait
from topics.reading.planner import Batch, Planner, ShardRange, Strict, is_hop, ranges_between
from topics.records.table_shape import SchemaIds
from topics.start.positions import known_topology, resolve_start
from topics.start.start_forms import ParsedStart, StartWord
from topics.start.unmarked_hop import unmarked_hop, unmarked_targets
from topics.stream.progress_feed import ProgressFeed, clock_ms

_LOG = logging.getLogger("shardstream.spark")

# Longest wait for progress in Spark's planning thread. It bounds how late `stop()` is noticed and
# how late a batch begins; producers send heartbeats every 250 ms.
POLL_S_MAX = 0.1
# Longest time spent reading progress in one call, so that a catch-up does not block the thread.
POLL_MS_TOTAL = 2_000
# How often an idle stream checks the topology for reshards without marks.
LOOK_MS = 5_000
# Spark's planning thread must not wait for targets that have not reached their start; the next
# check tries again.
TARGETS_WAIT_S = 0.0
# A shard that has been silent for this long is worth a warning: its producer has missed forty
# heartbeats.
STALL_MS = 10_000
# An empty batch costs Spark as much as one with rows, so the checkpoint of an idle stream follows
# the frontier in steps of this size.
IDLE_STEP_US = 10_000_000
# Least number of rows between two remembered transaction bounds: close enough to split evenly.
BOUND_ROWS_MIN = 10_000
# Most bounds remembered per shard; a batch with more rows than they cover is split unevenly.
BOUNDS_MAX = 10_000


class WatchingPlanner(Planner):
    """A planner that also remembers transaction bounds and where the query must end."""

    def __init__(
        self,
        position: StreamPosition,
        options: SourceOptions,
        retired: Mapping[str, int],
        until_us: int | None = None,
    ) -> None:
        super().__init__(
            position, options.key_range, options.mode, until_us=until_us, retired_us=retired
        )
        self.heads_us: dict[str, int] = {}
        self._bounds: dict[str, list[tuple[int, int]]] = {}
        self._ends: Mapping[str, Progress] | None = None
        self._ended: set[str] = set()

    def end_at(self, last: Mapping[str, Progress]) -> None:
        """Ignore all progress after these records (one per shard) and all other shards."""
        self._ends = last

    @property
    def unread(self) -> set[str]:
        """The shards whose progress has not been read up to the end; empty without an end."""
        return set() if self._ends is None else (self.followed & self._ends.keys()) - self._ended

    @property
    def followed(self) -> set[str]:
        """The shards whose progress is needed."""
        return {*self.position.shards, *self.targets}

    def observe(self, shard: str, progress: Progress, seen_at_ms: int) -> None:
        """Take a progress record (see Planner)."""
        if self._ends is not None:
            end = self._ends.get(shard)
            if end is None or shard in self._ended or self._is_beyond(end, progress):
                self._ended.add(shard)
                return
            if progress == end:
                self._ended.add(shard)
        super().observe(shard, progress, seen_at_ms)
        self.heads_us[shard] = progress.head_us
        bounds = self._bounds.setdefault(shard, [])
        if not bounds or progress.last_seq >= bounds[-1][1] + BOUND_ROWS_MIN:
            bounds.append((progress.end_offset, progress.last_seq))
            del bounds[:-BOUNDS_MAX]

    def _is_beyond(self, end: Progress, progress: Progress) -> bool:
        return progress.last_seq > end.last_seq or progress.head_us > end.head_us

    def splits(self, part: ShardRange, rows_max: int) -> list[tuple[int, int]]:
        """Choose where a range may be split, and drop the bounds before its end."""
        bounds = self._bounds.setdefault(part.shard, [])
        chosen = choose_splits(part, bounds, rows_max)
        del bounds[: sum(1 for _, seq in bounds if seq < part.last_seq)]
        return chosen


class BatchPlanning:
    """Plans micro-batches one after the other; not thread-safe.

    No network access before the first call. Raises Halt when a log or its progress is broken,
    Retry when the brokers are unreachable.
    """

    def __init__(self, options: SourceOptions, schema_ids: SchemaIds) -> None:
        self._options = options
        self._schema_ids = schema_ids
        self._feed: ProgressFeed | None = None
        self._planner: WatchingPlanner | None = None
        self._ends: dict[str, Progress] | None = None
        self._look_ms = 0
        self._log_ids: dict[str, str] = {}
        self._idle: Batch | None = None  # the last plan, if it was not worth a batch
        self._stall = Stall(clock_ms())
        self.waiting: Wait | None = None

    @property
    def has_end(self) -> bool:
        """Whether `end_now` was called."""
        return self._ends is not None

    def status(self) -> dict[str, object]:
        """Return each shard's head (watermark) in microseconds, and why the stream waits, or ""."""
        return {
            "heads_us": dict(self._planner.heads_us) if self._planner else {},
            "waiting": self.waiting.reason if self.waiting else "",
        }

    def end_now(self, position: StreamPosition) -> None:
        """Plan nothing beyond the progress that is on Kafka now.

        This covers the shards of the position and all shards that came after them.
        """
        options = self._options
        topology = read_topology(options.kafka, options.keyspace)
        named = () if topology is None else topology.shards
        shards = {*position.shards, *(entry.name for entry in named)}
        histories = {s: ProgressHistory(options.keyspace, s, self._schema_ids) for s in shards}
        with Lookups(options.kafka) as lookups:
            # The topics of shards that were left before the position may be deleted.
            last = lookups.results({s: each.last_if_any() for s, each in histories.items()})
        self._ends = {shard: found.progress for shard, found in last.items() if found is not None}
        self._close_feed()

    def next_end(self, start: StreamOffset, max_rows: int | None) -> StreamOffset | None:
        """Return where the batch from `start` ends, or None while there is nothing to read.

        Without `max_rows`, everything that can be read now is one batch. LogShrank when a log is
        not the one that was read up to `start`, UsageError when `start` is of another key range.
        """
        key_range = str(self._options.key_range)
        if start.key_range not in {None, key_range}:
            raise UsageError(
                f"the checkpoint is of a query of the key range {start.key_range}, and this one "
                f"reads {key_range}: read that range, or start with a new checkpoint"
            )
        self._check_logs(start)
        end = self._next_end(start, max_rows)
        if end is None:
            return None
        known = {shard: log for shard, log in start.logs.items() if shard in end.position.shards}
        return replace(
            end, logs={**known, **self._ids_of(end.position.shards)}, key_range=key_range
        )

    def _check_logs(self, start: StreamOffset) -> None:
        found = self._ids_of(start.position.shards)
        for shard, topic_id in start.logs.items():
            # A topic that brokers do not know is waited for, and reported, by those that read it.
            if found.get(shard, topic_id) != topic_id:
                raise LogShrank(
                    f"{ShardTopics(self._options.keyspace, shard).log}: the topic was deleted and "
                    f"created again (its id was {topic_id}, and is {found[shard]}), and its "
                    f"records are others. Start again from earliest with a new checkpoint, and "
                    f"treat the records between as lost"
                )

    def _ids_of(self, shards: Collection[str]) -> dict[str, str]:
        """Return the ids of the logs of these shards that exist; each is asked for once."""
        topics = {ShardTopics(self._options.keyspace, shard).log: shard for shard in shards}
        unknown = [topic for topic, shard in topics.items() if shard not in self._log_ids]
        if unknown:
            found = topic_ids(self._options.kafka, unknown)
            self._log_ids |= {topics[topic]: topic_id for topic, topic_id in found.items()}
        return {shard: self._log_ids[shard] for shard in shards if shard in self._log_ids}

    def _next_end(self, start: StreamOffset, max_rows: int | None) -> StreamOffset | None:
        planner = self._planner_at(start.position)
        self._take_progress(planner)
        end = self._plan(planner, max_rows)
        if end is None:
            return self._unmarked_step(start, planner)
        parts = ranges_between(start.position, end)
        splits = {
            shard: places
            for shard, part in parts.items()
            if (places := planner.splits(part, self._options.max_rows_per_task))
        }
        return start.moved_to(end, splits)

    def _planner_at(self, position: StreamPosition) -> WatchingPlanner:
        planner = self._planner
        if planner is not None and planner.position == position:
            return planner
        self._close_feed()
        topology = read_topology(self._options.kafka, self._options.keyspace)
        retired = {} if topology is None else retired_us(topology)
        planner = WatchingPlanner(position, self._options, retired)
        if self._ends is not None:
            planner.end_at(self._ends)
        self._planner = planner
        self._feed = ProgressFeed(self._options.kafka, self._options.keyspace, self._schema_ids)
        return planner

    def _unmarked_step(self, start: StreamOffset, planner: WatchingPlanner) -> StreamOffset | None:
        """Return the next step across a reshard without marks, once all before it is read.

        A hop does not move the frontier; if the frontier has moved, that is a separate step first.
        """
        if not self.has_end and clock_ms() - self._look_ms < LOOK_MS:
            return None
        self._look_ms = clock_ms()
        idle = self._idle
        # The feed reports brokers that stay unreachable. A query with an end must not end before
        # the hop because of them, but it may end when the targets have no rows yet.
        with suppress(StartNotReached if self.has_end else Retry):
            hop = self._unmarked_hop(start.position, planner)
            if hop is not None:
                return start.hopped_to(*hop)
            if idle is not None and self._unmarked_hop(idle.end, planner) is not None:
                self._look_ms = 0
                planner.advance(idle)
                return start.moved_to(idle.end, {})
        return None

    def _unmarked_hop(
        self, position: StreamPosition, planner: WatchingPlanner
    ) -> tuple[StreamPosition, Seen] | None:
        options = self._options
        topology = read_topology(options.kafka, options.keyspace)
        if topology is None:
            return None
        return unmarked_hop(
            position,
            config=options.kafka,
            topology=topology,
            key_range=options.key_range,
            schema_ids=self._schema_ids,
            is_exact=isinstance(options.mode, Strict),
            taken_us=planner.heads_us,
            clock=options.clock,
            wait_s=TARGETS_WAIT_S,
        )

    def _take_progress(self, planner: WatchingPlanner) -> None:
        """Read the progress that has arrived; wait briefly while nothing can be planned.

        A query with an end reads all progress up to it, so that it cannot stop short.
        """
        assert self._feed is not None  # noqa: S101 - made together with the planner
        begin_ms = clock_ms()
        while True:
            came = self._feed.poll(planner, 0 if self._is_ready(planner) else POLL_S_MAX)
            if unread := planner.unread:
                wanted = [shard for shard in unread if planner.wants(shard)]
                if len(wanted) < len(unread) and (not wanted or self._is_ready(planner)):
                    return  # the planner is full: its rows come first, or are beyond the frontier
            elif came == 0 or clock_ms() - begin_ms > POLL_MS_TOTAL:
                return

    def _is_ready(self, planner: WatchingPlanner) -> bool:
        return isinstance(planner.next_batch(clock_ms(), None), Batch)

    def _plan(self, planner: WatchingPlanner, max_rows: int | None) -> StreamPosition | None:
        start = planner.position
        planned = planner.next_batch(clock_ms(), max_rows)
        self._idle = None
        self._note_wait(planned if isinstance(planned, Wait) else None, start.frontier_us)
        if isinstance(planned, Wait):
            return None
        idle_us = planned.frontier_us - start.frontier_us
        hops = is_hop(start, planned.end)
        if not planned.ranges and not hops and (idle_us < IDLE_STEP_US or self.has_end):
            self._idle = planned
            return None
        planner.advance(planned)
        # A batch's tasks follow from its two positions alone, so a hop is a separate batch.
        while max_rows is None and not hops:
            self._take_progress(planner)
            more = planner.next_batch(clock_ms(), None)
            if isinstance(more, Wait) or is_hop(planner.position, more.end):
                break
            planner.advance(more)
        return planner.position

    def _note_wait(self, wait: Wait | None, frontier_us: int) -> None:
        """Remember the wait; warn once when the same shards hold the stream back for too long."""
        self.waiting = wait
        self._stall.observe(wait, frontier_us, clock_ms())
        news = self._stall.news(STALL_MS, clock_ms())
        if news is not None:
            _LOG.warning("keyspace %s: the stream is %s", self._options.keyspace, news)

    def _close_feed(self) -> None:
        if self._feed is not None:
            self._feed.close()
        self._feed = None
        self._planner = None

    def close(self) -> None:
        """Close the Kafka clients."""
        self._close_feed()


# Longest search for one hop: all progress up to the end of a batch query is on Kafka already.
HOP_WAIT_S = 60.0
HOP_POLL_S = 0.1
# How often reshards without marks are looked for while heartbeats keep coming.
HOP_LOOK_S = 1.0


def stream_start(options: SourceOptions, schema_ids: SchemaIds) -> StreamOffset:
    """Return where a new streaming query begins; the default is `latest`."""
    topology = known_topology(options.kafka, options.keyspace)
    start = StartWord.LATEST if options.start is None else options.start
    return _offset(topology, _resolve(options, schema_ids, topology, start, options.clock))


def batch_bounds(
    options: SourceOptions, schema_ids: SchemaIds
) -> tuple[StreamOffset, StreamPosition]:
    """Return where a batch query begins (default: `earliest`) and where it ends.

    The end `latest` is the frontier, the lowest head (watermark) of all shards now, so the result
    is complete up to one moment.
    """
    topology = known_topology(options.kafka, options.keyspace)
    begin = StartWord.EARLIEST if options.start is None else options.start
    start = _resolve(options, schema_ids, topology, begin, options.clock)
    wanted = options.end
    if wanted is None or wanted is StartWord.LATEST:
        latest = _resolve(options, schema_ids, topology, StartWord.LATEST)
        wanted = max(start.frontier_us, latest.frontier_us)
    end = _resolve(options, schema_ids, topology, wanted, may_begin_later=True)
    if end.frontier_us < start.frontier_us:
        raise UsageError(
            f"option end ({end.frontier_us} us) lies before option start ({start.frontier_us} us)"
        )
    return _offset(topology, start), end


def batch_legs(
    options: SourceOptions, schema_ids: SchemaIds, start: StreamOffset, end: StreamPosition
) -> list[tuple[StreamOffset, StreamPosition]]:
    """Return pairs of positions of the same shards from start to end, one more per hop."""
    deadline = Deadline(HOP_WAIT_S)
    legs: list[tuple[StreamOffset, StreamPosition]] = []
    leg_start = start
    while leg_start.position.shards.keys() != end.shards.keys():
        leg_end, next_start = _next_hop(options, schema_ids, leg_start, end, deadline)
        legs.append((leg_start, leg_end))
        leg_start = next_start
    return [*legs, (leg_start, end)]


def _next_hop(
    options: SourceOptions,
    schema_ids: SchemaIds,
    start: StreamOffset,
    end: StreamPosition,
    deadline: Deadline,
) -> tuple[StreamPosition, StreamOffset]:
    """Return the positions before and after the first hop after `start`."""
    topology = known_topology(options.kafka, options.keyspace)
    planner = WatchingPlanner(
        start.position, options, retired_us(topology), until_us=end.frontier_us
    )
    look = Deadline(HOP_LOOK_S)
    feed = ProgressFeed(options.kafka, options.keyspace, schema_ids)
    try:
        while True:
            at = planner.position
            planned = planner.next_batch(clock_ms())
            if isinstance(planned, Batch):
                planner.advance(planned)
                if is_hop(at, planned.end):
                    return at, start.moved_to(planned.end, {})
                continue
            # With many shards a heartbeat arrives in every poll.
            if feed.poll(planner, HOP_POLL_S) and not look.passed:
                continue
            look = Deadline(HOP_LOOK_S)
            hop = unmarked_hop(
                at,
                config=options.kafka,
                topology=topology,
                key_range=options.key_range,
                schema_ids=schema_ids,
                is_exact=True,
                taken_us=planner.heads_us,
                clock=options.clock,
            )
            if hop is not None:
                return at, start.hopped_to(*hop)
            if deadline.passed:
                raise Retry(
                    f"keyspace {options.keyspace}: no way from the shards "
                    f"{', '.join(at.shards)} to {', '.join(end.shards)} was found in "
                    f"{deadline.seconds:g} s: {planned.reason}"
                )
    finally:
        feed.close()


def batch_splits(
    options: SourceOptions, schema_ids: SchemaIds, start: StreamPosition, end: StreamPosition
) -> Splits:
    """Choose where large ranges may be split: at the bounds of Kafka transactions."""
    large = {
        shard: part
        for shard, part in ranges_between(start, end).items()
        if part.rows > options.max_rows_per_task
    }
    with Lookups(options.kafka) as lookups:
        bounds = lookups.results(
            {
                shard: _bounds_in(
                    ProgressHistory(options.keyspace, shard, schema_ids), start, part.last_seq
                )
                for shard, part in large.items()
            }
        )
    return {
        shard: choose_splits(part, bounds[shard], options.max_rows_per_task)
        for shard, part in large.items()
    }


def _bounds_in(
    history: ProgressHistory, start: StreamPosition, last_seq: int
) -> Lookup[list[tuple[int, int]]]:
    """Return ends of Kafka transactions from a position up to a seq, as (end offset, last seq)."""
    at = start.shards[history.topics.shard]
    offset = yield from history.offset_for_position(at, start.frontier_us)
    next_progress = yield from history.records(offset)
    bounds: list[tuple[int, int]] = []
    while (found := (yield from next_progress())) is not None:
        progress = found.progress
        if progress.last_seq > last_seq:
            break
        if not bounds or progress.last_seq >= bounds[-1][1] + BOUND_ROWS_MIN:
            bounds.append((progress.end_offset, progress.last_seq))
    return bounds


def _resolve(
    options: SourceOptions,
    schema_ids: SchemaIds,
    topology: Topology,
    start: ParsedStart,
    clock: ClockUncertainty = ClockUncertainty(),  # noqa: B008 - frozen, and has no state
    *,
    may_begin_later: bool = False,
) -> StreamPosition:
    return resolve_start(
        start,
        config=options.kafka,
        topology=topology,
        key_range=options.key_range,
        schema_ids=schema_ids,
        tables=None if options.table is None else (options.table,),
        clock=clock,
        may_begin_later=may_begin_later,
    )


def _offset(topology: Topology, position: StreamPosition) -> StreamOffset:
    """Return the offset of a query that begins here and has read nothing before."""
    return StreamOffset(position, seen=unmarked_targets(topology)).moved_to(position, {})
