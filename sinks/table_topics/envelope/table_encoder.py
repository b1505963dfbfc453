"""Encodes the changes of one table version: records of shard logs in, Kafka messages out."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from event_token.errors import UsageError
from event_token.token import TOKEN_VERSION
from sinks.table_topics.envelope.bodies import (
    RowSchema,
    constants_of,
    envelope_schema,
    envelope_template,
    flat_schema,
    flat_template,
    json_names,
)
from sinks.table_topics.envelope.connect_types import ConnectSchema, avro_schema, json_schema
from sinks.table_topics.envelope.message_writer import (
    KeyWriter,
    MessageWriter,
    StructWriter,
    WrittenMessages,
)
from sinks.table_topics.envelope.value_writers import header_writer, value_writer
from sinks.table_topics.options import EnvelopeOptions
from topics.arrow.columns.arrow_values import skipper_for
from topics.arrow.key_scope import KeyScope
from topics.errors import CorruptRecord
from topics.records.event_decoder import BROKEN
from topics.records.table_shape import TableShape, wire_header

# Registers the text of a schema under a subject and returns its id.
Register = Callable[[str, str], int]


@dataclass(frozen=True, slots=True)
class VersionRecords:
    """Records of one table version, in the order of their messages.

    `envelope_version`: that of the version's schema. `ops`: as the source has them, empty for those
    of the records: a key range sees an UPDATE across its border as an INSERT or a DELETE, which has
    one image. `old_half`, `new_half`: a byte per record, whether messages are wanted that end a
    key, and others; empty for all.
    """

    records: list[bytes]
    envelope_version: int
    ops: Sequence[str] = ()
    old_half: bytes = b""
    new_half: bytes = b""


class TableEncoder:
    """The messages of one table version. UsageError if the table cannot have a topic."""

    def __init__(
        self,
        shape: TableShape,
        options: EnvelopeOptions,
        register: Register | None = None,
        key_scope: KeyScope = KeyScope.KEYSPACE,
    ) -> None:
        """`register`: registers the schemas of the Avro formats, which need it.

        `key_scope`: with SHARD the shape's last column is the keyspace id (`scoped_rows`).
        """
        self._rows = RowSchema.of(shape, options)
        self.topic = self._rows.topic
        self._table = f"{shape.database}.{shape.table}"
        self._shape = shape
        self._options = options
        self._has_home = key_scope is KeyScope.SHARD
        value = (flat_schema if options.format.is_flat else envelope_schema)(self._rows)
        self._key_around, self._value_around = self._around(self._rows.key, value, register)
        self._value = value
        self._writer: MessageWriter | None = None

    def encode(self, rows: VersionRecords, processed_us: int) -> WrittenMessages:
        """Return the messages of records of this table version.

        `processed_us`: the envelope's `ts_us`. CorruptRecord: a record cannot be read. PartialRow:
        a row image lacks columns. ValueDoesNotFit: the format cannot represent a value.
        CannotApply: a row lacks the keyspace id that the key scope needs.
        """
        writer = self._writer or self._new_writer()
        # After an error it may stand within a record.
        self._writer = None
        found = WrittenMessages()
        writer.begin(processed_us)
        try:
            writer.write(
                *(rows.records, rows.envelope_version, list(rows.ops)),
                *(rows.old_half, rows.new_half, found),
            )
        except BROKEN as error:
            raise CorruptRecord(
                f"{self._table}, near {writer.place()}: the record cannot be read: {error}"
            ) from error
        self._writer = writer
        return found

    def _around(
        self, key: ConnectSchema, value: ConnectSchema, register: Register | None
    ) -> list[tuple[bytes, bytes]]:
        """Return what stands before and behind a key, and a value."""
        if not self._options.format.is_avro:
            return [self._json_around(schema) for schema in (key, value)]
        if register is None:
            raise UsageError(f"{self.topic}: the Avro formats need a schema registry")
        return [
            (wire_header(register(f"{self.topic}-{part}", json.dumps(avro_schema(schema)))), b"")
            for part, schema in (("key", key), ("value", value))
        ]

    def _json_around(self, schema: ConnectSchema) -> tuple[bytes, bytes]:
        if not self._options.schemas:
            return b"", b""
        text = json.dumps(json_schema(schema), ensure_ascii=False, separators=(",", ":"))
        return f'{{"schema":{text},"payload":'.encode(), b"}"

    def _new_writer(self) -> MessageWriter:
        options, row_schema, (head, end) = self._options, self._rows, self._value_around
        is_avro, is_flat = options.format.is_avro, options.format.is_flat
        columns = self._shape.columns[: -1 if self._has_home else None]
        own = list(zip(columns, row_schema.fields, row_schema.names, strict=False))
        template = (
            flat_template(is_avro=is_avro, head=head, end=end)
            if is_flat
            else envelope_template(
                *(self._value, constants_of(options, self._shape)),
                is_avro=is_avro,
                head=head,
                end=end,
            )
        )
        row = StructWriter(
            [b""] * len(row_schema.fields) if is_avro else json_names(row_schema.fields),
            [value_writer(c, f.schema, is_avro=is_avro, where=where) for c, f, where in own],
            is_avro=is_avro,
            is_key=False,
            end=b"" if is_avro or is_flat else b"}",
        )
        return MessageWriter(
            table=self._table,
            column_names=[column.name for column in columns],
            skippers=[skipper_for(column) for column in columns],
            template=template,
            row=row,
            key=self._key_writer(is_header=False),
            header_key=self._key_writer(is_header=True),
            key_head=self._key_around[0],
            key_end=self._key_around[1],
            tombstones=options.tombstones,
            token_version=TOKEN_VERSION,
        )

    def _key_writer(self, *, is_header: bool) -> KeyWriter:
        """Return the writer of keys, or of keys in headers: JSON in which decimals are numbers."""
        row_schema = self._rows
        is_avro = self._options.format.is_avro and not is_header
        key = row_schema.key_columns[: -1 if self._has_home else None]
        names = [row_schema.names[i] for i in key]
        of_columns = [
            (self._shape.columns[i], row_schema.fields[i].schema, row_schema.names[i]) for i in key
        ]
        values = [
            header_writer(column, to, where=where)
            if is_header
            else value_writer(column, to, is_avro=is_avro, where=where)
            for column, to, where in of_columns
        ]
        fields = row_schema.key.fields
        return KeyWriter(
            [skipper_for(column) for column in self._shape.columns],
            list(key),
            StructWriter(
                [b""] * len(fields) if is_avro else json_names(fields),
                values,
                is_avro=is_avro,
                is_key=True,
                end=b"" if is_avro else b"}",
            ),
            names,
        )
