"""One run of a stream: plans, reads the shard logs and delivers their events."""

from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from event_token import StreamPosition
from topics.kafka.client import ClientConfig
from topics.reading.followed_shards import FollowedShards, Wait
from topics.reading.merge import RunMerge
from topics.reading.planner import Batch, Planner, ShardRange, UnmergedPlanner
from topics.records.event_decoder import EventDecoder, LogRows
from topics.stream.delivery import Delivery, Place, Ready
from topics.stream.log_reader import ShardLogs
from topics.stream.progress_feed import ProgressFeed, clock_ms

# Rows per batch while there is a backlog. They are streamed, not buffered; the bound limits the
# ticks that a plan iterates over.
BATCH_ROWS_MAX: Final = 10_000
# The same of an unmerged stream, per range of a shard.
RANGE_ROWS_MAX: Final = 10_000
# Wait for rows whose progress is readable already: markers reach partitions one by one, within
# milliseconds, and the other shards' rows may come first.
UNREADABLE_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class StreamParts:
    """What a run of a stream is made of, beside its planner.

    `run_rows_max`: events made ready at a time, by an unmerged stream per shard. `poll_s`: after
    which a waiting `read` returns.
    """

    start: StreamPosition
    feed: ProgressFeed
    config: ClientConfig
    keyspace: str
    decoder: EventDecoder
    delivery: Delivery
    run_rows_max: int
    poll_s: float


PlannerT = TypeVar("PlannerT", bound=FollowedShards)


class _LogStream(Generic[PlannerT]):
    """One run of a stream: planner, consumers and their positions."""

    def __init__(self, parts: StreamParts, planner: PlannerT) -> None:
        """Begin at a position, which names the shards. No connection is made before `read`."""
        self.start = parts.start
        self.waiting: Wait | None = None
        self._run_rows_max = parts.run_rows_max
        self._poll_s = parts.poll_s
        self._place = Place.of(parts.start)  # after the last event made ready
        self._planner = planner
        self._feed = parts.feed
        self._delivery = parts.delivery
        self._logs = ShardLogs(
            parts.config,
            parts.keyspace,
            parts.decoder,
            as_records=parts.delivery.takes_records,
        )

    @property
    def position(self) -> StreamPosition:
        """The position after the last event made ready."""
        return self._place.position()

    @property
    def place(self) -> Place:
        """The same, as a value whose position is built on demand."""
        return self._place

    @property
    def read_us(self) -> dict[str, int] | None:
        """For each shard, the time before which it has been read; None: it is the frontier."""
        return None

    def read(self, ready: Ready, wait_s: float | None = None) -> None:
        """Make the next events ready, or wait up to `wait_s` (None: `poll_s`)."""
        raise NotImplementedError

    def _read_shards(self, position: StreamPosition) -> None:
        self._logs.follow(position)
        self._delivery.read_shards(position.shards)

    def stop(self) -> None:
        """End a wait, from any thread."""
        self._logs.stop()

    def close(self) -> None:
        """Close all consumers."""
        self._feed.close()
        self._logs.close()


