"""Reads planned ranges of one shard log, to the last planned seq whatever EOF says.

Commit markers reach partitions one by one, so progress can be readable before its rows: the end
of a partition before the last planned seq means wait.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from confluent_kafka import Message

from topics.errors import LogGap, LogShrank, PositionTooOld, ReaderClosed, RowsNotReadable
from topics.kafka.client import ClientConfig
from topics.kafka.consumer import QUEUE_KBYTES_MAX, OffsetOutOfRangeError, StreamConsumer
from topics.kafka.deadline import Deadline
from topics.names import ShardTopics
from topics.reading.merge import RawRecord, SeqChecker
from topics.reading.planner import ShardRange
from topics.records.envelope import read_envelope, read_seq

# Markers follow each other within milliseconds, a broker's restart takes some seconds.
ROWS_WAIT_S: Final = 60.0
# How soon a reader notices that it is to close.
POLL_S: Final = 0.1
# Taken from librdkafka at a time: enough to make the call cheap.
TAKE_MAX: Final = 1_000
# A list of messages ends here, so that large records do not make large lists.
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024


class ShardLogReader:
    """Reads ranges of one shard log. Ranges that follow each other need no seek.

    No network before the first read. Only `stop` may be called from another thread.
    Each read checks every seq: LogGap or LogRepeat (Halt). PositionTooOld (Halt) when retention
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
        """Say what to read; `queue_kbytes_max` bounds what is fetched ahead."""
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
        """Begin to fetch ahead from a position; a read there finds its rows at hand."""
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
        """Yield the records of a range in order. It may be given up at any record."""
        for message in self._messages(part):
            value = message.value() or b""
            offset = message.offset() or 0
            _, seq, timestamp_us, last = read_envelope(value, self.topic, offset)
            self._check(seq, offset, part)
            yield RawRecord(
                timestamp_us,
                self.shard,
                offset,
                seq,
                last,
                message.timestamp()[1],
                message.key(),
                value,
            )

    def read_many(self, part: ShardRange, batch_rows: int) -> Iterator[list[Message]]:
        """Yield a range's Kafka messages, in lists of at most `batch_rows` and some megabytes.

        The seqs of the first and the last message of what Kafka's client gives at a time are
        checked here, the ones between by the caller, who decodes them.
        """
        self._begin(part)
        left = part.rows
        batch: list[Message] = []
        batch_bytes = 0
        while left > 0:
            if not self._taken:
                self._take(part)
            count = min(left, len(self._taken), batch_rows - len(batch))
            messages = [self._taken.popleft() for _ in range(count)]
            self._check_ends(messages, part)
            batch_bytes += sum(map(len, messages))
            batch += messages
            left -= count
            if left == 0 or len(batch) >= batch_rows or batch_bytes >= BATCH_BYTES_MAX:
                yield batch
                batch, batch_bytes = [], 0

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

    def _messages(self, part: ShardRange) -> Iterator[Message]:
        self._begin(part)
        for _ in range(part.rows):
            if not self._taken:
                self._take(part)
            yield self._taken.popleft()

    def _check(self, seq: int, offset: int, part: ShardRange, passed: int = 0) -> None:
        """Check a record that comes after `passed` others which the caller checks."""
        seqs = self._seqs
        if seqs is None:
            raise ReaderClosed(f"{self.topic}: the reader was closed")
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
                f"{self.topic}: seq {seq} lies at offset {offset}, its progress says below "
                f"{part.end_offset}: the log is not the one that progress speaks of",
            )
        self._next_offset = offset + 1

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
                    f"{self.topic}: progress promises seq {part.last_seq} below offset "
                    f"{part.end_offset}, but nothing from offset {self._next_offset} on became "
                    f"readable within {self._rows_wait_s:g} s. Is a broker down?",
                )

    def _pass_retention(
        self, consumer: StreamConsumer, part: ShardRange, error: OffsetOutOfRangeError
    ) -> None:
        """Go on at the log's start: offsets of markers alone may be gone too, the seq will tell."""
        start, end = consumer.bounds(self.topic)
        if self._next_offset > end:
            raise LogShrank(
                f"{self.topic}: offset {self._next_offset} (seq {part.first_seq} to "
                f"{part.last_seq}) is beyond the log's end {end}: the log was truncated or made "
                f"anew. Start again from earliest, and treat what lies between as lost",
            ) from error
        consumer.assign({self.topic: start})
        self._next_offset = start
        self._passed_retention = True

    def stop(self) -> None:
        """End a read that waits, from any thread: it raises ReaderClosed."""
        self._stopped = True

    def close(self) -> None:
        """Leave Kafka; nothing can be read any more."""
        self._stopped = True
        self._seqs = None
        self._taken.clear()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
