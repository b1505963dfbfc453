"""Finds the marks at the end of a shard log; no row of a sharded table follows an END."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Consumer

from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import TAIL_TIMEOUT_S, PartitionReader
from topics.names import ShardTopics
from topics.records.envelope import whole_envelope
from topics.records.record_decoder import RecordDecoder
from topics.records.schema_ids import SchemaIds
from topics.records.vevent import TYPES_BY_INDEX, EventType


@dataclass(frozen=True, slots=True)
class LoggedMark:
    """A JOURNAL record: `kind` is END, BEGIN or CANCELLED."""

    reshard_id: str
    kind: str
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
    bytes that are not a record of a log.
    """
    codec = RecordDecoder(schema_ids)
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
                    mark = LoggedMark(row["reshard_id"], row["kind"], event.seq, event.timestamp_us)
                    found[mark.reshard_id] = mark
            newest = found | newest
            if has_row:
                break
    return newest
