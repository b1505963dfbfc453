"""Encodes VEvents as records, for tests that need the records of a shard log without a producer."""

import struct
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from fastavro import parse_schema, schemaless_writer

from tests.topics.records.row_encoding import RowPlan, ValueMisfitError
from topics.records.envelope_table import envelope_defaults
from topics.records.event_decoder import EventDecoder
from topics.records.table_shape import (
    SchemaIds,
    TableShape,
    avro_type,
    plain_schema,
    row_schema,
    schema_text,
    statement_schema,
    wire_header,
)
from topics.records.vevent import IMAGES, Op, TokenText, VEvent

# What fastavro raises on values that do not fit it.
_MISFIT: Final = (IndexError, KeyError, OverflowError, TypeError, ValueError, struct.error)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the records of one schema id are written."""

    avro: Any
    rows: RowPlan | None  # None: a DDL statement


class RecordEncoder:
    """Encodes the records of shard logs, with one plan per table version."""

    def __init__(self, schema_ids: SchemaIds, keyspace: str = "commerce") -> None:
        """`keyspace`: that of the tables."""
        self._schema_ids = schema_ids
        self._keyspace = keyspace
        self._plans: dict[TableShape | None, tuple[int, _Plan]] = {}

    def encode(self, event: VEvent) -> bytes:
        """Return the value of a record; ValueMisfitError when a value does not fit its column."""
        if event.shape not in self._plans:
            schema = statement_schema()
            if event.shape is not None:
                schema = row_schema(event.shape, self._keyspace)
            schema_id = self._schema_ids.register(schema_text(schema))
            self._plans[event.shape] = (schema_id, _plan(schema, event.shape))
        schema_id, plan = self._plans[event.shape]
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
        **envelope_defaults(),
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
        "invalid_dates": [],
        **event.added,
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
            raw[name], raw[f"columns_{name}"], dates = plan.rows.write(row)
            raw["invalid_dates"] += [
                {"image": image, "column": column, "text": text} for column, text in dates.items()
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


class RecordCodec:
    """Encodes and decodes with one set of schema ids."""

    def __init__(self, schema_ids: SchemaIds) -> None:
        self.encode = RecordEncoder(schema_ids).encode
        self.decode = EventDecoder(schema_ids).decode