class MergedStream(_LogStream[Planner]):
    """The logs of all shards in one order."""

    def __init__(self, parts: StreamParts, planner: Planner) -> None:
        """Begin without a batch."""
        super().__init__(parts, planner)
        self._batch: Batch | None = None
        self._merge: RunMerge[LogRows] = RunMerge({})
        self._rows_left = 0

    def read(self, ready: Ready, wait_s: float | None = None) -> None:
        """Make the next events ready, or wait up to `wait_s` (None: `poll_s`)."""
        if not self._logs.readers:
            self._read_shards(self.start)
        if self._batch is None and not self._plan():
            self._feed.poll(self._planner, self._poll_s if wait_s is None else wait_s)
            if not self._plan():
                return
        if self._rows_left > 0:
            self._run(ready)
        if self._rows_left == 0:
            self._end_batch()

    def _plan(self) -> bool:
        plan = self._planner.next_batch(clock_ms(), BATCH_ROWS_MAX)
        if isinstance(plan, Wait):
            self.waiting = plan
            return False
        self.waiting = None
        self._planner.advance(plan)
        self._batch = plan
        self._rows_left = plan.rows
        self._merge = RunMerge(
            {part.shard: self._logs.runs(part, plan.frontier_us) for part in plan.ranges.values()}
        )
        return True

    def _run(self, ready: Ready) -> None:
        stretches = self._merge.take(min(self._rows_left, self._run_rows_max))
        rows = sum([end - begin for _, begin, end in stretches])
        try:
            self._delivery.run(stretches, self._place, ready)
        finally:
            self._place = self._delivery.place
        self._rows_left -= rows

    def _end_batch(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            self._delivery.end_ranges(batch.ranges)
            self._place = self._place.moved_to(batch.end)
            if batch.end.shards.keys() != self._logs.readers.keys():
                self._read_shards(batch.end)


class UnmergedStream(_LogStream[UnmergedPlanner]):
    """Each log as it comes.

    Nothing here waits for one shard: the rows of a shard whose broker does not answer are asked
    for again at the next `read`, while those of the others are delivered.
    """

    def __init__(self, parts: StreamParts, planner: UnmergedPlanner) -> None:
        """Begin without ranges."""
        super().__init__(parts, planner)
        self._left: dict[str, ShardRange] = {}  # what is planned and not yet made ready

    @property
    def read_us(self) -> dict[str, int]:
        """For each shard, the time before which it has been read."""
        return self._planner.read_us()

    def read(self, ready: Ready, wait_s: float | None = None) -> None:
        """Make the next events of every shard ready, or wait up to `wait_s` (None: `poll_s`)."""
        if not self._logs.readers:
            self._read_shards(self.start)
        self._feed.poll(self._planner, 0)
        if not self._run_all(ready):
            poll_s = self._poll_s if wait_s is None else wait_s
            self._feed.poll(self._planner, min(poll_s, UNREADABLE_POLL_S) if self._left else poll_s)
            self._run_all(ready)
        self._settle()
        self.waiting = None if ready else self._wait()

    def _run_all(self, ready: Ready) -> int:
        """Make ready what can be read without waiting; return the number of records."""
        return sum([self._run(shard, ready) for shard in list(self._logs.readers)])

    def _run(self, shard: str, ready: Ready) -> int:
        left = self._left.get(shard) or self._planner.next_range(shard, RANGE_ROWS_MAX)
        if left is None:
            return 0
        self._left[shard] = left
        count = min(self._logs.readers[shard].ready(left), self._run_rows_max)
        if count == 0:
            return 0
        part = replace(left, last_seq=left.first_seq + count - 1)
        run, times_us = next(self._logs.runs(part, None))
        rows = len(times_us)
        try:
            self._delivery.run([(run, 0, rows)], self._place, ready)
        finally:
            self._place = self._delivery.place
        left = replace(left, first_seq=left.first_seq + rows)
        if left.rows:
            self._left[shard] = left
        else:
            del self._left[shard]
            self._delivery.end_ranges([shard])
            self._place = self._place.past(shard, left.end_offset, left.last_seq)
            self._planner.advance(left)
        return rows

    def _settle(self) -> None:
        """Move the frontier; hop where a reshard is due, which is only at the end of ranges."""
        while self._planner.settle():
            position = self._planner.position
            kept = {**position.shards, **self._place.position().shards}
            shards = {shard: kept[shard] for shard in position.shards}
            self._place = Place.of(replace(position, shards=shards))
            self._read_shards(self._place.position())
        at = self._planner.position
        self._place = self._place.settled_at(at.epoch, at.frontier_us)

    def _wait(self) -> Wait:
        found = self._planner.wait(clock_ms())
        if not self._left:
            return found
        shards = tuple(sorted(self._left))
        reason = f"progress announces rows of {', '.join(shards)} that are not readable yet"
        return Wait("; ".join(filter(None, (reason, found.reason))), (*shards, *found.shards))
