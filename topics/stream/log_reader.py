"""Reads planned ranges of one shard log, up to the last planned seq.

Commit markers reach partitions one by one, so progress may be readable before its rows: at the end
of the partition, the reader waits for the rest of the range.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from confluent_kafka import Message

from topics.errors import LogGap, LogShrank, PositionTooOld, ReaderClosed, RowsNotReadable
from topics.kafka.client import ClientConfig
from topics.kafka.consumer import QUEUE_KBYTES_MAX, OffsetOutOfRangeError, StreamConsumer
from topics.kafka.deadline import Deadline
from topics.names import ShardTopics
from topics.reading.merge import RawRecord, Run, SeqChecker, check_time
from topics.reading.planner import ShardRange
from topics.records.envelope import read_envelope, read_seq
from topics.records.record_decoder import RecordDecoder
from topics.records.run_reader import ANY_TIME, Expected, Rows, RunReader
from topics.records.vevent import VEvent

# Markers arrive within milliseconds of each other; a broker restart takes some seconds.
ROWS_WAIT_S: Final = 60.0
# How soon a reader notices `stop`.
POLL_S: Final = 0.1
# Messages per call to librdkafka: enough to amortise the call.
TAKE_MAX: Final = 1_000
# Events per run: those of a shard that wait for other shards are in memory.
RUN_ROWS_MAX: Final = 256
# The same of a run that is read for its records, which has no object for each row.
RECORD_RUN_ROWS_MAX: Final = TAKE_MAX
# Records of one shard log, and the offset of each.
Records = tuple[list[bytes], list[int]]


class ShardLogReader:
    """Reads ranges of one shard log. Consecutive ranges need no seek.

    No connection is made before the first read. Only `stop` may be called from other threads.
    LogGap or LogRepeat (Halt) when seqs are not consecutive, PositionTooOld (Halt) when retention
    has removed rows of the range, LogShrank (Halt) when the topic is gone or ends before them,
    RowsNotReadable (Retry) when they cannot be read within `rows_wait_s`.
    """

    def __init__(
        self,
        config: ClientConfig,
        keyspace: str,
        shard: str,
        *,
        rows_wait_s: float = ROWS_WAIT_S,
        queue_kbytes_max: int = QUEUE_KBYTES_MAX,
    ) -> None:
        """Name the shard; `queue_kbytes_max` bounds the prefetched records."""
        self.shard = shard
        self.topic = ShardTopics(keyspace, shard).log
        self._config = config
        self._rows_wait_s = rows_wait_s
        self._queue_kbytes_max = queue_kbytes_max
        self._consumer: StreamConsumer | None = None
        self._taken: deque[Message] = deque()
        self._seqs: SeqChecker | None = None
        self._next_offset = 0
        self._passed_retention = False
        self._stopped = False

    def seek(self, offset: int, next_seq: int) -> None:
        """Start prefetching at a position, so that a read there finds its rows."""
        if self._consumer is None:
            self._consumer = StreamConsumer(
                self._config, self.topic, queue_kbytes_max=self._queue_kbytes_max
            )
        self._consumer.assign({self.topic: offset})
        self._taken.clear()
        self._seqs = SeqChecker(self.topic, next_seq)
        self._next_offset = offset
        self._passed_retention = False

    def read(self, part: ShardRange) -> Iterator[RawRecord]:
        """Yield the records of a range in order; the caller may stop at any record."""
        self._begin(part)
        for _ in range(part.rows):
            if not self._taken:
                self._take(part)
            yield self._checked(self._taken.popleft(), part)

    def runs(
        self, part: ShardRange, into: RunReader, decoder: RecordDecoder, frontier_us: int | None
    ) -> Iterator[Run[Rows]]:
        """Yield the rows of a range in order, in runs of what can be read without waiting.

        `frontier_us`: ProgressBroken when times decrease or reach it; None: of any time. An error
        is raised once the rows before it have been yielded.
        """
        self._begin(part)
        left, before_us = part.rows, 0
        to_us = ANY_TIME if frontier_us is None else frontier_us
        rows_max = RECORD_RUN_ROWS_MAX if into.for_records else RUN_ROWS_MAX
        while left > 0:
            if not self._taken:
                self._take(part)
            messages = list(islice(self._taken, min(left, rows_max)))
            count = into.read(
                [message.value() or b"" for message in messages],
                [message.offset() or 0 for message in messages],
                Expected(part.last_seq - left + 1, part.end_offset, before_us, to_us),
            )
            self._passed(messages[:count], part, left)
            left -= count
            if count == 0:
                into.add(self._odd_event(part, decoder, before_us, frontier_us))
                left -= 1
            before_us = into.times_us[-1]
            yield into.rows, into.times_us

    def _passed(self, messages: Sequence[Message], part: ShardRange, left: int) -> None:
        """Go past messages whose seqs and offsets are as expected."""
        if not messages:
            return
        self._pop(len(messages))
        self._open_seqs().next_seq = part.last_seq - left + 1 + len(messages)
        self._passed_retention = False
        self._next_offset = (messages[-1].offset() or 0) + 1

    def _odd_event(
        self,
        part: ShardRange,
        decoder: RecordDecoder,
        before_us: int,
        frontier_us: int | None,
    ) -> VEvent:
        """Return the event of a record that is not a plain row, or raise what is wrong with it."""
        record = self._checked(self._taken.popleft(), part)
        if frontier_us is not None:
            check_time(record, before_us, frontier_us)
        return decoder.decode(record.value, self.shard, record.offset)

    def _checked(self, message: Message, part: ShardRange) -> RawRecord:
        """Return a record whose seq and offset are those expected."""
        value = message.value() or b""
        offset = message.offset() or 0
        _, seq, timestamp_us, last = read_envelope(value, self.topic, offset)
        self._check(seq, offset, part)
        return RawRecord(
            timestamp_us,
            self.shard,
            offset,
            seq,
            last,
            message.timestamp()[1],
            message.key(),
            value,
        )

    def ready(self, part: ShardRange) -> int:
        """Return how many records at the beginning of a range can be read without waiting."""
        self._begin(part)
        if not self._taken and self._consumer is not None:
            try:
                self._taken.extend(self._consumer.take(0, TAKE_MAX))
            except OffsetOutOfRangeError as error:
                self._pass_retention(self._consumer, part, error)
        return min(len(self._taken), part.rows)

    def read_many(self, part: ShardRange, rows_max: int, bytes_max: int) -> Iterator[Records]:
        """Yield the records of a range in lists of at most `rows_max` and `bytes_max`.

        A record that is larger makes a list of its own. Of each chunk that Kafka's client returns,
        the seqs of the first and the last message are checked here; the caller, which decodes all
        of them, checks the rest.
        """
        self._begin(part)
        left, size = part.rows, 0
        records: list[bytes] = []
        offsets: list[int] = []
        while left > 0:
            if not self._taken:
                self._take(part)
            messages = self._pop(min(left, rows_max - len(records)))
            self._check_ends(messages, part)
            left -= len(messages)
            values = [message.value() or b"" for message in messages]
            chunk_offsets = [message.offset() or 0 for message in messages]
            chunk_size = sum(map(len, values))
            if size + chunk_size <= bytes_max:
                records += values
                offsets += chunk_offsets
                size += chunk_size
            else:
                for value, offset in zip(values, chunk_offsets, strict=True):
                    if records and size + len(value) > bytes_max:
                        yield records, offsets
                        records, offsets, size = [], [], 0
                    records.append(value)
                    offsets.append(offset)
                    size += len(value)
            if left == 0 or len(records) >= rows_max:
                yield records, offsets
                records, offsets, size = [], [], 0

    def _pop(self, count: int) -> list[Message]:
        """Remove and return up to `count` of the messages at hand."""
        taken = self._taken
        if count >= len(taken):
            messages = list(taken)
            taken.clear()
            return messages
        return [taken.popleft() for _ in range(count)]

    def _check_ends(self, messages: list[Message], part: ShardRange) -> None:
        self._check_one(messages[0], part)
        if len(messages) > 1:
            self._check_one(messages[-1], part, passed=len(messages) - 2)

    def _check_one(self, message: Message, part: ShardRange, *, passed: int = 0) -> None:
        seq = read_seq(message.value() or b"", self.topic, message.offset())
        self._check(seq, message.offset() or 0, part, passed)

    def _begin(self, part: ShardRange) -> None:
        if part.rows > 0 and (self._seqs is None or self._seqs.next_seq != part.first_seq):
            self.seek(part.start_offset, part.first_seq)

    def _check(self, seq: int, offset: int, part: ShardRange, passed: int = 0) -> None:
        """Check a record that follows `passed` others, which the caller checks."""
        seqs = self._open_seqs()
        if self._passed_retention and seq > seqs.next_seq:
            raise PositionTooOld(
                f"{self.topic}: retention has removed seq {seqs.next_seq} to {seq - 1}; the log "
                f"begins with seq {seq} at offset {offset}. Start again from earliest",
            )
        self._passed_retention = False
        seqs.next_seq += passed
        seqs.check(seq, offset)
        if offset >= part.end_offset:
            raise LogGap(
                f"{self.topic}: seq {seq} is at offset {offset}, but according to its progress "
                f"below {part.end_offset}: progress describes another log",
            )
        self._next_offset = offset + 1

    def _open_seqs(self) -> SeqChecker:
        if self._seqs is None:
            raise ReaderClosed(f"{self.topic}: the reader was closed")
        return self._seqs

    def _take(self, part: ShardRange) -> None:
        """Wait for more messages."""
        deadline = Deadline(self._rows_wait_s)
        while not self._taken:
            if self._stopped or self._consumer is None:
                raise ReaderClosed(f"{self.topic}: the reader was closed")
            try:
                self._taken.extend(self._consumer.take(POLL_S, TAKE_MAX))
            except OffsetOutOfRangeError as error:
                self._pass_retention(self._consumer, part, error)
            if deadline.passed and not self._taken:
                raise RowsNotReadable(
                    f"{self.topic}: progress announces seq {part.last_seq} below offset "
                    f"{part.end_offset}, but nothing from offset {self._next_offset} on became "
                    f"readable within {self._rows_wait_s:g} s. Is a broker down?",
                )

    def _pass_retention(
        self, consumer: StreamConsumer, part: ShardRange, error: OffsetOutOfRangeError
    ) -> None:
        """Continue at the log start; the next seq shows whether only markers were removed."""
        start, end = consumer.bounds(self.topic)
        if self._next_offset > end:
            raise LogShrank(
                f"{self.topic}: offset {self._next_offset} (seq {part.first_seq} to "
                f"{part.last_seq}) is beyond the log's end {end}: the log was truncated or "
                f"recreated. Start again from earliest, and treat the records between as lost",
            ) from error
        consumer.assign({self.topic: start})
        self._next_offset = start
        self._passed_retention = True

    def stop(self) -> None:
        """End a waiting read, from any thread: it raises ReaderClosed."""
        self._stopped = True

    def close(self) -> None:
        """Close the consumer; nothing can be read afterwards."""
        self._stopped = True
        self._seqs = None
        self._taken.clear()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
