"""The values of messages: Debezium's envelope, or the row with a few fields more."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from event_token.errors import UsageError
from spark_consumers.table_topics.envelope.codec import Codec
from spark_consumers.table_topics.envelope.connect_schema import ConnectField, ConnectSchema
from spark_consumers.table_topics.envelope.messages import Layout
from spark_consumers.table_topics.envelope.rows import RowColumns
from spark_consumers.table_topics.envelope.source_block import SOURCE, VARIABLES

_TEXT: Final = ConnectSchema("string")
_LONG: Final = ConnectSchema("int64")
_TRANSACTION: Final = ConnectSchema(
    "struct",
    name="event.block",
    version=1,
    fields=(
        ConnectField("id", _TEXT.required()),
        ConnectField("total_order", _LONG.required()),
        ConnectField("data_collection_order", _LONG.required()),
    ),
)


@dataclass(frozen=True, slots=True)
class Changes:
    """A batch: decoded rows, the columns of both images as Connect values, the messages."""

    rows: pa.RecordBatch
    before: list[pa.Array]
    after: list[pa.Array]
    layout: Layout
    processed_us: int


class Body(Protocol):
    """Encodes the values of messages."""

    schema: ConnectSchema

    def encode(self, changes: Changes) -> pa.Array:
        """Return the encoded value of each message; that of a tombstone is never used."""


def envelope_schema(columns: RowColumns) -> ConnectSchema:
    """Return the schema of Debezium's envelope."""
    row = ConnectSchema("struct", name=f"{columns.topic}.Value", fields=columns.fields)
    return ConnectSchema(
        "struct",
        optional=False,
        name=f"{columns.topic}.Envelope",
        version=2,
        fields=(
            ConnectField("before", row),
            ConnectField("after", row),
            ConnectField("source", SOURCE),
            ConnectField("transaction", _TRANSACTION),
            ConnectField("op", _TEXT.required()),
            ConnectField("ts_ms", _LONG),
            ConnectField("ts_us", _LONG),
            ConnectField("ts_ns", _LONG),
        ),
    )


class EnvelopeBody:
    """Debezium's envelope; `constants` are those of `source`."""

    def __init__(
        self, schema: ConnectSchema, constants: Mapping[str, str | int | None], codec: Codec
    ) -> None:
        self.schema = schema
        self._codec = codec
        self._row = schema.fields[0].schema
        self._constants = {
            field.name: codec.constant(field.schema, constants[field.name])
            for field in SOURCE.fields
            if field.name in constants
        }

    def encode(self, changes: Changes) -> pa.Array:
        """Return the envelopes."""
        codec, layout = self._codec, changes.layout
        before, after = self._images(changes)
        return codec.struct(
            self.schema.fields,
            [
                before,
                after,
                layout.place(self._sources(changes.rows)),
                codec.constant(_TRANSACTION, None),
                codec.value(_TEXT.required(), layout.op),
                codec.constant(_LONG, changes.processed_us // 1000),
                codec.constant(_LONG, changes.processed_us),
                codec.constant(_LONG, changes.processed_us * 1000),
            ],
        )

    def _images(self, changes: Changes) -> tuple[pa.Array | pa.Scalar, pa.Array | pa.Scalar]:
        layout = changes.layout
        before = self._image(changes.rows["before"], changes.before)
        after = self._image(changes.rows["after"], changes.after)
        if layout.is_plain:
            return before, after
        nothing = self._codec.constant(self._row, None)
        # `d` has no row after the change, and the `c` of a new key none before it.
        return (
            pc.if_else(pa.array(layout.moved_to), nothing, layout.place(before)),
            pc.if_else(pa.array(layout.of_old_key), nothing, layout.place(after)),
        )

    def _image(self, image: pa.StructArray, columns: list[pa.Array]) -> pa.Array:
        mask = None if image.null_count == 0 else pc.invert(image.is_valid())
        names = [field.name for field in self._row.fields]
        return self._codec.value(
            self._row, pa.StructArray.from_arrays(columns, names=names, mask=mask)
        )

    def _sources(self, rows: pa.RecordBatch) -> pa.Array:
        values = [
            self._constants[field.name]
            if field.name in self._constants
            else self._codec.value(field.schema, VARIABLES[field.name](rows))
            for field in SOURCE.fields
        ]
        return self._codec.struct(SOURCE.fields, values)


# Debezium's names of its ExtractNewRecordState, then those of our sinks.
_MORE: Final = (
    ConnectField("__deleted", _TEXT),
    ConnectField("__op", _TEXT),
    ConnectField("__source_ts_ms", _LONG),
    ConnectField("_time_us", _LONG),
    ConnectField("_shard", _TEXT),
    ConnectField("_seq", _LONG),
    ConnectField("_token", _TEXT),
)


def flat_schema(columns: RowColumns) -> ConnectSchema:
    """Return the schema of flat rows. UsageError if a column has the name of a field of ours."""
    clashes = {field.name for field in columns.fields} & {field.name for field in _MORE}
    if clashes:
        raise UsageError(
            f"{columns.topic}: column {', '.join(sorted(clashes))} has the name of a field that "
            f"the flat formats add: choose a format with Debezium's envelope"
        )
    return ConnectSchema(
        "struct",
        optional=False,
        name=f"{columns.topic}.Value",
        fields=(*columns.fields, *_MORE),
    )


class FlatBody:
    """The row with a few fields more; a deleted row is its last image."""

    def __init__(self, schema: ConnectSchema, codec: Codec) -> None:
        self.schema = schema
        self._codec = codec

    def encode(self, changes: Changes) -> pa.Array:
        """Return the rows."""
        codec, layout, rows = self._codec, changes.layout, changes.rows
        columns = changes.after
        if not layout.is_plain:
            of_before = pa.array(layout.of_old_key)
            columns = [
                pc.if_else(of_before, layout.place(before), layout.place(after))
                for before, after in zip(changes.before, changes.after, strict=True)
            ]
        time_us = layout.place(rows["timestamp_us"])
        more = (
            pc.if_else(pc.equal(layout.op, "d"), "true", "false"),
            layout.op,
            pc.divide(time_us, 1000),
            time_us,
            layout.place(rows["shard"]),
            layout.place(rows["seq"]),
            layout.place(rows["token"]),
        )
        values = zip(self.schema.fields, (*columns, *more), strict=True)
        return codec.struct(self.schema.fields, [codec.value(f.schema, v) for f, v in values])
