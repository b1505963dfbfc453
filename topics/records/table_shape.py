"""A table version as described by the binlog, and the Avro schema of its rows.

This module alone defines the wire format of column values and of the envelope: producers write
these schemas, `Subscriber` and Spark read them.
"""

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

# The widest DECIMAL of any server. MariaDB's has up to 38 digits after the point, MySQL's 30.
DECIMAL_DIGITS_MAX = 65
DECIMAL_SCALE_MAX = 38
# Up to 18 digits fit into 64 bits, and the unscaled value then always takes 8 bytes, so that it is
# written and read without a loop.
DECIMAL_FIXED_DIGITS = 18
DECIMAL_FIXED_BYTES = 8
# BIGINT UNSIGNED and BIT(64): nine bytes, big-endian two's complement, of which the first is 0.
UNSIGNED_LONG_BYTES = 9
UNSIGNED_LONG_DIGITS = 20


class ValueKind(StrEnum):
    """The wire format of a column's values; any value may also be null."""

    INT = "int"  # Avro int: all integer types that fit 32 signed bits
    LONG = "long"  # Avro long: INT UNSIGNED, BIGINT
    UNSIGNED_LONG = "unsigned-long"  # fixed(9), decimal(20,0): BIGINT UNSIGNED
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"  # bytes, decimal(p,s), big-endian two's complement, 8 bytes when p <= 18
    STRING = "string"  # UTF-8, regardless of the column's character set
    BYTES = "bytes"
    DATE = "date"  # int, days since 1970-01-01; invalid dates: null, their text in off_calendar
    TIME = "time"  # long, microseconds, -838:59:59 to 838:59:59 (so not Avro's time of day)
    DATETIME = "datetime"  # long, local-timestamp-micros
    TIMESTAMP = "timestamp"  # long, timestamp-micros, UTC
    YEAR = "year"  # int; year 0 is 0
    ENUM = "enum"  # string, the label; index 0 (the error value) is ""
    SET = "set"  # array of strings, labels in the order of the declaration
    BIT = "bit"  # long, BIT(1) to BIT(63)
    BIT64 = "bit64"  # fixed(9), decimal(20,0): BIT(64)
    JSON = "json"  # string, JSON text


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `sql_type` is its type for people (`bigint unsigned`)."""

    name: str
    kind: ValueKind
    sql_type: str
    precision: int = 0  # this and the scale: DECIMAL only
    scale: int = 0
    labels: tuple[str, ...] = ()  # ENUM and SET


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table version, as the table map of a row event describes it."""

    database: str
    table: str
    columns: tuple[Column, ...]
    primary_key: tuple[int, ...] = ()  # column indexes in key order; empty: no primary key
    # Of a system-versioned table of MariaDB: the column that has its greatest value in the present
    # rows, and in all others the time at which the row was changed or deleted. Not in the key.
    row_end: int | None = None


def avro_type(column: Column) -> Any:
    """Return the Avro type of a column's value, without the null branch."""
    match column.kind:
        case ValueKind.INT | ValueKind.YEAR:
            return "int"
        case ValueKind.LONG | ValueKind.BIT:
            return "long"
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return {
                "type": "fixed",
                # Named types must be unique in a schema, so each column has its own.
                "name": "unsigned_" + avro_name(column.name),
                "size": UNSIGNED_LONG_BYTES,
                "logicalType": "decimal",
                "precision": UNSIGNED_LONG_DIGITS,
                "scale": 0,
            }
        case ValueKind.FLOAT:
            return "float"
        case ValueKind.DOUBLE:
            return "double"
        case ValueKind.DECIMAL:
            return {
                "type": "bytes",
                "logicalType": "decimal",
                "precision": column.precision,
                "scale": column.scale,
            }
        case ValueKind.STRING | ValueKind.ENUM | ValueKind.JSON:
            return "string"
        case ValueKind.BYTES:
            return "bytes"
        case ValueKind.DATE:
            return {"type": "int", "logicalType": "date"}
        case ValueKind.TIME:
            return "long"
        case ValueKind.DATETIME:
            return {"type": "long", "logicalType": "local-timestamp-micros"}
        case ValueKind.TIMESTAMP:
            return {"type": "long", "logicalType": "timestamp-micros"}
        case ValueKind.SET:
            return {"type": "array", "items": "string"}


def avro_name(name: str) -> str:
    """Return a valid Avro name, reversibly: other characters and `_x` itself become `_xHEX_`."""
    out = []
    for i, c in enumerate(name):
        plain = c.isascii() and (c.isalpha() or c == "_" or (c.isdigit() and i > 0))
        if plain and not name.startswith("_x", i):
            out.append(c)
        else:
            out.append(f"_x{ord(c):x}_")
    return "".join(out)


# Incremented when the envelope changes; readers refuse versions that they do not know.
ENVELOPE_VERSION = 1

EVENT_TYPES = ("ROW", "DDL", "JOURNAL", "LAST_PK", "COPY_COMPLETED")
# The records of operators' skips have an envelope version of their own: it adds a type. A release
# that does not know it refuses them by name, and the schemas of tables stay as they are.
SKIP_ENVELOPE_VERSION = 2
ALL_EVENT_TYPES = (*EVENT_TYPES, "SKIP")
# The event types of each envelope version that this release reads, by their index on the wire.
TYPES_BY_ENVELOPE = {ENVELOPE_VERSION: EVENT_TYPES, SKIP_ENVELOPE_VERSION: ALL_EVENT_TYPES}
OPS = ("NONE", "INSERT", "UPDATE", "DELETE", "READ")

_STATEMENT = {"name": "statement", "type": "string"}
_TOKEN_FIELDS = [
    {"name": "timestamp_us", "type": "long"},
    {"name": "shard", "type": "string"},
    {"name": "position", "type": "string"},
]


