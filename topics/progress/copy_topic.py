"""The copy topic of a shard: requests to its producer, the progress of each table's copy, a claim.

A copy is a snapshot (backfill) of a table in the log. Records are JSON. Their keys are JSON lists,
so that no name is ambiguous: `["table", database, table]` (written by the producer, in the Kafka
transaction of the rows that it describes), `["request", id]` (written by the requester),
`["answer", id]` (written by the producer, in the transaction that carries out the request; removed
by the requester) and `["proved", database, table]` (written by a producer whose server logs no
names of columns, in the transaction of the first rows; removed in that of a definition).
`["claim"]` says who was the last to take over the shard (`shard_claim`).
"""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Self

from confluent_kafka import KafkaError, TopicPartition

from event_token.errors import Halt, Retry
from topics.errors import CorruptRecord
from topics.kafka.client import (
    ClientConfig,
    Deadline,
    open_consumer,
    raise_unless_passing,
    write_record,
)
from topics.kafka.errors import kafka_errors
from topics.kafka.partition_reader import partition_bounds
from topics.keyspace.audit import operator
from topics.names import ShardTopics

# The version of the JSON layout; readers refuse any other.
LAYOUT: Final = 1
# The end of a small compacted topic is reached in well under a second.
READ_S_MAX: Final = 60.0
_POLL_S: Final = 0.2
_BATCH: Final = 500


class CopyAction(StrEnum):
    """The actions that can be requested."""

    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


