"""The copy topic of a shard: what is asked of its producer, and how far each table has come.

Records are JSON; their keys are JSON lists, so that no name can be taken for another one:
`["table", database, table]` (written by the producer in the Kafka transaction of the rows that
it speaks of), `["request", id]` (written by whoever asks) and `["answer", id]` (the producer's, in
the transaction that carries the request out; the asker removes it).
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from event_token.errors import Retry
from topics.errors import CorruptRecord
from topics.kafka.client import REQUEST_TIMEOUT_S, ClientConfig, open_consumer, open_producer
from topics.kafka.deadline import Deadline
from topics.kafka.errors import kafka_error, kafka_errors
from topics.kafka.partition_reader import partition_bounds
from topics.names import ShardTopics

# The layout of the JSON; readers refuse another one than they know.
LAYOUT: Final = 1
# The end of a small compacted topic is reached in well under a second.
READ_S_MAX: Final = 60.0
_POLL_S: Final = 0.2
_BATCH: Final = 500


class CopyAction(str, Enum):
    """What can be asked for."""

    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


class CopyState(str, Enum):
    """Where the copy of a table stands."""

    COPYING = "copying"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether only a new start goes on from here."""
        return self not in {CopyState.COPYING, CopyState.PAUSED}


@dataclass(frozen=True, slots=True)
class TableCopy:
    """How far the copy of one table has come.

    `last_key`: the last key copied, as literals of the server, in the order of `key`. `rows`: rows
    written as READ; `rows_read`: these and the ones left out because the log had a newer change.
    `begun_us`: no READ of this copy is older. `rule`: the filter rule of the table, in words, that
    its rows went by. `note`: why it failed or was cancelled, or what holds it up.
    """

    database: str
    table: str
    copy_id: str
    state: CopyState
    begun_us: int
    updated_us: int
    where: str = ""
    rule: str = ""
    key: tuple[str, ...] = ()
    last_key: tuple[str, ...] = ()
    last_key_text: dict[str, str] = field(default_factory=dict)
    pieces: int = 0
    rows: int = 0
    rows_read: int = 0
    rows_estimated: int = 0
    rows_per_s: float = 0.0
    note: str = ""

    @property
    def name(self) -> str:
        """`database.table`."""
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """What is asked for. Without `tables` (`database.table`) all that it can apply to are meant."""

    action: CopyAction
    tables: tuple[str, ...] = ()
    where: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class CopyAnswer:
    """What became of a request: the tables it was carried out for, and all that stood against."""

    id: str
    tables: tuple[str, ...]
    problems: tuple[str, ...]


CopyRecord = TableCopy | CopyRequest | CopyAnswer


def record_key(record: CopyRecord) -> bytes:
    """The Kafka key of a record."""
    if isinstance(record, TableCopy):
        return _key("table", record.database, record.table)
    return _key("request" if isinstance(record, CopyRequest) else "answer", record.id)


def request_key(request_id: str) -> bytes:
    """The key of a request that is known by its id."""
    return _key("request", request_id)


def _key(*parts: str) -> bytes:
    return json.dumps(list(parts), ensure_ascii=False).encode()


def encode(record: CopyRecord) -> bytes:
    """The value of a record."""
    return json.dumps({"layout": LAYOUT, **asdict(record)}, ensure_ascii=False).encode()


def decode(key: bytes | None, value: bytes, where: str) -> CopyRecord:
    """The record in a Kafka record. CorruptRecord, naming `where`, when it is none."""
    try:
        kind = json.loads(key or b"[]")[0]
        fields: dict[str, Any] = json.loads(value)
        if fields.pop("layout") != LAYOUT:
            raise CorruptRecord(f"{where}: a layout that this release does not know")
        for name in ("tables", "problems", "key", "last_key"):
            if name in fields:
                fields[name] = tuple(fields[name])
        if kind == "table":
            return TableCopy(**{**fields, "state": CopyState(fields["state"])})
        if kind == "request":
            return CopyRequest(**{**fields, "action": CopyAction(fields["action"])})
        return CopyAnswer(**fields)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise CorruptRecord(f"{where}: no copy record: {error}") from error


