"""Batches as a sink's task gets them, made of events that were encoded as on Kafka."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa

from event_token import EventToken
from sinks.rule.statements import Unlogged
from sinks.rule.task_changes import FollowedTables, TableChanges, changes_of
from tests.spark_consumers.rows import statement_event
from tests.topics.records.events import UUID
from tests.topics.records.record_encoder import RecordEncoder
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.arrow.decoders import ArrowDecoder, TableDecoder
from topics.arrow.key_scope import KeyScope
from topics.arrow.output_columns import (
    ENVELOPE_TYPES,
    ON_REQUEST_TYPES,
    ROUTE,
    SINK_COLUMNS,
    choose_columns,
)
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import EventType, Op, Row, TokenText, VEvent

ORDERS = TableShape(
    "shop",
    "orders",
    (Column("id", ValueKind.LONG, "bigint"), Column("value", ValueKind.LONG, "bigint")),
    (0,),
)
AFTER_ALL_US = 2**62
TYPES = {**ENVELOPE_TYPES, **ON_REQUEST_TYPES}
_SCHEMA = pa.schema(
    [*(pa.field(name, TYPES[name]) for name in SINK_COLUMNS), pa.field(ROUTE, pa.int64())]
)


def no_copies(found: Sequence[Unlogged]) -> None:
    """Let a sink pass statements that changed values without logging them."""


def change(
    shard: str,
    seq: int,
    at_us: int,
    before: Row | None = None,
    after: Row | None = None,
    *,
    ids: tuple[bytes | None, bytes | None] = (None, None),
    shape: TableShape = ORDERS,
    copied: bool = False,
) -> VEvent:
    """A change of a row; `ids` are its keyspace ids before and after."""
    op = Op.UPDATE if before and after else Op.DELETE if before else Op.INSERT
    return replace(
        statement(shard, seq, at_us, ""),
        type=EventType.ROW,
        table=shape.table,
        op=Op.READ if copied else op,
        before=before,
        after=after,
        keyspace_id_before=ids[0],
        keyspace_id_after=ids[1],
        statement=None,
        shape=shape,
    )


def statement(
    shard: str, seq: int, at_us: int, text: str, *, kind: EventType = EventType.DDL, table: str = ""
) -> VEvent:
    """A statement in database shop."""
    return replace(
        statement_event(seq, text),
        type=kind,
        table=table,
        shard=shard,
        token_text=TokenText(at_us, shard, f"{UUID}:1-{seq}"),
        commit_us=at_us,
    )


def event_of(record: Mapping[str, Any]) -> VEvent:
    """The event of a record of `histories.History`."""
    token = TokenText.of(EventToken.from_string(record["token"]))
    place = (record["shard"], record["seq"], record["timestamp_us"])
    if record["type"] == "DDL":
        return replace(statement(*place, record["statement"]), token_text=token)
    before, after = (
        None if record[image] is None else json.loads(record[image])
        for image in ("before", "after")
    )
    ids = (record["keyspace_id_before"], record["keyspace_id_after"])
    return replace(change(*place, before, after, ids=ids), token_text=token)


@dataclass
class Source:
    """Encodes events, and makes the rows that the Spark source has of them."""

    schema_ids: MemorySchemaIds = field(default_factory=MemorySchemaIds)
    key_scope: KeyScope = KeyScope.KEYSPACE

    def __post_init__(self) -> None:
        """Begin without shards."""
        self._encoder = RecordEncoder(self.schema_ids)
        self._decoders: dict[str, ArrowDecoder] = {}
        self.decoder = TableDecoder(self.schema_ids.text_of, self.key_scope)

    def rows(
        self, events: Iterable[VEvent], *, late: bool = False, doubtful: bool = False
    ) -> list[dict[str, object]]:
        """The rows of a source; `doubtful`: each is a possible duplicate."""
        found = []
        for event in events:
            decoder = self._decoders.get(event.shard)
            if decoder is None:
                output = choose_columns(",".join(SINK_COLUMNS))
                output = replace(output, key_scope=self.key_scope)
                decoder = ArrowDecoder(output, self.schema_ids.text_of, shard=event.shard)
                self._decoders[event.shard] = decoder
            decoder.begin(event.seq, AFTER_ALL_US if late else 0)
            batch = decoder.decode([self._encoder.encode(event)], [event.offset])
            [row] = batch.to_pylist()
            found.append({**row, "possible_duplicate": doubtful})
        return found

    def changes(
        self,
        batch: Sequence[VEvent] | Sequence[VEvent | dict[str, object]],
        following: FollowedTables | None = None,
        *,
        partitions: int = 1,
    ) -> list[TableChanges]:
        """The changes of a batch in all tasks: events, or rows that are marked already.

        Without `following` tables are not copied again.
        """
        rows: list[dict[str, object]] = []
        for each in batch:
            rows += self.rows([each]) if isinstance(each, VEvent) else [each]
        return [
            changes
            for task in range(partitions)
            for changes in changes_of(
                routed(rows, partitions, task),
                self.decoder,
                partitions=partitions,
                task=task,
                followed=following or FollowedTables(on_unlogged=no_copies),
            )
        ]


def routed(rows: Iterable[Mapping[str, object]], partitions: int, task: int) -> pa.Table:
    """The rows that `sink_query.routed` gives one task."""
    found = []
    for row in rows:
        keys = (row["key_hash"] or 0, row["old_key_hash"])
        routes = {key for key in keys if key is not None} if row["type"] == "ROW" else {task}
        of_task = [key for key in routes if cast("int", key) % partitions == task]
        found += [{**row, ROUTE: key} for key in of_task]
    return pa.Table.from_pylist(found, _SCHEMA)