def envelope_fields(types: tuple[str, ...] = EVENT_TYPES) -> list[dict[str, Any]]:
    """Return the fields that every record of a shard log begins with, in their fixed order.

    `types`: the event types by their index on the wire.

    `topics.records.envelope` reads them. `columns_before` and `columns_after` are bit maps: column
    i is in the row image if bit (i & 7), counted from the lowest, of byte (i >> 3) is set; they are
    empty if there is no such image. `off_calendar` has the texts of invalid dates, such as
    `2024-02-00` (image: 0 before, 1 after).
    """
    origin = {"type": "record", "name": "Origin", "fields": _TOKEN_FIELDS}
    off_calendar = {
        "type": "record",
        # Part of the schemas of existing logs: with another name their records would be refused.
        "name": "OffCalendar",
        "fields": [
            {"name": "image", "type": "int"},
            {"name": "column", "type": "int"},
            {"name": "text", "type": "string"},
        ],
    }
    token = [*_TOKEN_FIELDS, {"name": "origin", "type": ["null", origin]}]
    return [
        {"name": "type", "type": {"type": "enum", "name": "Type", "symbols": list(types)}},
        {"name": "seq", "type": "long"},
        {"name": "token", "type": {"type": "record", "name": "EventToken", "fields": token}},
        {"name": "commit_us", "type": "long"},
        {"name": "gtid", "type": "string"},
        {"name": "row_index", "type": "long"},
        {"name": "last", "type": "boolean"},
        {"name": "database", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "op", "type": {"type": "enum", "name": "Op", "symbols": list(OPS)}},
        {"name": "keyspace_id_before", "type": ["null", "bytes"]},
        {"name": "keyspace_id_after", "type": ["null", "bytes"]},
        {"name": "columns_before", "type": "bytes"},
        {"name": "columns_after", "type": "bytes"},
        {"name": "off_calendar", "type": {"type": "array", "items": off_calendar}},
    ]


def _record(
    body: list[dict[str, Any]], envelope: int = ENVELOPE_VERSION, **attributes: Any
) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "VEvent",
        "namespace": "shardstream",
        "envelope": envelope,
        **attributes,
        "fields": [*envelope_fields(TYPES_BY_ENVELOPE[envelope]), *body],
    }


def row_schema(shape: TableShape, keyspace: str | None = None) -> dict[str, Any]:
    """Return the Avro schema of ROW events of one table version.

    Column fields carry the attributes `column` (the true name), `kind`, `sql_type`, and `labels`
    for ENUM and SET; the record carries `database`, `table` and `primary_key` (column names), and
    `keyspace`: keyspaces that share a Kafka may have tables of the same name. Schemas of earlier
    producers have none. A system-versioned table's has `row_end`, the name of that column.
    """
    fields = []
    for column in shape.columns:
        field: dict[str, Any] = {
            "name": avro_name(column.name),
            "type": ["null", avro_type(column)],
            "default": None,
            "column": column.name,
            "kind": column.kind.value,
            "sql_type": column.sql_type,
        }
        if column.labels:
            field["labels"] = list(column.labels)
        fields.append(field)
    body: list[dict[str, Any]] = [
        {"name": "before", "type": ["null", {"type": "record", "name": "Row", "fields": fields}]},
        {"name": "after", "type": ["null", "Row"]},
    ]
    more: dict[str, Any] = {} if keyspace is None else {"keyspace": keyspace}
    if shape.row_end is not None:
        more["row_end"] = shape.columns[shape.row_end].name
    return _record(
        body,
        **more,
        database=shape.database,
        table=shape.table,
        primary_key=[shape.columns[i].name for i in shape.primary_key],
    )


def ddl_schema() -> dict[str, Any]:
    """Return the Avro schema of DDL events, in which `database` is the default database."""
    return _record([_STATEMENT])


def skip_schema() -> dict[str, Any]:
    """Return the Avro schema of SKIP events, whose `statement` is JSON text."""
    return _record([_STATEMENT], SKIP_ENVELOPE_VERSION)


def shape_of(schema: dict[str, Any]) -> TableShape | None:
    """Return the table version that a ROW schema describes, None for other schemas."""
    body = [f for f in schema["fields"] if f["name"] == "before"]
    if not body:
        return None
    columns = []
    for field in body[0]["type"][1]["fields"]:
        value_type = field["type"][1]
        logical = value_type if isinstance(value_type, dict) else {}
        kind = ValueKind(field["kind"])
        is_decimal = kind is ValueKind.DECIMAL
        columns.append(
            Column(
                name=field["column"],
                kind=kind,
                sql_type=field["sql_type"],
                precision=logical["precision"] if is_decimal else 0,
                scale=logical["scale"] if is_decimal else 0,
                labels=tuple(field.get("labels", ())),
            )
        )
    names = [c.name for c in columns]
    key = tuple(names.index(name) for name in schema["primary_key"])
    row_end = names.index(schema["row_end"]) if "row_end" in schema else None
    return TableShape(schema["database"], schema["table"], tuple(columns), key, row_end)


def schema_text(schema: dict[str, Any]) -> str:
    """Return the text to register: compact JSON with all attributes that readers need."""
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def fingerprint(text: str) -> str:
    """Return the SHA-256 of a registered text; Avro's fingerprint omits the attributes."""
    return hashlib.sha256(text.encode()).hexdigest()


def plain_schema(schema: Any) -> Any:
    """Return an Avro schema without its logical types."""
    if isinstance(schema, dict):
        return {
            name: plain_schema(part)
            for name, part in schema.items()
            if name not in {"logicalType", "precision", "scale"}
        }
    if isinstance(schema, list):
        return [plain_schema(part) for part in schema]
    return schema
