"""Searches the progress topic of a shard: by time, by position, and at its ends."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Self

from confluent_kafka import KafkaException, TopicPartition

from event_token import ShardPosition
from topics.errors import LogShrank
from topics.kafka.client import ClientConfig, open_consumer
from topics.kafka.errors import TOPIC_GONE
from topics.kafka.partition_reader import (
    TAIL_TIMEOUT_S,
    PartitionReader,
    StoredRecord,
    partition_bounds,
    read_tail,
)
from topics.kafka.requests import retry_request
from topics.names import ShardTopics
from topics.progress.cells import begins_us, ordered_from_seq
from topics.progress.codec import decode_progress
from topics.progress.record import CLOCK_AHEAD_US_MAX, MarkKind, Progress
from topics.records.envelope import read_envelope
from topics.records.schema_ids import SchemaIds
from topics.records.vevent import TYPES_BY_INDEX, EventType

# Steps back grow, so that a position far behind costs a handful of reads.
_STEP_FIRST: Final = 64
_STEP_GROWTH: Final = 8

_START_AGAIN: Final = "Start again from earliest, and treat the records between as lost"


@dataclass(frozen=True, slots=True)
class ProgressAt:
    """A progress record and its offset in the progress topic."""

    offset: int
    progress: Progress


class ProgressHistory:
    """The progress topic of one shard, as it is on Kafka now. A context manager.

    UsageError when the topic does not exist, Retry when no broker answers in time.
    """

    def __init__(
        self, config: ClientConfig, keyspace: str, shard: str, schema_ids: SchemaIds
    ) -> None:
        """Open a consumer; nothing is read."""
        self.topics = ShardTopics(keyspace, shard)
        self._config = config
        self._schema_ids = schema_ids
        self._consumer = open_consumer(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._consumer.close()

    def exists(self) -> bool:
        """Tell whether the progress topic exists."""
        topic = self.topics.progress
        found = retry_request(
            f"looking for topic {topic}",
            self._config,
            lambda timeout_s: self._consumer.list_topics(topic, timeout=timeout_s),
        )
        error = found.topics[topic].error
        return error is None or error.name() not in TOPIC_GONE

    def log_start(self) -> int:
        """Return the first offset that the shard log still has."""
        return self._bounds(self.topics.log)[0]

    def last(self) -> ProgressAt | None:
        """Return the newest record."""
        record = read_tail(self._config, self.topics.progress).last
        return None if record is None else self._decoded(record.offset, record.value)

    def records(self, start_offset: int = 0) -> Iterator[ProgressAt]:
        """Yield the records from an offset of the progress topic to its current end."""
        with PartitionReader(self._config, self.topics.progress, 0, TAIL_TIMEOUT_S) as reader:
            start, end = reader.bounds()
            for record in reader.records(max(start, start_offset), end):
                yield self._decoded(record.offset, record.value)

    def offset_for_time(self, time_us: int) -> int:
        """Return an offset from which all progress of records of that time or later follows.

        The head (watermark) of the record there is so much older that everything below is older
        than the time, unless it is the first record of the topic.
        """
        wanted_us = max(0, time_us - CLOCK_AHEAD_US_MAX)
        return self._step_back(wanted_us, lambda progress: progress.head_us <= wanted_us)

    def offset_for_position(self, at: ShardPosition, frontier_us: int) -> int:
        """Return the offset from which a planner at a position with this frontier can continue.

        A reader positioned right after a mark must see that mark again, no matter how old it is:
        after an END nothing else tells that the shard has ended.
        """
        wanted_us = max(0, frontier_us - CLOCK_AHEAD_US_MAX)
        first_seq_max = at.seq + (not self._is_behind_mark(at))

        def is_early(progress: Progress) -> bool:
            known_from = ordered_from_seq(progress)
            return known_from <= at.seq + 1 and progress.first_seq <= first_seq_max

        return self._step_back(wanted_us, is_early)

    def check_same_log(self, at: ShardPosition, frontier_us: int) -> None:
        """Raise LogShrank when the log is another one than that of a position, or ends before it.

        A topic that was deleted and filled again may have other records under the same seqs and
        offsets: then the time of its first record tells, unless retention has removed that, or the
        position has no token. A log that `topics reset` has emptied never takes an offset again.
        """
        if at.seq == 0:
            self._check_unread(at, frontier_us)
            return
        topic = self.topics.log
        with self._open_log() as reader:
            start, end = reader.bounds()
            first = next(reader.records(start, end), None)
            # Progress may be readable before its rows. The log's reader waits for them, or stops.
            is_readable = at.offset <= end
            below = reader.last_between(start, at.offset) if is_readable else None
        last = self.last()
        ends_at = 0 if last is None else last.progress.last_seq
        if ends_at < at.seq:
            found = f"it ends with seq {ends_at}"
        elif below is not None and self._seq_and_time(below)[0] != at.seq:
            found = f"seq {self._seq_and_time(below)[0]} is the last one below that offset"
        elif is_readable and not below and first and self._seq_and_time(first)[0] <= at.seq:
            found = f"it begins with seq {self._seq_and_time(first)[0]} at offset {first.offset}"
        else:
            self._check_first(at, first)
            return
        raise LogShrank(
            f"{topic}: the position has read seq {at.seq} below offset {at.offset}, but {found}: "
            f"the log was recreated. {_START_AGAIN}"
        )

    def _check_unread(self, at: ShardPosition, frontier_us: int) -> None:
        """Raise LogShrank when a log of which nothing was read was started over since.

        A position at a log's beginning has a frontier that is not older than the log.
        """
        if at.offset >= self.log_start():
            return
        first = next(self.records(), None)
        first_us = None if first is None else begins_us(first.progress)
        if first_us is not None and first_us > frontier_us:
            raise LogShrank(
                f"{self.topics.log}: the position has read nothing of it up to {frontier_us} us, "
                f"and it begins at {first_us} us: the log was recreated. {_START_AGAIN}"
            )

    def _check_first(self, at: ShardPosition, first: StoredRecord | None) -> None:
        read_us = None if at.token is None else at.token.timestamp_us
        if first is None or read_us is None:
            return  # the reader of the log reports a log without records
        seq, timestamp_us = self._seq_and_time(first)
        if seq == 1 and timestamp_us > read_us:
            raise LogShrank(
                f"{self.topics.log}: its first record, of {timestamp_us} us, is newer than what "
                f"the position has read, up to {read_us} us: the log was recreated. {_START_AGAIN}"
            )

    def _seq_and_time(self, record: StoredRecord) -> tuple[int, int]:
        value = record.value or b""
        _, seq, timestamp_us, _ = read_envelope(value, self.topics.log, record.offset)
        return seq, timestamp_us

    def _is_behind_mark(self, at: ShardPosition) -> bool:
        """Tell whether the last record below a position is a mark; True where it is not readable.

        Commit markers and aborted transactions may lie between that record and the position: a cut
        is at the record that follows.
        """
        if at.seq == 0:
            return False
        with self._open_log() as reader:
            start, end = reader.bounds()
            below = reader.last_between(start, min(at.offset, end))
        if below is None:
            return True  # retention has removed it
        type_index, seq, _, _ = read_envelope(below.value or b"", self.topics.log, below.offset)
        # Progress may be readable before its rows: then an earlier record is the last one.
        return seq != at.seq or TYPES_BY_INDEX[type_index] is EventType.JOURNAL

    def mark_of(self, kind: MarkKind, reshard_id: str, hop_time_us: int) -> ProgressAt | None:
        """Return the record with the END or BEGIN of a switched reshard, None if there is none.

        END may lie long before the hop time if that of another source came much later.
        """
        offset, upper = self.offset_for_time(hop_time_us), None
        step = _STEP_FIRST
        while True:
            for found in self.records(offset):
                if upper is not None and found.offset >= upper:
                    break
                mark = found.progress.mark
                if mark is not None and (mark.kind, mark.reshard_id) == (kind, reshard_id):
                    return found
                if kind is MarkKind.END and found.progress.head_us > hop_time_us:
                    break
            if kind is MarkKind.BEGIN or offset == 0:
                return None
            upper, offset = offset, max(0, offset - step)
            step *= _STEP_GROWTH

    def reaches_back_to(self, time_us: int) -> bool:
        """Tell whether all progress of records of that time or later is still there."""
        first = next(self.records(self.offset_for_time(time_us)), None)
        long_ago_us = time_us - CLOCK_AHEAD_US_MAX
        if first is None or first.progress.head_us <= long_ago_us:
            return True
        first_us = begins_us(first.progress)
        return first_us is not None and first_us <= time_us

    def _step_back(self, wanted_us: int, is_early: Callable[[Progress], bool]) -> int:
        """Step back from the first record with that head until one is early enough."""
        topic = self.topics.progress
        start, end = self._bounds(topic)
        offset = max(start, min(end, self._lower_bound(topic, wanted_us // 1_000, end)))
        step = _STEP_FIRST
        while offset > start:
            first = next(self.records(offset), None)
            if first is not None and is_early(first.progress):
                break
            offset = max(start, offset - step)
            step *= _STEP_GROWTH
        return offset

    def _bounds(self, topic: str) -> tuple[int, int]:
        return partition_bounds(self._consumer, self._config, topic)

    def _open_log(self) -> PartitionReader:
        return PartitionReader(self._config, self.topics.log, 0, TAIL_TIMEOUT_S)

    def _lower_bound(self, topic: str, timestamp_ms: int, end: int) -> int:
        # Kafka matches commit markers too, which carry the broker's clock: it may be early.
        def request(timeout_s: float) -> int:
            wanted = TopicPartition(topic, 0, timestamp_ms)
            [found] = self._consumer.offsets_for_times([wanted], timeout=timeout_s)
            if found.error is not None:
                raise KafkaException(found.error)
            return found.offset

        offset = retry_request(f"looking up an offset of {topic} by time", self._config, request)
        return offset if offset >= 0 else end

    def _decoded(self, offset: int, value: bytes | None) -> ProgressAt:
        where = f"{self.topics.progress}, offset {offset}"
        return ProgressAt(offset, decode_progress(value, self._schema_ids, where))
