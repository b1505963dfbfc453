"""One run of an unmerged stream: each shard log is read and delivered as it comes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from event_token import StreamPosition
from topics.reading.followed_shards import Wait
from topics.reading.planner import ShardRange
from topics.reading.unmerged import UnmergedPlanner
from topics.records.record_decoder import RecordDecoder
from topics.stream.delivery import Delivery
from topics.stream.log_reader import ShardLogReader
from topics.stream.places import Place, Ready
from topics.stream.progress_feed import ProgressFeed, clock_ms
from topics.stream.shard_logs import ShardLogs

# Rows per range of a shard with a backlog, as in a merged stream's batches.
RANGE_ROWS_MAX: Final = 10_000
# Wait for rows whose progress is readable already: markers reach partitions one by one, within
# milliseconds, and the other shards' rows may come first.
UNREADABLE_POLL_S: Final = 0.005


class UnmergedStream:
    """One run of the stream: planner, consumers and their positions.

    Nothing here waits for one shard: the rows of a shard whose broker does not answer are asked
    for again at the next `read`, while those of the others are delivered.
    """

    def __init__(
        self,
        start: StreamPosition,
        *,
        run_rows_max: int,
        poll_s: float,
        planner: UnmergedPlanner,
        feed: ProgressFeed,
        open_reader: Callable[[str], ShardLogReader],
        decoder: RecordDecoder,
        delivery: Delivery,
        for_records: bool = False,
    ) -> None:
        """Begin at a position, which names the shards. No connection is made before `read`.

        `run_rows_max`: events made ready at a time per shard. `poll_s`: after which a waiting
        `read` returns. `for_records`: as of `RunReader`.
        """
        self.start = start
        self.waiting: Wait | None = None
        self._run_rows_max = run_rows_max
        self._poll_s = poll_s
        self._place = Place.of(start)  # after the last event made ready
        self._planner = planner
        self._feed = feed
        self._logs = ShardLogs(open_reader, decoder, for_records=for_records)
        self._delivery = delivery
        self._left: dict[str, ShardRange] = {}  # what is planned and not yet made ready

    @property
    def position(self) -> StreamPosition:
        """The position after the last event made ready."""
        return self._place.position()

    @property
    def place(self) -> Place:
        """The same, as a value whose position is built on demand."""
        return self._place

    @property
    def read_us(self) -> dict[str, int]:
        """For each shard, the time before which it has been read."""
        return self._planner.read_us()

    @property
    def heads_us(self) -> dict[str, int]:
        """The head of each shard, 0 while it is unknown."""
        return self._planner.heads_us()

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

    def _read_shards(self, position: StreamPosition) -> None:
        self._logs.follow(position)
        self._delivery.read_shards(position.shards)

    def _wait(self) -> Wait:
        found = self._planner.wait(clock_ms())
        if not self._left:
            return found
        shards = tuple(sorted(self._left))
        reason = f"progress announces rows of {', '.join(shards)} that are not readable yet"
        return Wait("; ".join(filter(None, (reason, found.reason))), (*shards, *found.shards))

    def stop(self) -> None:
        """End a wait, from any thread."""
        self._logs.stop()

    def close(self) -> None:
        """Close all consumers."""
        self._feed.close()
        self._logs.close()
