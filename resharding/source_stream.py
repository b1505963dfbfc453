"""The logs of a reshard's sources, merged by time: what an applier reads.

As a subscriber's stream (frontier and cut), but of named shards, and it goes on past the marks
of reshards: an applier has to bring its target up to END itself, and never hops.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from event_token import StreamPosition
from resharding.plan import range_of
from topics.codec import VEventCodec
from topics.delivery import Delivery, Place
from topics.kafka_client import ClientConfig
from topics.log_reader import ShardLogReader
from topics.progress import Progress
from topics.progress_feed import ProgressFeed, clock_ms
from topics.reading.merge import RawRecord, merge
from topics.reading.planner import Batch, Planner, Wait
from topics.schema_registry import open_schema_ids
from topics.vevent import VEvent

# Rows planned at once while there is a backlog: they are streamed, not held.
BATCH_ROWS_MAX: Final = 10_000
# Events made ready at once, and so the size of a target transaction under load: a commit costs
# about as much as 100 rows.
RUN_ROWS_MAX: Final = 1_000
# How soon a stream that waits gives its caller the word.
POLL_S: Final = 0.05


class _UnmarkedPlanner(Planner):
    """Plans past marks: they are records like any other here."""

    def observe(self, shard: str, progress: Progress, seen_at_ms: int) -> None:
        """Take in a progress record without its mark."""
        super().observe(shard, replace(progress, mark=None), seen_at_ms)


class SourceStream:
    """Events of the sources from a position on, in the merged order. Not for two threads.

    Errors are those of a subscriber: Halts of the reading core, Retry while brokers are away.
    """

    def __init__(
        self,
        start: StreamPosition,
        *,
        config: ClientConfig,
        registry_url: str | None,
        keyspace: str,
    ) -> None:
        """Say where to begin: the position names the shards. No network before `read`."""
        whole = range_of(start.shards)
        schema_ids = open_schema_ids(config, registry_url)
        self.waiting: Wait | None = None
        self._start = start
        self._place = Place.of(start)
        self._planner = _UnmarkedPlanner(start, whole)
        self._feed = ProgressFeed(config, keyspace, schema_ids)
        self._readers = {shard: ShardLogReader(config, keyspace, shard) for shard in start.shards}
        self._delivery = Delivery(VEventCodec(schema_ids), whole, None, start)
        self._batch: Batch | None = None
        self._records: Iterator[RawRecord] = iter(())
        self._rows_left = 0
        self._is_open = False

    def read(self, ready: deque[VEvent]) -> None:
        """Append the next events, at most RUN_ROWS_MAX, or wait for a moment.

        Each event knows the position after it.
        """
        if not self._is_open:
            self._open()
        if self._batch is None and not self._plan():
            self._feed.poll(self._planner, POLL_S)
            if not self._plan():
                return
        if self._rows_left > 0:
            try:
                self._rows_left -= self._delivery.run(
                    self._records, min(self._rows_left, RUN_ROWS_MAX), self._place, ready
                )
            finally:
                self._place = self._delivery.place
        if self._rows_left == 0 and self._batch is not None:
            batch, self._batch = self._batch, None
            self._delivery.end_batch()
            self._place = self._place.moved_to(batch.end)

    def _open(self) -> None:
        for shard, reader in self._readers.items():
            at = self._start.shards[shard]
            reader.seek(at.offset, at.seq + 1)
        self._is_open = True

    def _plan(self) -> bool:
        plan = self._planner.next_batch(clock_ms(), BATCH_ROWS_MAX)
        if isinstance(plan, Wait):
            self.waiting = plan
            return False
        self.waiting = None
        self._planner.advance(plan)
        self._batch = plan
        self._rows_left = plan.rows
        streams = [self._readers[shard].read(part) for shard, part in plan.ranges.items()]
        self._records = merge(streams, plan.frontier_us)
        return True

    @property
    def position(self) -> StreamPosition:
        """Where to go on after all that was made ready."""
        return self._place.position()

    def close(self) -> None:
        """Leave Kafka."""
        self._feed.close()
        for reader in self._readers.values():
            reader.close()
