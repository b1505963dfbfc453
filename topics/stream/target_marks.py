"""The first mark of a reshard in each target's log, which decides whether the target begins.

The first mark counts and later marks are ignored, so a CANCEL in a log without a mark keeps
its target from ever beginning, no matter what is paused or cut off at that moment.
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from event_token.errors import Rebuild, Retry
from topics.errors import UnknownEnvelope
from topics.kafka.client import ClientConfig, open_producer
from topics.kafka.errors import Fenced, kafka_errors
from topics.kafka.lookups import Lookups
from topics.kafka.partition_reader import TAIL_TIMEOUT_S, PartitionReader
from topics.kafka.provisioning import provision_shard
from topics.names import ShardTopics
from topics.progress.codec import (
    PROGRESS_KEY,
    PROGRESS_SCHEMA_TEXT,
    decode_progress,
    encode_progress,
    note_headers,
)
from topics.progress.committed_tail import read_committed_tail
from topics.progress.history import ProgressHistory
from topics.progress.record import MARK_KINDS, JournalKind, Mark, Progress, Tick, cell_start_us
from topics.progress.shard_claim import ShardClaim
from topics.records.envelope import whole_envelope
from topics.records.event_decoder import EventDecoder
from topics.records.statement_record import JOURNAL_KEY, STATEMENT_SCHEMA_TEXT, encode_journal
from topics.records.table_shape import SchemaIds
from topics.records.vevent import TYPES_BY_INDEX, EventType, TokenText

# A target's producer that a supervisor restarts takes its log back; it fails while it does.
_APPEND_TRIES_MAX: Final = 10
_APPEND_TIMEOUT_S: Final = 60.0


class TargetMarks:
    """The first marks of one reshard. Each look reads on from where the last one ended."""

    def __init__(
        self, config: ClientConfig, keyspace: str, reshard_id: str, schema_ids: SchemaIds
    ) -> None:
        """Begin without having looked."""
        self._config = config
        self._keyspace = keyspace
        self._reshard_id = reshard_id
        self._schema_ids = schema_ids
        self._next_offsets: dict[str, int] = {}
        self._found: dict[str, Mark] = {}

    def look(self, targets: Iterable[str]) -> dict[str, Mark]:
        """Return the first marks that are committed by now, by target.

        The first look reads all progress of a target. Retry when Kafka does not answer.
        """
        for target in targets:
            if target not in self._found:
                self._look(target)
        return dict(self._found)

    def exists(self, target: str) -> bool:
        """Return whether a target has topics."""
        with Lookups(self._config) as lookups:
            return lookups.result(
                ProgressHistory(self._keyspace, target, self._schema_ids).exists()
            )

    def _look(self, target: str) -> None:
        if target not in self._next_offsets and not self.exists(target):
            return
        topic = ShardTopics(self._keyspace, target).progress
        # The id as it is in an Avro string: other records are passed over without decoding them.
        wanted = self._reshard_id.encode()
        with PartitionReader(self._config, topic, 0, TAIL_TIMEOUT_S) as reader:
            start, end = reader.bounds()
            for record in reader.records(max(start, self._next_offsets.get(target, 0)), end):
                if wanted not in (record.value or b""):
                    continue
                progress = decode_progress(record.value, self._schema_ids, topic)
                mark = progress.mark
                if target in self._found or mark is None or mark.reshard_id != self._reshard_id:
                    continue
                mark.begins(target)  # ProgressBroken if it is neither BEGIN nor CANCEL
                self._found[target] = mark
        self._next_offsets[target] = end

    def append_cancel(self, target: str, cancel: Mark, flavor: str, not_before_us: int) -> None:
        """Take a target's log from its producer and append CANCEL, unless it has a mark by then.

        `flavor`: of its servers, for a log without progress. `not_before_us`: the hop time if the
        targets were to begin; a reader looks for marks from there on. The position in the progress
        stays, so a producer that takes the log back goes on where it was. Raises Retry when it
        keeps taking it back, and Kafka's errors; then it is unknown whether CANCEL was written.
        """
        topics = ShardTopics(self._keyspace, target)
        if not self.exists(target):
            provision_shard(self._config, topics)
        for text in (STATEMENT_SCHEMA_TEXT, PROGRESS_SCHEMA_TEXT):
            self._schema_ids.register(text)
        doing = f"writing CANCEL of reshard {self._reshard_id} to {topics.log}"
        failed: Exception | None = None
        for _ in range(_APPEND_TRIES_MAX):
            try:
                with kafka_errors(doing, self._config.brokers):
                    self._append(topics, cancel, flavor, not_before_us)
            except (Fenced, Retry, Rebuild) as error:
                failed = error  # the next attempt looks whether CANCEL was written
                continue
            return
        raise Retry(
            f"{doing}: not in {_APPEND_TRIES_MAX} attempts ({failed}). If its producer keeps "
            f"taking over the log, end it; then run this again"
        ) from failed

    def _append(self, topics: ShardTopics, cancel: Mark, flavor: str, not_before_us: int) -> None:
        producer = open_producer(
            self._config,
            transactional_id=topics.transactional_id,
            transaction_timeout_ms=round(_APPEND_TIMEOUT_S * 1000),
        )
        ShardClaim(self._config, topics).make()
        producer.init_transactions(_APPEND_TIMEOUT_S)
        stored, tail = read_committed_tail(
            self._config, topics, self._schema_ids, partial(_abort_open, producer, topics)
        )
        if topics.shard in self.look([topics.shard]):
            return
        # A record of the past would be removed by retention at once.
        now_us = time.time_ns() // 1000
        before = stored or Progress(1, 0, 0, flavor, "", now_us, (), None, "", now_us, 0)
        last_us = -1 if tail.last is None else tail.last.timestamp_us
        at_us = max(last_us, before.head_us, not_before_us)
        token = TokenText(at_us, topics.shard, before.position, None)
        seq = before.last_seq + 1
        value = encode_journal(
            cancel.journal_text(), seq=seq, token=token, schema_ids=self._schema_ids
        )
        producer.begin_transaction()
        offset = _delivered(producer, topics.log, value, at_us)
        cell_us = cell_start_us(at_us)
        progress = replace(
            before,
            first_seq=seq,
            last_seq=seq,
            end_offset=offset + 1,
            head_us=at_us,
            ticks=(Tick(cell_us, offset),) if cell_us > cell_start_us(last_us) else (),
            mark=replace(cancel, offset=offset),
            stopped=None,
            in_parts=(),
        )
        record = encode_progress(progress, self._schema_ids)
        producer.produce(
            topics.progress,
            record,
            PROGRESS_KEY,
            0,
            timestamp=at_us // 1000,
            headers=note_headers(progress),
        )
        producer.commit_transaction(_APPEND_TIMEOUT_S)


def _abort_open(producer: Producer, topics: ShardTopics) -> None:
    producer.begin_transaction()
    for topic in topics.written:
        producer.produce(topic, b"", PROGRESS_KEY, 0)
    producer.flush(_APPEND_TIMEOUT_S)
    producer.abort_transaction(_APPEND_TIMEOUT_S)


def _delivered(producer: Producer, topic: str, value: bytes, at_us: int) -> int:
    """Produce the record in the open transaction; return its offset."""
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            offsets.append(message.offset() or 0)
        else:
            errors.append(error)

    producer.produce(topic, value, JOURNAL_KEY, 0, on_delivery=on_delivery, timestamp=at_us // 1000)
    producer.flush(_APPEND_TIMEOUT_S)
    if errors:
        raise KafkaException(errors[0])
    if not offsets:
        raise Rebuild(f"{topic}: the broker has not stored the record within the time")
    return offsets[0]


@dataclass(frozen=True, slots=True)
class LoggedMark:
    """A JOURNAL record."""

    reshard_id: str
    kind: JournalKind
    seq: int
    timestamp_us: int


def marks_at_end(
    config: ClientConfig,
    topics: ShardTopics,
    schema_ids: SchemaIds,
    is_sharded: Callable[[str], bool],
    consumer: Consumer | None = None,
) -> dict[str, LoggedMark]:
    """Return the newest mark of each reshard after the last row of a sharded table, by id.

    `is_sharded`: whether a database has sharded tables; the others may be written after END.
    `consumer`: to read with, which stays open. Retry when Kafka does not answer, CorruptRecord on
    bytes that are not a record of a log, UnknownEnvelope at a mark of a newer release.
    """
    codec = EventDecoder(schema_ids)
    newest: dict[str, LoggedMark] = {}
    with PartitionReader(config, topics.log, 0, TAIL_TIMEOUT_S, consumer) as reader:
        # DDL, marks and rows of other databases follow an END: mostly few, but a monitor may write
        # for days.
        for window in reader.windows_back():
            found: dict[str, LoggedMark] = {}
            has_row = False
            for record in window:
                value = record.value or b""
                envelope = whole_envelope(value, topics.log, record.offset)
                kind = TYPES_BY_INDEX[envelope.type]
                if kind is EventType.ROW:
                    if is_sharded(envelope.text_at(envelope.database_at)):
                        found, has_row = {}, True
                elif kind is EventType.JOURNAL:
                    event = codec.decode(value, topics.shard, record.offset)
                    row = json.loads(event.statement or "")
                    if row["kind"] not in MARK_KINDS:
                        raise UnknownEnvelope(
                            f"{topics.log}, offset {record.offset}: a mark of the kind "
                            f"{row['kind']!r}: upgrade to the release that wrote it"
                        )
                    found[row["reshard_id"]] = LoggedMark(
                        row["reshard_id"], JournalKind(row["kind"]), event.seq, event.timestamp_us
                    )
            newest = found | newest
            if has_row:
                break
    return newest
