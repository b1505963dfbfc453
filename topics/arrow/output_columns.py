"""The columns of a Spark reader: names, order and Arrow types.

Without option `table` row images are JSON text, so that one DataFrame holds all tables. With it
they are structs that have the columns of the table's newest version when the query starts.
"""

import json
from dataclasses import dataclass
from typing import assert_never

import pyarrow as pa

from event_token.errors import UsageError
from topics.arrow.key_scope import KeyScope
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import read_to_end
from topics.names import SCHEMAS_TOPIC
from topics.records.envelope_table import ENVELOPE
from topics.records.table_shape import UNSIGNED_LONG_DIGITS, Column, TableShape, ValueKind, shape_of
from topics.schemas import RegistrySchemaIds

# Arrow and Spark decimals have at most this many digits, those of servers up to 65.
DECIMAL128_DIGITS = 38

# Of a system-versioned table: what a change does to its present rows, NONE for a change of its
# history; null for all other tables, where that is `op`.
PRESENT_OP = "present_op"

# The Arrow types of `EnvelopeField.column`.
COLUMN_TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "boolean": pa.bool_(),
    "bytes": pa.binary(),
}
# The columns of the envelope's own fields, and those that are made of them or of the row.
_OF_FIELDS = {field.name: COLUMN_TYPES[field.column] for field in ENVELOPE if field.column}
_MADE = {
    **dict.fromkeys(("before", "after", "statement", "key", "old_key", "absent"), pa.string()),
    **dict.fromkeys(("shard", PRESENT_OP), pa.string()),
    **dict.fromkeys(("offset", "timestamp_us", "schema_id"), pa.int64()),
    **dict.fromkeys(("late", "possible_duplicate"), pa.bool_()),
}
# The order of the columns of a DataFrame. It never changes: change logs were written with it.
_ORDER = (
    *("type", "database", "table", "op", "before", "after", "statement", "key", "old_key"),
    *("absent", "invalid_dates", "shard", "seq", "offset", "timestamp_us", "commit_us", "gtid"),
    *("token", "row_index", "last", "late", "possible_duplicate", "schema_id"),
    *("keyspace_id_before", "keyspace_id_after", PRESENT_OP),
)
ENVELOPE_TYPES: dict[str, pa.DataType] = {
    name: _MADE.get(name) or _OF_FIELDS[name] for name in _ORDER
}
# Decoded only where option columns names them: in a change log they would double every row, or be
# columns that it was not written with.
ON_REQUEST_TYPES: dict[str, pa.DataType] = {
    "record": pa.binary(),
    "key_hash": pa.int64(),
    "old_key_hash": pa.int64(),
    **{name: kind for name, kind in _OF_FIELDS.items() if name not in _ORDER},
}
ALL_TYPES = ENVELOPE_TYPES | ON_REQUEST_TYPES
IMAGES = ("before", "after")
# The hash by which a row came to its task of a sink; for other records the number of the task.
ROUTE = "route"
# What a sink over all tables gets; its tasks decode `record`.
SINK_COLUMNS = (
    *("type", "database", "table", "op", "statement", "shard", "seq", "timestamp_us", "gtid"),
    *("token", "late", "possible_duplicate", "schema_id", "record", "key_hash", "old_key_hash"),
)


