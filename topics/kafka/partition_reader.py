"""Reads the end of a partition, or a range of its offsets.

Commit and abort markers and the records of aborted transactions occupy offsets too, so the last
committed record may lie well before the end offset.

`commit_transaction` returns before its markers are written, so a commit becomes visible here a
moment later. After `init_transactions` no write of that transactional id is still in flight.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from event_token.errors import Rebuild, Retry
from topics.kafka.client import ClientConfig, open_consumer
from topics.kafka.deadline import Deadline
from topics.kafka.errors import TOPIC_GONE, kafka_error, kafka_errors
from topics.kafka.requests import retry_request

# The first window covers the last few transactions of a quiet shard. Each further one is larger, so
# that a long aborted transaction costs a handful of reads and no offset is read twice.
_WINDOW_FIRST: Final = 64
_WINDOW_GROWTH: Final = 16
# Where a reader goes back until it has found something: at most this many times too much is read.
_WINDOW_BACK_GROWTH: Final = 4
# Records held at a time where all are read backwards.
_BACKWARDS_WINDOW: Final = 1024

# An aborted transaction of millions of rows may follow the last committed record.
TAIL_TIMEOUT_S: Final = 120.0

_POLL_S: Final = 0.2

# A broker that has just started may not know its topics yet.
_GONE_S: Final = 3.0

# Everything to be read is already there, so the end must be reported at once.
_FETCH_WAIT_MS: Final = 10


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as stored on Kafka; `timestamp_ms` is its CreateTime.

    Of its headers only those with a value.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Tail:
    """A partition's offsets [start_offset, end_offset) and its last committed record, if any.

    `end_offset` is the last stable offset; open transactions begin there.
    """

    start_offset: int
    end_offset: int
    last: StoredRecord | None


def read_tail(
    config: ClientConfig,
    topic: str,
    partition: int = 0,
    timeout_s: float = TAIL_TIMEOUT_S,
    consumer: Consumer | None = None,
) -> Tail:
    """Return the partition's bounds and its last committed record.

    `consumer` as in PartitionReader. UsageError when the topic does not exist, Retry when the
    broker does not answer in time.
    """
    with PartitionReader(config, topic, partition, timeout_s, consumer) as reader:
        start, end = reader.bounds()
        return Tail(start, end, reader.last_between(start, end))


def read_last_committed(
    config: ClientConfig,
    topic: str,
    partition: int = 0,
    timeout_s: float = TAIL_TIMEOUT_S,
) -> StoredRecord | None:
    """Return the last committed record of a partition, None when there is none."""
    return read_tail(config, topic, partition, timeout_s).last


def read_to_end(
    config: ClientConfig,
    topic: str,
    start_offset: int | None = None,
    partition: int = 0,
    timeout_s: float = TAIL_TIMEOUT_S,
) -> Iterator[StoredRecord]:
    """Yield the committed records from `start_offset` (None: the first) to the current end.

    Offsets below the log start are skipped. UsageError when the topic does not exist,
    Retry when the end is not reached within `timeout_s`.
    """
    with PartitionReader(config, topic, partition, timeout_s) as reader:
        start, end = reader.bounds()
        lower = start if start_offset is None else max(start, start_offset)
        yield from reader.records(lower, end)


def partition_bounds(
    consumer: Consumer,
    config: ClientConfig,
    topic: str,
    partition: int = 0,
) -> tuple[int, int]:
    """Return the first offset and the last stable offset of a partition.

    A topic does not exist only if brokers have said so for some seconds. librdkafka says the same
    without them when it has lost its last connection.
    """
    gone: Deadline | None = None

    def ask(timeout_s: float) -> tuple[int, int] | None:
        nonlocal gone
        try:
            return consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=timeout_s, cached=False
            )
        except KafkaException as error:
            if error.args[0].name() not in TOPIC_GONE:
                raise
            before, gone = gone, None
            if _brokers_lack(consumer, topic, partition, timeout_s):
                gone = before or Deadline(_GONE_S)
                if gone.passed:
                    raise
            return None

    return retry_request(f"reading the offsets of {topic}[{partition}]", config, ask)


def _brokers_lack(consumer: Consumer, topic: str, partition: int, timeout_s: float) -> bool:
    """Return whether the brokers answer that there is no such partition."""
    found = consumer.list_topics(topic, timeout=timeout_s).topics[topic]
    if found.error is not None:
        return found.error.name() in TOPIC_GONE
    return partition not in found.partitions


def open_end_consumer(config: ClientConfig) -> Consumer:
    """Return a consumer that reports the end of a partition at once."""
    return open_consumer(config, fetch_wait_ms=_FETCH_WAIT_MS)


class PartitionReader:
    """Reads one partition, with one time budget for everything.

    A consumer that is given stays open afterwards, without an assignment: opening one costs some
    round trips.
    """

    def __init__(
        self,
        config: ClientConfig,
        topic: str,
        partition: int,
        timeout_s: float,
        consumer: Consumer | None = None,
    ) -> None:
        self._config = config
        self._topic = topic
        self._partition = partition
        self._deadline = Deadline(timeout_s)
        self._is_kept = consumer is not None
        self._consumer = consumer or open_end_consumer(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._is_kept:
            self._consumer.unassign()  # it would go on to ask for records
        else:
            self._consumer.close()

    def bounds(self) -> tuple[int, int]:
        """Return the first offset and the last stable one."""
        return partition_bounds(self._consumer, self._config, self._topic, self._partition)

    def records(self, lower: int, upper: int) -> Iterator[StoredRecord]:
        """Yield the committed records with lower <= offset < upper; `upper` must be stable."""
        if lower >= upper:
            return
        doing = f"reading {self._topic}[{self._partition}] from offset {lower} to {upper}"
        with kafka_errors(doing, self._config.brokers):
            self._consumer.assign([TopicPartition(self._topic, self._partition, lower)])
        while True:
            message = next_message(self._consumer, self._config, self._deadline, doing)
            if message.error() is None and offset_of(message) < upper:
                yield stored_record(message)
            if is_last(message, upper):
                return

    def last_between(self, lower: int, upper: int) -> StoredRecord | None:
        """Return the last committed record with lower <= offset < upper; `upper` must be stable."""
        for begin, end in _windows(lower, upper, _WINDOW_FIRST, _WINDOW_GROWTH):
            last = None
            for record in self.records(begin, end):
                last = record
            if last is not None:
                return last
        return None

    def windows_back(self) -> Iterator[Iterator[StoredRecord]]:
        """Yield the committed records that the partition has now in windows, the newest first.

        A window begins with its oldest record, so that none has to be held. Each is larger than the
        one before: of what is needed, little more than the same amount is read again.
        """
        for begin, end in _windows(*self.bounds(), _WINDOW_FIRST, _WINDOW_BACK_GROWTH):
            yield self.records(begin, end)

    def newest_first(self) -> Iterator[StoredRecord]:
        """Yield the committed records that the partition has now, the newest first."""
        for begin, end in _windows(*self.bounds(), _BACKWARDS_WINDOW, 1):
            yield from reversed(list(self.records(begin, end)))


def is_last(message: Message, upper: int) -> bool:
    """Tell whether after a record, or an end of partition, nothing below a stable `upper` follows.

    A leader that does not know the last stable offset yet reports an end of partition below
    `upper`; more records follow.
    """
    return offset_of(message) >= upper - (message.error() is None)


def next_message(
    consumer: Consumer, config: ClientConfig, deadline: Deadline, doing: str
) -> Message:
    """Return the next record or end of partition; Retry when the deadline has expired."""
    brokers = config.brokers
    while True:
        with kafka_errors(doing, brokers):
            message = consumer.poll(min(_POLL_S, deadline.left_s))
        if message is not None:
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                return message
            known = kafka_error(error, doing, brokers)
            if not isinstance(known, Retry):  # the consumer recovers from these by itself
                raise known
        if deadline.passed:
            raise Retry(f"{doing} (brokers {brokers}): not done in {deadline.seconds:g} s")


def _windows(lower: int, upper: int, first: int, growth: int) -> Iterator[tuple[int, int]]:
    """Yield [lower, upper) in parts, the last part first; each next one is `growth` times as large.

    `first`: offsets in the first of them.
    """
    window = first
    while upper > lower:
        begin = max(lower, upper - window)
        yield begin, upper
        upper, window = begin, window * growth


def offset_of(message: Message) -> int:
    """Return the offset of a record, or of an end of partition."""
    offset = message.offset()
    if offset is None:
        raise Rebuild("a consumer returned a message without an offset")
    return offset


def stored_record(message: Message) -> StoredRecord:
    """Return a record without what belongs to the client."""
    _, timestamp_ms = message.timestamp()
    found = dict(message.headers() or ())
    headers = tuple((name, value) for name, value in found.items() if isinstance(value, bytes))
    return StoredRecord(offset_of(message), timestamp_ms, message.key(), message.value(), headers)
