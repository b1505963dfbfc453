"""One run of a merged stream: plans, reads the shard logs and orders their events."""

from collections.abc import Callable
from typing import Final

from event_token import StreamPosition
from topics.reading.followed_shards import Wait
from topics.reading.merge import RunMerge
from topics.reading.planner import Batch, Planner
from topics.records.record_decoder import RecordDecoder
from topics.records.run_reader import Rows
from topics.stream.delivery import Delivery
from topics.stream.log_reader import ShardLogReader
from topics.stream.places import Place, Ready
from topics.stream.progress_feed import ProgressFeed, clock_ms
from topics.stream.shard_logs import ShardLogs

# Rows per batch while there is a backlog. They are streamed, not buffered; the bound limits the
# ticks that a plan iterates over.
BATCH_ROWS_MAX: Final = 10_000


class MergedStream:
    """One run of the stream: planner, consumers and their positions."""

    def __init__(
        self,
        start: StreamPosition,
        *,
        run_rows_max: int,
        poll_s: float,
        planner: Planner,
        feed: ProgressFeed,
        open_reader: Callable[[str], ShardLogReader],
        decoder: RecordDecoder,
        delivery: Delivery,
        for_records: bool = False,
        with_images: bool = False,
    ) -> None:
        """Begin at a position, which names the shards. No connection is made before `read`.

        `run_rows_max`: events made ready at a time. `poll_s`: after which a waiting `read` returns.
        `for_records`, `with_images`: as of `RunReader`.
        """
        self.start = start
        self._run_rows_max = run_rows_max
        self._poll_s = poll_s
        self._place = Place.of(start)  # after the last event made ready
        self.waiting: Wait | None = None
        self._planner = planner
        self._feed = feed
        self._logs = ShardLogs(
            open_reader, decoder, for_records=for_records, with_images=with_images
        )
        self._delivery = delivery
        self._batch: Batch | None = None
        self._merge: RunMerge[Rows] = RunMerge({})
        self._rows_left = 0

    read_us: Final = None  # see UnmergedStream: here the frontier tells it for all shards

    @property
    def position(self) -> StreamPosition:
        """The position after the last event made ready."""
        return self._place.position()

    @property
    def place(self) -> Place:
        """The same, as a value whose position is built on demand."""
        return self._place

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

    def _read_shards(self, position: StreamPosition) -> None:
        self._logs.follow(position)
        self._delivery.read_shards(position.shards)

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

    def stop(self) -> None:
        """End a wait, from any thread."""
        self._logs.stop()

    def close(self) -> None:
        """Close all consumers."""
        self._feed.close()
        self._logs.close()