@dataclass(frozen=True, slots=True)
class OutputColumns:
    """The columns that a query asked for.

    `names` are envelope columns and images in the order of `ENVELOPE_TYPES`, then those of
    `ON_REQUEST_TYPES`. `shape` is the table version that the structs follow, None for JSON text;
    `fields` are the columns of each struct. `key_scope`: whether keys have the keyspace id as their
    last part.
    """

    names: tuple[str, ...]
    shape: TableShape | None
    shape_schema_id: int
    fields: tuple[tuple[str, tuple[int, ...]], ...]  # (image, column indexes of `shape`)
    key_scope: KeyScope = KeyScope.KEYSPACE

    def struct_columns(self, image: str) -> tuple[Column, ...]:
        """Return the columns of an image's struct."""
        if self.shape is None:
            raise ValueError("images are JSON text: they have no struct")
        return tuple(self.shape.columns[i] for i in dict(self.fields)[image])

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema of the batches."""
        return pa.schema([pa.field(name, self._type(name)) for name in self.names])

    def _type(self, name: str) -> pa.DataType:
        if name in IMAGES and self.shape is not None:
            return pa.struct([pa.field(c.name, arrow_type(c)) for c in self.struct_columns(name)])
        return ALL_TYPES[name]


def choose_columns(
    asked: str | None, shape: TableShape | None = None, shape_schema_id: int = -1
) -> OutputColumns:
    """Parse a comma-separated list of columns; None means all of `ENVELOPE_TYPES`.

    With a shape, `after.name` selects one column of a struct. UsageError on unknown names.
    """
    whole = tuple(range(len(shape.columns))) if shape else ()
    if asked is None:
        fields = tuple((image, whole) for image in IMAGES) if shape else ()
        return OutputColumns(tuple(ENVELOPE_TYPES), shape, shape_schema_id, fields)
    names: set[str] = set()
    chosen: dict[str, set[int]] = {}
    for item in filter(None, (item.strip() for item in asked.split(","))):
        image, dot, column = item.partition(".")
        if not dot and item in ALL_TYPES:
            names.add(item)
            if item in IMAGES:
                chosen.setdefault(item, set()).update(whole)
        elif dot and image in IMAGES and shape is not None:
            names.add(image)
            chosen.setdefault(image, set()).add(_column_index(shape, column, item))
        else:
            hint = "" if shape else " (columns of a table need option table)"
            raise UsageError(
                f"option columns: no column '{item}'{hint}; there are {', '.join(ALL_TYPES)}"
            )
    if not names:
        raise UsageError("option columns: the list is empty")
    fields = (
        tuple((image, tuple(sorted(found))) for image, found in chosen.items()) if shape else ()
    )
    return OutputColumns(tuple(n for n in ALL_TYPES if n in names), shape, shape_schema_id, fields)


def _column_index(shape: TableShape, column: str, item: str) -> int:
    for i, each in enumerate(shape.columns):
        if each.name == column:
            return i
    raise UsageError(
        f"option columns: no column '{item}'; {shape.database}.{shape.table} has "
        f"{', '.join(c.name for c in shape.columns)}"
    )


def arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column. TIME is int64 microseconds; it may exceed a day."""
    match column.kind:
        case ValueKind.INT | ValueKind.YEAR:
            return pa.int32()
        case ValueKind.LONG | ValueKind.BIT | ValueKind.TIME:
            return pa.int64()
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return pa.decimal128(UNSIGNED_LONG_DIGITS, 0)
        case ValueKind.FLOAT:
            return pa.float32()
        case ValueKind.DOUBLE:
            return pa.float64()
        case ValueKind.DECIMAL:
            if column.precision > DECIMAL128_DIGITS:
                return pa.string()
            return pa.decimal128(column.precision, column.scale)
        case ValueKind.STRING | ValueKind.ENUM | ValueKind.JSON:
            return pa.string()
        case ValueKind.BYTES:
            return pa.binary()
        case ValueKind.DATE:
            return pa.date32()
        case ValueKind.DATETIME:
            return pa.timestamp("us")
        case ValueKind.TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        case ValueKind.SET:
            return pa.list_(pa.string())
        case unknown:  # Arrow's types are not known to mypy, which would not miss a return
            assert_never(unknown)


def newest_version(
    kafka: ClientConfig, registry_url: str | None, keyspace: str, database: str, table: str
) -> tuple[TableShape, int]:
    """Return the newest registered version of a keyspace's table and its schema id.

    UsageError when no row of the table has been logged yet.
    """
    if registry_url is None:
        found = _newest_in_topic(kafka, keyspace, database, table)
    else:
        found = RegistrySchemaIds(registry_url).newest_of(keyspace, database, table)
    shape = None if found is None else shape_of(json.loads(found[1]))
    if found is None or shape is None:
        raise UsageError(
            f"option table: no row of {database}.{table} of keyspace {keyspace} has been logged "
            f"yet, so its columns are unknown: start the query once the table has rows, or leave "
            f"out option table"
        )
    return shape, found[0]


def _newest_in_topic(
    kafka: ClientConfig, keyspace: str, database: str, table: str
) -> tuple[int, str] | None:
    # If two producers registered a schema at once, its id is the offset of the first record.
    ids: dict[str, int] = {}
    newest: str | None = None
    for record in read_to_end(kafka, SCHEMAS_TOPIC):
        text = (record.value or b"").decode()
        ids.setdefault(text, record.offset)
        schema = json.loads(text)
        names = (schema.get("keyspace"), schema.get("database"), schema.get("table"))
        if names == (keyspace, database, table):
            newest = text
    return None if newest is None else (ids[newest], newest)
