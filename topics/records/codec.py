"""Records of a shard log between their bytes and VEvents."""

import json
import struct
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from fastavro import parse_schema, schemaless_writer

from event_token.errors import Halt
from topics.records.envelope import EnvelopeReader
from topics.records.events import EventReader
from topics.records.table_shape import (
    ENVELOPE_VERSION,
    TableShape,
    avro_type,
    ddl_schema,
    envelope_fields,
    row_schema,
    schema_text,
    shape_of,
)
from topics.records.value_codec import RowPlan, ValueMisfitError, plain_schema
from topics.records.vevent import IMAGES, CorruptRecord, Op, TokenText, VEvent
from topics.records.wire import schema_id_of, wire_header
from topics.schemas.ids import SchemaIds

__all__ = [
    "CorruptRecord",
    "UnknownEnvelope",
    "VEventCodec",
    "record_key",
]

# What reading raises on bytes that do not follow the schema.
_BROKEN: Final = (IndexError, OverflowError, ValueError)
# What fastavro raises on values that do not fit it.
_MISFIT: Final = (IndexError, KeyError, OverflowError, TypeError, ValueError, struct.error)


class UnknownEnvelope(Halt):
    """Raised on a schema whose envelope this release does not know: a newer one wrote it."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the records of one schema id are written."""

    avro: Any
    rows: RowPlan | None  # None: a DDL statement


class VEventCodec:
    """Decodes and encodes the records of shard logs; keeps a plan for each schema.

    Not for two threads at once. Errors name shard and offset.
    """

    def __init__(self, schema_ids: SchemaIds) -> None:
        self._schema_ids = schema_ids
        self._readers: dict[int, EventReader] = {}
        self._encode_plans: dict[TableShape | None, tuple[int, _Plan]] = {}
        self._envelope = EnvelopeReader()

    def decode(self, value: bytes | None, shard: str, offset: int) -> VEvent:
        """Return the event in a record's value.

        CorruptRecord when the bytes do not follow their schema, UnknownEnvelope when the
        schema is not one of a shard log that this release reads.
        """
        schema_id = schema_id_of(value, f"log of shard {shard}", offset)
        reader = self._readers.get(schema_id)
        if reader is None:
            reader = self._readers[schema_id] = self._reader_of(schema_id, shard, offset)
        try:
            return reader.read(value or b"", shard, offset)
        except _BROKEN as error:
            raise CorruptRecord(
                f"log of shard {shard}, offset {offset}: the record does not follow its schema "
                f"{schema_id}: {type(error).__name__} {error}",
            ) from error

    def _reader_of(self, schema_id: int, shard: str, offset: int) -> EventReader:
        schema = json.loads(self._schema_ids.text_of(schema_id))
        expected = plain_schema(envelope_fields())
        if (
            not isinstance(schema, dict)
            or schema.get("envelope") != ENVELOPE_VERSION
            or plain_schema(schema["fields"][: len(expected)]) != expected
        ):
            raise UnknownEnvelope(
                f"log of shard {shard}, offset {offset}: schema {schema_id} is not a shard log's "
                f"with envelope version {ENVELOPE_VERSION}: read it with the release that wrote it",
            )
        shape = shape_of(schema)
        known = plain_schema(ddl_schema() if shape is None else row_schema(shape))
        if known["fields"] != plain_schema(schema)["fields"]:
            raise UnknownEnvelope(
                f"log of shard {shard}, offset {offset}: schema {schema_id} has fields that this "
                f"release does not know: read it with the release that wrote it",
            )
        return EventReader(shape, self._envelope)

    def encode(self, event: VEvent) -> bytes:
        """Return the value of a record; ValueMisfitError when a value does not fit its column."""
        if event.shape not in self._encode_plans:
            schema = ddl_schema() if event.shape is None else row_schema(event.shape)
            schema_id = self._schema_ids.register(schema_text(schema))
            self._encode_plans[event.shape] = (schema_id, _plan(schema, event.shape))
        schema_id, plan = self._encode_plans[event.shape]
        stream = BytesIO()
        stream.write(wire_header(schema_id))
        _written(stream, plan.avro, _raw_event(event, plan))
        return stream.getvalue()


def _plan(schema: dict[str, Any], shape: TableShape | None) -> _Plan:
    return _Plan(
        avro=parse_schema(plain_schema(schema)),
        rows=None if shape is None else RowPlan.of(shape),
    )


def _raw_event(event: VEvent, plan: _Plan) -> dict[str, Any]:
    token = event.token_text
    raw: dict[str, Any] = {
        "type": event.type.value,
        "seq": event.seq,
        "token": {**_raw_token(token), "origin": token.origin and _raw_token(token.origin)},
        "commit_us": event.commit_us,
        "gtid": event.gtid,
        "row_index": event.row_index,
        "last": event.last,
        "database": event.database,
        "table": event.table,
        "op": event.op.value,
        "keyspace_id_before": event.keyspace_id_before,
        "keyspace_id_after": event.keyspace_id_after,
        "columns_before": b"",
        "columns_after": b"",
        "off_calendar": [],
    }
    if plan.rows is None:
        raw["statement"] = event.statement
        return raw
    images = (("before", event.before), ("after", event.after))
    if (event.before is not None, event.after is not None) != IMAGES[event.op]:
        raise ValueMisfitError(f"the row images do not fit {event.op.value}")
    for image, (name, row) in enumerate(images):
        raw[name] = None
        if row is not None:
            raw[name], raw[f"columns_{name}"], off_calendar = plan.rows.write(row)
            raw["off_calendar"] += [
                {"image": image, "column": column, "text": text}
                for column, text in off_calendar.items()
            ]
    return raw


def _raw_token(token: TokenText) -> dict[str, Any]:
    return {
        "timestamp_us": token.timestamp_us,
        "shard": token.shard,
        "position": token.position,
    }


def _written(stream: BytesIO, avro: Any, datum: Any) -> None:
    try:
        schemaless_writer(stream, avro, datum)
    except _MISFIT as error:
        raise ValueMisfitError(f"a value does not fit the schema: {error}") from error


def record_key(event: VEvent) -> bytes:
    """Return the Kafka key: database, table and the primary key of the row that is left.

    DDL has an empty table; a table without a primary key shares one key.
    """
    stream = BytesIO()
    _written(stream, "string", event.database)
    _written(stream, "string", event.table)
    row = event.before if event.op is Op.DELETE else event.after
    if event.shape is None or row is None:
        return stream.getvalue()
    plan = RowPlan.of(event.shape)
    for index in event.shape.primary_key:
        column = event.shape.columns[index]
        value = row.get(column.name)
        if value is None:
            raise ValueMisfitError(f"key column {column.name} of {event.table} has no value")
        _written(stream, plain_schema(avro_type(column)), plan.write_value(index, value))
    return stream.getvalue()
