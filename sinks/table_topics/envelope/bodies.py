"""The values of messages: Debezium's envelope, or the row with a few fields more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from typing import Final

from librt.strings import BytesWriter

from event_token.errors import UsageError
from sinks.table_topics.envelope.connect_types import (
    ENUM,
    ConnectField,
    ConnectSchema,
    connect_type,
    keeps_values_apart,
)
from sinks.table_topics.envelope.message_writer import Template
from sinks.table_topics.envelope.value_writers import (
    FIRST_BRANCH,
    NULL_BRANCH,
    SECOND_BRANCH,
    write_avro_bytes,
    write_varint,
)
from sinks.table_topics.options import EnvelopeOptions
from topics.records.table_shape import TableShape

# The release of Debezium whose envelope this is; readers may look at it.
DEBEZIUM_VERSION: Final = "3.6.0.Final"
_SNAPSHOTS: Final = "true,first,first_in_data_collection,last_in_data_collection,last,false"
_TEXT: Final = ConnectSchema("string")
_LONG: Final = ConnectSchema("int64")
_REQUIRED_TEXT: Final = _TEXT.required()
_REQUIRED_LONG: Final = _LONG.required()

SOURCE: Final = ConnectSchema(
    "struct",
    optional=False,
    name="io.debezium.connector.mysql.Source",
    version=1,
    fields=(
        ConnectField("version", _REQUIRED_TEXT),
        ConnectField("connector", _REQUIRED_TEXT),
        ConnectField("name", _REQUIRED_TEXT),
        ConnectField("ts_ms", _REQUIRED_LONG),
        ConnectField(
            "snapshot",
            ConnectSchema(
                "string",
                name=ENUM,
                version=1,
                parameters=(("allowed", f"{_SNAPSHOTS},incremental"),),
                default="false",
            ),
        ),
        ConnectField("db", _REQUIRED_TEXT),
        ConnectField("sequence", _TEXT),
        ConnectField("ts_us", _LONG),
        ConnectField("ts_ns", _LONG),
        ConnectField("table", _TEXT),
        ConnectField("server_id", _REQUIRED_LONG),
        ConnectField("gtid", _TEXT),
        ConnectField("file", _REQUIRED_TEXT),
        ConnectField("pos", _REQUIRED_LONG),
        ConnectField("row", ConnectSchema("int32", optional=False)),
        ConnectField("thread", _LONG),
        ConnectField("query", _TEXT),
        # Not Debezium's.
        ConnectField("shard", _TEXT),
        ConnectField("token", _TEXT),
        ConnectField("keyspace", _TEXT),
    ),
)


def constants_of(options: EnvelopeOptions, shape: TableShape) -> dict[str, str | int | None]:
    """Return the fields that are the same in all messages of a table."""
    return {
        "version": DEBEZIUM_VERSION,
        "name": options.prefix,
        "db": shape.database,
        "table": shape.table,
        "server_id": 0,
        "row": 0,
        "thread": None,
        "query": None,
        "keyspace": options.keyspace,
    }


@dataclass(frozen=True, slots=True)
class RowSchema:
    """The schemas of a table version's rows and keys.

    `names`: the table and each column, for messages. `key_columns`: by index.
    """

    topic: str
    names: tuple[str, ...]
    fields: tuple[ConnectField, ...]
    key_columns: tuple[int, ...]
    key: ConnectSchema

    @classmethod
    def of(cls, shape: TableShape, options: EnvelopeOptions) -> "RowSchema":
        """Return those of a table version.

        UsageError if the table has no primary key, or one whose values would not be kept apart.
        """
        table = f"{shape.database}.{shape.table}"
        if not shape.primary_key:
            raise UsageError(
                f"table {table} has no primary key, so its messages would have no key: leave it out"
            )
        topic = f"{options.prefix}.{table}"
        types = [connect_type(column, options) for column in shape.columns]
        names = tuple(f"{table}, column {c.name} ({c.sql_type})" for c in shape.columns)
        for i in shape.primary_key:
            if not keeps_values_apart(shape.columns[i], types[i]):
                raise UsageError(
                    f"{names[i]}: two keys may become one as {types[i].name or types[i].type}"
                    f": write such columns precisely (--decimal precise or string, --time adaptive "
                    f"or isostring), or leave the table out"
                )
        fields = tuple(
            ConnectField(column.name, to) for column, to in zip(shape.columns, types, strict=True)
        )
        key = ConnectSchema(
            "struct",
            optional=False,
            name=f"{topic}.Key",
            fields=tuple(
                ConnectField(fields[i].name, types[i].required()) for i in shape.primary_key
            ),
        )
        return cls(topic, names, fields, shape.primary_key, key)


def json_names(fields: Sequence[ConnectField]) -> list[bytes]:
    """Return what stands before each field of a JSON object."""
    return [
        f"{',' if i else '{'}{dumps(field.name, ensure_ascii=False)}:".encode()
        for i, field in enumerate(fields)
    ]


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


def envelope_schema(row_schema: RowSchema) -> ConnectSchema:
    """Return the schema of Debezium's envelope."""
    row = ConnectSchema("struct", name=f"{row_schema.topic}.Value", fields=row_schema.fields)
    return ConnectSchema(
        "struct",
        optional=False,
        name=f"{row_schema.topic}.Envelope",
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


def flat_schema(row_schema: RowSchema) -> ConnectSchema:
    """Return the schema of flat rows. UsageError if a column has the name of a field of ours."""
    clashes = {field.name for field in row_schema.fields} & {field.name for field in _MORE}
    if clashes:
        raise UsageError(
            f"{row_schema.topic}: column {', '.join(sorted(clashes))} has the name of a field that "
            f"the flat formats add: choose a format with Debezium's envelope"
        )
    return ConnectSchema(
        "struct",
        optional=False,
        name=f"{row_schema.topic}.Value",
        fields=(*row_schema.fields, *_MORE),
    )


class _Gaps:
    """Collects what stands between the fields that differ by row."""

    def __init__(self, *, is_avro: bool) -> None:
        self._is_avro = is_avro
        self._gap = b""
        self.found: list[bytes] = []

    def add(self, text: bytes) -> None:
        """Add a text, to JSON only."""
        if not self._is_avro:
            self._gap += text

    def value(self, schema: ConnectSchema, value: str | int | None) -> None:
        """Add a field's value."""
        if not self._is_avro:
            self._gap += dumps(value, ensure_ascii=False).encode()
        elif value is None:
            self._gap += NULL_BRANCH
        else:
            out = BytesWriter()
            if isinstance(value, str):
                write_avro_bytes(out, value.encode())
            else:
                write_varint(out, value)
            self._gap += _branch(schema) + out.getvalue()

    def end(self, schema: ConnectSchema) -> None:
        """End the gap before a value of a type, which differs by row."""
        self.found.append(self._gap + (_branch(schema) if self._is_avro else b""))
        self._gap = b""

    def fields(
        self, fields: Sequence[ConnectField], constants: Mapping[str, str | int | None]
    ) -> None:
        """Add the fields of a struct, of which `constants` are the same for all rows."""
        for name, field in zip(json_names(fields), fields, strict=True):
            self.add(name)
            if field.name in constants:
                self.value(field.schema, constants[field.name])
            else:
                self.end(field.schema)

    def all(self, end: bytes) -> list[bytes]:
        """Return the gaps, the last of which ends a message."""
        return [*self.found, self._gap + end]


def _branch(schema: ConnectSchema) -> bytes:
    if not schema.optional:
        return b""
    return SECOND_BRANCH if schema.default is None else FIRST_BRANCH


def envelope_template(
    schema: ConnectSchema,
    constants: Mapping[str, str | int | None],
    *,
    is_avro: bool,
    head: bytes,
    end: bytes,
) -> Template:
    """Return the template of Debezium's envelope; `constants` are those of `source`.

    `head`, `end`: what stands around the envelope.
    """
    before, after, source, transaction, *rest = json_names(schema.fields)
    gaps = _Gaps(is_avro=is_avro)
    gaps.add(source)
    gaps.fields(SOURCE.fields, constants)
    gaps.add(b"}" + transaction)
    gaps.value(_TRANSACTION, None)
    for name, field in zip(rest, schema.fields[-len(rest) :], strict=True):
        gaps.add(name)
        gaps.end(field.schema)
    found = Template(
        is_avro=is_avro,
        is_flat=False,
        head=head if is_avro else head + before,
        middle=b"" if is_avro else after,
        image=SECOND_BRANCH if is_avro else b"",
    )
    gaps.add(b"}")
    found.gaps = gaps.all(end)
    return found


def flat_template(*, is_avro: bool, head: bytes, end: bytes) -> Template:
    """Return the template of flat rows; `head`, `end`: what stands around a row."""
    gaps = _Gaps(is_avro=is_avro)
    for field in _MORE:
        gaps.add(f',"{field.name}":'.encode())
        gaps.end(field.schema)
    gaps.add(b"}")
    found = Template(is_avro=is_avro, is_flat=True, head=head, middle=b"", image=b"")
    found.gaps = gaps.all(end)
    return found
