"""Reads the end of a partition, or a range of its offsets, also of many topics at once.

Commit and abort markers and the records of aborted transactions occupy offsets too, so the last
committed record may lie well before the end offset.

`commit_transaction` returns before its markers are written, so a commit becomes visible here a
moment later. After `init_transactions` no write of that transactional id is still in flight.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Self

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # public

from event_token.errors import Rebuild, Retry
from topics.kafka.client import (
    ClientConfig,
    Deadline,
    open_consumer,
    raise_unless_passing,
    retry_request,
)
from topics.kafka.errors import TOPIC_GONE, kafka_errors
from topics.kafka.record_parts import Part, PartJoiner, part_of

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
GONE_S: Final = 3.0

# Everything to be read is already there, so the end must be reported at once.
_FETCH_WAIT_MS: Final = 10


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as stored on Kafka; `timestamp_ms` is its CreateTime.

    Of its headers only those with a value. The offset of a record in parts is that of its last one.
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
                gone = before or Deadline(GONE_S)
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


def open_end_consumer(config: ClientConfig, fetch_bytes: int | None = None) -> Consumer:
    """Return a consumer that reports the end of a partition at once.

    `fetch_bytes`: of a partition in one fetch, unless a batch is larger (librdkafka: 1 MiB).
    """
    return open_consumer(config, fetch_wait_ms=_FETCH_WAIT_MS, fetch_bytes=fetch_bytes)


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
        """Yield the committed records with lower <= offset < upper; `upper` must be stable.

        Parts are joined; a record whose first ones retention has removed is not there any more.
        Raises what PartJoiner does.
        """
        joiner = PartJoiner(self._topic, self._config.record_bytes_max)
        for message in self._from_a_record(lower, upper):
            part = self._part_of(message)
            if part is None:
                joiner.check_closed(message.offset)
                value = message.value
            else:
                value = joiner.add(part, message.offset, message.key, message.value or b"")
            if not joiner.is_open and message.offset >= lower:
                yield message if part is None else replace(message, value=value, headers=())
        if joiner.is_open and (joiner.last_offset < upper or upper >= self.bounds()[1]):
            joiner.check_closed(upper)

    def _from_a_record(self, lower: int, upper: int) -> Iterator[StoredRecord]:
        """Return the messages up to `upper` from the first one on of the record at `lower`."""
        messages = self.messages(lower, upper)
        first = next(messages, None)
        part = None if first is None else self._part_of(first)
        if first is None:
            return iter(())
        if part is None or part.number == 1:
            return chain((first,), messages)
        begin = first.offset - part.number + 1  # parts have consecutive offsets
        if begin < self.bounds()[0]:
            begin += part.parts
        return self.messages(begin, upper)

    def _part_of(self, message: StoredRecord) -> Part | None:
        if not message.headers:
            return None
        return part_of(message.headers, f"{self._topic}, offset {message.offset}")

    def messages(self, lower: int, upper: int) -> Iterator[StoredRecord]:
        """Yield the same without joining parts: each message is a record, or a part of one."""
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
        for begin, end in windows_below(lower, upper):
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
    """Return whether nothing below a stable `upper` follows a record, or an end of partition.

    A leader that does not know the last stable offset yet reports an end of partition below
    `upper`; more records follow.
    """
    return offset_of(message) >= upper - (message.error() is None)


def next_message(
    consumer: Consumer,
    config: ClientConfig,
    deadline: Deadline,
    doing: str,
    returned: Collection[str] = (),
) -> Message:
    """Return the next record or end of partition; Retry when the deadline has expired.

    `returned`: names of errors to return, too.
    """
    brokers = config.brokers
    while True:
        with kafka_errors(doing, brokers):
            message = consumer.poll(min(_POLL_S, deadline.left_s))
        if message is not None:
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                return message
            if error.name() in returned:
                return message
            topic = message.topic()
            at = "" if topic is None or topic in doing else f", at {topic}"
            raise_unless_passing(error, f"{doing}{at}", config)
        if deadline.passed:
            raise Retry(f"{doing} (brokers {brokers}): not done in {deadline.seconds:g} s")


def windows_below(lower: int, upper: int) -> Iterator[tuple[int, int]]:
    """Yield [lower, upper) in parts in which to look for its last record, the last part first."""
    yield from _windows(lower, upper, _WINDOW_FIRST, _WINDOW_GROWTH)


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


# A new leader may take some seconds to learn the last stable offset.
STABLE_S_MAX: Final = 30.0
STABLE_POLL_S: Final = 0.1


def open_range(
    config: ClientConfig,
    topic: str,
    seconds: float,
    partition: int = 0,
    end: int | None = None,
    consumers: tuple[Consumer, Consumer] | None = None,
) -> tuple[int, int] | None:
    """Wait until all records of a partition are committed or aborted, then return None.

    If that takes longer than `seconds`, return the offset of the first open transaction and the
    end offset. `end`: of the records that matter; None: of all, as others write on. `consumers`:
    one that reads what is committed, and one that reads everything; both stay open.
    """
    if consumers is None:
        with both_consumers(config) as opened:
            return open_range(config, topic, seconds, partition, end, opened)
    committed, everything = consumers
    deadline = Deadline(seconds)
    while True:
        # In this order, so that no record that comes in between makes them equal by mistake.
        upper = partition_bounds(everything, config, topic, partition)[1] if end is None else end
        _, stable = partition_bounds(committed, config, topic, partition)
        if stable >= upper:
            return None
        if deadline.passed:
            return stable, upper
        time.sleep(STABLE_POLL_S)


@contextmanager
def both_consumers(config: ClientConfig) -> Iterator[tuple[Consumer, Consumer]]:
    """A consumer that reads what is committed, and one that reads everything; closed at the end."""
    with ExitStack() as opened:
        committed = open_end_consumer(config)
        opened.callback(committed.close)
        everything = open_consumer(config, read_committed=False)
        opened.callback(everything.close)
        yield committed, everything


def await_stable(config: ClientConfig, topic: str, seconds: float = STABLE_S_MAX) -> None:
    """Wait until all records of a topic are committed or aborted; Retry when that takes longer.

    An open transaction hides what was committed after it began, and a producer that resumed from
    there would write those records again.
    """
    found = open_range(config, topic, seconds)
    if found is not None:
        stable, end = found
        raise Retry(
            f"{topic}: offsets {stable} to {end} belong to an open transaction, but the "
            f"shard's producers are fenced: find its producer (kafka-transactions.sh "
            f"find-hanging --topic {topic}) and abort it"
        )


def await_readable(
    config: ClientConfig, topic: str, partition: int, seconds: float = STABLE_S_MAX
) -> None:
    """Wait until all that a partition holds now is committed or aborted; Retry after `seconds`.

    Others may go on writing. A transaction of another producer hides what was committed after it
    began.
    """
    everything = open_consumer(config, read_committed=False)
    try:
        _, end = partition_bounds(everything, config, topic, partition)
    finally:
        everything.close()
    found = open_range(config, topic, seconds, partition, end)
    if found is not None:
        raise Retry(
            f"{topic}[{partition}]: offset {found[0]} belongs to a transaction that has been open "
            f"for {seconds:g} s: its producer is slow, or died. Brokers abort it after its timeout "
            f"(kafka-transactions.sh find-hanging --topic {topic})"
        )


_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def bounds_of(
    admin: AdminClient, config: ClientConfig, topics: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """Return the first offset and the last stable offset of each topic that exists.

    Retry when no broker answers in time.
    """
    partitions = [TopicPartition(topic, 0) for topic in topics]
    return {topic: bounds for (topic, _), bounds in _bounds(admin, config, partitions).items()}


def partitions_with_records(
    admin: AdminClient, config: ClientConfig, partitions: Sequence[TopicPartition]
) -> dict[str, tuple[int, ...]]:
    """Return those of these partitions that hold committed records, by topic.

    Retry when no broker answers in time.
    """
    found: dict[str, tuple[int, ...]] = {}
    for (topic, partition), (first, last) in _bounds(admin, config, partitions).items():
        if first < last:
            found[topic] = (*found.get(topic, ()), partition)
    return found


def _bounds(
    admin: AdminClient, config: ClientConfig, partitions: Sequence[TopicPartition]
) -> dict[tuple[str, int], tuple[int, int]]:
    def ask(timeout_s: float) -> dict[tuple[str, int], tuple[int, int]]:
        first, last = (
            admin.list_offsets(
                dict.fromkeys(partitions, spec),
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=timeout_s,
            )
            for spec in (_EARLIEST, _LATEST)
        )
        found = {}
        for partition in partitions:
            try:
                bounds = first[partition].result().offset, last[partition].result().offset
            except KafkaException as error:
                if error.args[0].name() not in TOPIC_GONE:
                    raise
            else:
                found[partition.topic, partition.partition] = bounds
        return found

    if not partitions:
        return {}
    return retry_request(f"reading the offsets of {len(partitions)} topics", config, ask)


def read_ranges(
    consumer: Consumer,
    config: ClientConfig,
    ranges: Mapping[str, tuple[int, int]],
    timeout_s: float,
) -> Iterator[tuple[str, StoredRecord]]:
    """Yield the committed records of each topic with lower <= offset < upper, in their order.

    The uppers must be stable. The consumer must report ends of partitions, and is left without an
    assignment. Retry when this takes longer than `timeout_s`.
    """
    left = {topic: upper for topic, (lower, upper) in ranges.items() if lower < upper}
    if not left:
        return
    doing = f"reading the ends of {len(left)} topics"
    deadline = Deadline(timeout_s)
    try:
        with kafka_errors(doing, config.brokers):
            consumer.assign([TopicPartition(topic, 0, ranges[topic][0]) for topic in left])
        while left:
            message = next_message(consumer, config, deadline, doing)
            topic = str(message.topic())
            upper = left.get(topic)
            if upper is None:  # it has been read, and is written to
                continue
            if message.error() is None and offset_of(message) < upper:
                yield topic, stored_record(message)
            if is_last(message, upper):
                del left[topic]
    finally:
        consumer.unassign()