class CopyState(StrEnum):
    """The state of the copy of a table."""

    COPYING = "copying"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether the copy has ended and can only be started again."""
        return self not in {CopyState.COPYING, CopyState.PAUSED}


@dataclass(frozen=True, slots=True)
class TableCopy:
    """The progress of the copy of one table.

    `last_key`: the last key copied, as SQL literals in the order of `key`; `definition` and
    `identity` tell the table that they belong to (`databases.table_cursor`). `rows`: rows written
    as READ; `rows_read`: those plus the ones dropped because the log had a newer change.
    `begun_us`: no READ of this copy is older. `rule`: the filter rule of the table, as text, that
    its rows passed. `note`: why it failed or was cancelled, or what delays it. `begun_seq`: no READ
    of this copy has an earlier seq in the log; `seq`: the rows counted lie before it. Both are 0
    where they are not known. `by` and `reason`: of the request that began it. `begun_again`: why it
    began again by itself, the last time; "" if it did not.
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
    definition: str = ""
    identity: tuple[str, ...] = ()
    last_key: tuple[str, ...] = ()
    last_key_text: dict[str, str] = field(default_factory=dict)
    pieces: int = 0
    rows: int = 0
    rows_read: int = 0
    rows_estimated: int = 0
    rows_per_s: float = 0.0
    note: str = ""
    begun_seq: int = 0
    seq: int = 0
    by: str = ""
    reason: str = ""
    begun_again: str = ""

    @property
    def name(self) -> str:
        """`database.table`."""
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A request; without `tables` (`database.table`) it applies to all tables that it fits.

    `after_seq`: a START begins a copy again that is under way and did not begin after this record
    of the log. `by`: who asks, as `user@host`, which `ask` adds; `reason`: why.
    """

    action: CopyAction
    tables: tuple[str, ...] = ()
    where: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    after_seq: int = 0
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CopyAnswer:
    """The outcome of a request: the tables that it was carried out for, and all problems."""

    id: str
    tables: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProvedTable:
    """The columns of a table, proved for the rows where the log ends.

    `skips`: the SKIP records that the log had. `proved_us`: by the host's clock. `columns`: fields
    of a table map's columns, as the producer orders them. `key`: columns of the primary key.
    """

    database: str
    table: str
    skips: int = 0
    proved_us: int = 0
    columns: tuple[Any, ...] = ()
    key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """A process that was to take over the shard: it may have fenced its predecessor, or not yet.

    `process` differs between processes. `by`: who runs it, as `user@host`. `at_us`: by its host's
    clock.
    """

    process: str
    by: str
    at_us: int


CopyRecord = TableCopy | CopyRequest | CopyAnswer | ProvedTable | Claim


def record_key(record: CopyRecord) -> bytes:
    """Return the Kafka key of a record."""
    if isinstance(record, TableCopy):
        return _key("table", record.database, record.table)
    if isinstance(record, ProvedTable):
        return _key("proved", record.database, record.table)
    if isinstance(record, Claim):
        return CLAIM_KEY
    return _key("request" if isinstance(record, CopyRequest) else "answer", record.id)


def request_key(request_id: str) -> bytes:
    """Return the key of the request with this id."""
    return _key("request", request_id)


def _key(*parts: str) -> bytes:
    return json.dumps(list(parts), ensure_ascii=False).encode()


CLAIM_KEY: Final = _key("claim")


def encode(record: CopyRecord) -> bytes:
    """Return the Kafka value of a record."""
    return json.dumps({"layout": LAYOUT, **asdict(record)}, ensure_ascii=False).encode()


def decode(key: bytes | None, value: bytes, where: str) -> CopyRecord:
    """Decode a Kafka record of the copy topic.

    CorruptRecord, naming `where`, if it is invalid; Halt on a layout of another release.
    """
    try:
        kind = json.loads(key or b"[]")[0]
        fields: dict[str, Any] = json.loads(value)
        layout = fields.pop("layout")
        if layout != LAYOUT:
            raise Halt(
                f"{where}: layout {layout!r} of the copy record is not known: use the release that "
                "wrote it"
            )
        for name in ("tables", "problems", "key", "identity", "last_key", "columns"):
            if name in fields:
                fields[name] = tuple(fields[name])
        if kind == "table":
            return TableCopy(**{**fields, "state": CopyState(fields["state"])})
        if kind == "request":
            return CopyRequest(**{**fields, "action": CopyAction(fields["action"])})
        if kind == "claim":
            return Claim(**fields)
        return ProvedTable(**fields) if kind == "proved" else CopyAnswer(**fields)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise CorruptRecord(f"{where}: not a copy record: {error}") from error


class CopyFeed:
    """Follows the copy topic of a shard and keeps its current records."""

    def __init__(
        self,
        config: ClientConfig,
        topics: ShardTopics,
        on_copy: Callable[[TableCopy], None] | None = None,
    ) -> None:
        """Begin at the start of the topic; nothing is read yet.

        `on_copy` is called with each state of a copy that the topic still has, oldest first.
        """
        self.tables: dict[tuple[str, str], TableCopy] = {}
        self.requests: dict[str, CopyRequest] = {}
        self.answers: dict[str, CopyAnswer] = {}
        self._proved: dict[tuple[str, str], ProvedTable] | None = {}
        self._config = config
        self._topic = topics.copy
        self._on_copy = on_copy
        self._consumer = open_consumer(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def read_to_end(self) -> None:
        """Read everything committed so far; Retry when this takes longer than READ_S_MAX."""
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
        """Read new records."""
        for _ in self._poll(timeout_s):
            pass

    def _poll(self, timeout_s: float) -> Iterator[int]:
        """Read records for that time; yield each offset up to which everything has been read."""
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
                raise_unless_passing(error, doing, self._config)

    def _take(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        where = f"{self._topic}, offset {offset}"
        if value is None:
            kind, *names = json.loads(key or b"[null]")
            if kind == "request":
                self.requests.pop(names[0], None)
            elif kind == "answer":
                self.answers.pop(names[0], None)
            elif kind == "proved" and self._proved is not None:
                self._proved.pop((names[0], names[1]), None)
            return
        record = decode(key, value, where)
        if isinstance(record, TableCopy):
            self.tables[record.database, record.table] = record
            if self._on_copy is not None:
                self._on_copy(record)
        elif isinstance(record, CopyRequest):
            self.requests[record.id] = record
        elif isinstance(record, ProvedTable):
            if self._proved is not None:
                self._proved[record.database, record.table] = record
        elif isinstance(record, CopyAnswer):
            self.answers[record.id] = record

    def take_proved(self) -> dict[tuple[str, str], ProvedTable]:
        """Return what the topic has of proved tables, once: the feed keeps none from here on.

        The producer, which writes these records, has them itself.
        """
        found, self._proved = self._proved, None
        return found or {}

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def read_copies(config: ClientConfig, topics: ShardTopics) -> dict[tuple[str, str], TableCopy]:
    """Return the progress of each table's copy."""
    with CopyFeed(config, topics) as feed:
        feed.read_to_end()
        return feed.tables


def ask(config: ClientConfig, topics: ShardTopics, request: CopyRequest) -> None:
    """Write a request for the producer of the shard, with who asks."""
    signed = replace(request, by=operator())
    write_record(config, topics.copy, record_key(request), encode(signed))


def forget_answer(config: ClientConfig, topics: ShardTopics, answer: CopyAnswer) -> None:
    """Remove an answer that has been read."""
    write_record(config, topics.copy, record_key(answer), None)


def withdraw(config: ClientConfig, topics: ShardTopics, request: CopyRequest) -> None:
    """Remove a request that was not answered."""
    write_record(config, topics.copy, record_key(request), None)


def with_state(copy: TableCopy, state: CopyState, now_us: int, note: str = "") -> TableCopy:
    """Return the copy in another state."""
    return replace(copy, state=state, updated_us=now_us, note=note, rows_per_s=0.0)


def ask_and_wait(
    config: ClientConfig, topics: ShardTopics, request: CopyRequest, wait_s: float
) -> CopyAnswer:
    """Write a request and return the producer's answer.

    Retry when none comes within `wait_s`; the request is then withdrawn, unless the producer is
    already carrying it out.
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
                    f"{topics.log}: no producer answered within {wait_s:g} s, and the request was "
                    "withdrawn. Is the producer of the shard running?"
                )
        answer = feed.answers[request.id]
    forget_answer(config, topics, answer)
    return answer