class CopyFeed:
    """Follows a shard's copy topic and keeps what stands in it."""

    def __init__(self, config: ClientConfig, topics: ShardTopics) -> None:
        """Begin at the topic's beginning; nothing is read yet."""
        self.tables: dict[tuple[str, str], TableCopy] = {}
        self.requests: dict[str, CopyRequest] = {}
        self.answers: dict[str, CopyAnswer] = {}
        self._config = config
        self._topic = topics.copy
        self._consumer: Consumer = open_consumer(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def read_to_end(self) -> None:
        """Read all that is committed by now. Retry when that takes longer than READ_S_MAX."""
        start, end = partition_bounds(self._consumer, self._config, self._topic)
        doing = f"reading {self._topic}"
        with kafka_errors(doing, self._config.brokers):
            self._consumer.assign([TopicPartition(self._topic, 0, start)])
        deadline = Deadline(READ_S_MAX)
        while start < end:
            for offset in self._poll(_POLL_S):
                start = max(start, offset)
            if deadline.passed:
                raise Retry(f"{doing}: its end was not reached within {READ_S_MAX:g} s")

    def poll(self, timeout_s: float) -> None:
        """Take what has come since."""
        for _ in self._poll(timeout_s):
            pass

    def _poll(self, timeout_s: float) -> Iterator[int]:
        """Take what comes within that time; yield the offsets behind which nothing is missing."""
        doing = f"reading {self._topic}"
        with kafka_errors(doing, self._config.brokers):
            messages = self._consumer.consume(_BATCH, timeout_s)
        for message in messages:
            error = message.error()
            offset = message.offset()
            if error is None and offset is not None:
                self._take(message.key(), message.value(), offset)
                yield offset + 1
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                yield offset or 0
            elif error is not None:
                known = kafka_error(KafkaException(error), doing, self._config.brokers)
                if not isinstance(known, Retry):  # on those the consumer goes on by itself
                    raise known

    def _take(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        where = f"{self._topic}, offset {offset}"
        if value is None:
            kind, *names = json.loads(key or b"[null]")
            if kind == "request":
                self.requests.pop(names[0], None)
            elif kind == "answer":
                self.answers.pop(names[0], None)
            return
        record = decode(key, value, where)
        if isinstance(record, TableCopy):
            self.tables[record.database, record.table] = record
        elif isinstance(record, CopyRequest):
            self.requests[record.id] = record
        else:
            self.answers[record.id] = record

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()


def read_copies(config: ClientConfig, topics: ShardTopics) -> dict[tuple[str, str], TableCopy]:
    """How far each table of the shard has come."""
    with CopyFeed(config, topics) as feed:
        feed.read_to_end()
        return feed.tables


def ask(config: ClientConfig, topics: ShardTopics, request: CopyRequest) -> None:
    """Write a request for the shard's producer to carry out."""
    _write(config, topics, record_key(request), encode(request))


def forget_answer(config: ClientConfig, topics: ShardTopics, answer: CopyAnswer) -> None:
    """Remove an answer that was read."""
    _write(config, topics, record_key(answer), None)


def withdraw(config: ClientConfig, topics: ShardTopics, request: CopyRequest) -> None:
    """Remove a request that nobody has answered."""
    _write(config, topics, record_key(request), None)


def _write(config: ClientConfig, topics: ShardTopics, key: bytes, value: bytes | None) -> None:
    doing = f"writing to {topics.copy}"
    failures: list[KafkaError] = []
    producer = open_producer(config)
    with kafka_errors(doing, config.brokers):
        producer.produce(
            topics.copy,
            value,
            key,
            partition=0,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        left = producer.flush(REQUEST_TIMEOUT_S)
    if failures:
        raise kafka_error(KafkaException(failures[0]), doing, config.brokers)
    if left:
        raise Retry(f"{doing} (brokers {config.brokers}): no answer in {REQUEST_TIMEOUT_S:g} s")


def with_state(copy: TableCopy, state: CopyState, now_us: int, note: str = "") -> TableCopy:
    """The copy in another state."""
    return replace(copy, state=state, updated_us=now_us, note=note, rows_per_s=0.0)


def ask_and_wait(
    config: ClientConfig, topics: ShardTopics, request: CopyRequest, wait_s: float
) -> CopyAnswer:
    """Write a request and return the producer's answer.

    Retry when none comes within `wait_s`; then the request is withdrawn, unless the producer was
    just about to carry it out.
    """
    with CopyFeed(config, topics) as feed:
        feed.read_to_end()
        ask(config, topics, request)
        deadline = Deadline(wait_s)
        while request.id not in feed.answers:
            feed.poll(_POLL_S)
            if deadline.passed:
                withdraw(config, topics, request)
                raise Retry(
                    f"{topics.log}: no producer has answered within {wait_s:g} s; the request is "
                    "withdrawn. Does the shard's producer run?"
                )
        answer = feed.answers[request.id]
    forget_answer(config, topics, answer)
    return answer
