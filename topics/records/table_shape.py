"""A table version as described by the binlog, and the Avro schema of its rows.

This module alone defines the wire format of column values, as `envelope_table` does that of the
envelope: producers write these schemas, `Subscriber` and Spark read them. Before the Avro body
stand a zero byte and the schema id, as in the Confluent wire format.
"""

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from topics.errors import CorruptRecord, UnknownEnvelope
from topics.records.envelope_table import envelope_fields, newest_version

# The widest DECIMAL of any server. MariaDB's has up to 38 digits after the point, MySQL's 30.
DECIMAL_DIGITS_MAX = 65
DECIMAL_SCALE_MAX = 38
# Up to 18 digits fit into 64 bits, and the unscaled value then always takes 8 bytes, so that it is
# written and read without a loop.
DECIMAL_FIXED_DIGITS = 18
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
    DATE = "date"  # int, days since 1970-01-01; invalid dates: null, their text in invalid_dates
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


def avro_type(column: Column) -> str | dict[str, Any]:
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


def _record(body: list[dict[str, Any]], version: int | None, **attributes: Any) -> dict[str, Any]:
    version = newest_version() if version is None else version
    return {
        "type": "record",
        "name": "VEvent",
        "namespace": "shardstream",
        "envelope": version,
        **attributes,
        "fields": [*envelope_fields(version), *body],
    }


def row_schema(shape: TableShape, keyspace: str, version: int | None = None) -> dict[str, Any]:
    """Return the Avro schema of ROW events of one table version.

    Column fields carry the attributes `column` (the true name), `kind`, `sql_type`, and `labels`
    for ENUM and SET; the record carries `database`, `table` and `primary_key` (column names), and
    `keyspace`: keyspaces that share a Kafka may have tables of the same name. A system-versioned
    table's has `row_end`, the name of that column. `version`: of the envelope; the newest.
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
    row_end = {} if shape.row_end is None else {"row_end": shape.columns[shape.row_end].name}
    return _record(
        body,
        version,
        keyspace=keyspace,
        **row_end,
        database=shape.database,
        table=shape.table,
        primary_key=[shape.columns[i].name for i in shape.primary_key],
    )


def statement_schema(version: int | None = None) -> dict[str, Any]:
    """Return the Avro schema of all events but rows; `version`: of the envelope; the newest.

    `statement` is that of DDL, of which `database` is the default database, or JSON text.
    """
    return _record([{"name": "statement", "type": "string"}], version)


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


class RecordSchema(NamedTuple):
    """What a registered schema says of its records.

    `shape` is the table version of their rows, None for statements.
    """

    shape: TableShape | None
    envelope_version: int


def known_schema(text: str, schema_id: int, where: str) -> RecordSchema:
    """Return what a registered schema says; a schema that names no version has version 1.

    UnknownEnvelope, naming `where`, if this release does not read its records.
    """
    schema: Any = json.loads(text)
    version = schema.get("envelope", 1) if isinstance(schema, dict) else None
    newest = newest_version()
    known = f"version {newest}" if newest == 1 else f"versions 1 to {newest}"
    if not isinstance(version, int) or not 1 <= version <= newest:
        raise UnknownEnvelope(
            f"{where}: schema {schema_id} has envelope version {version}, and this release reads "
            f"{known}: upgrade this reader to the release that wrote it"
        )
    try:
        shape = shape_of(schema)
        own = (
            statement_schema(version)
            if shape is None
            else row_schema(shape, schema.get("keyspace", ""), version)
        )
        is_known = plain_schema(own["fields"]) == plain_schema(schema["fields"])
    except (IndexError, KeyError, TypeError, ValueError):
        is_known, shape = False, None
    if not is_known:
        raise UnknownEnvelope(
            f"{where}: schema {schema_id} has fields that this release does not know: upgrade this "
            f"reader to the release that wrote it"
        )
    return RecordSchema(shape, version)


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


WIRE_HEADER_BYTES: Final = 5
_MAGIC: Final = 0

# The registry's own interface has signed 32-bit ids.
SCHEMA_ID_MAX: Final = 2**31 - 1


def wire_header(schema_id: int) -> bytes:
    """Return the five bytes that precede an Avro body."""
    return schema_id.to_bytes(WIRE_HEADER_BYTES, "big")


def schema_id_of(value: bytes | None, topic: str, offset: int | None = None) -> int:
    """Return the schema id of a record value; CorruptRecord, naming its place, without one."""
    if value is None or len(value) < WIRE_HEADER_BYTES or value[0] != _MAGIC:
        start = None if value is None else value[:WIRE_HEADER_BYTES].hex()
        where = place(topic, offset)
        raise CorruptRecord(f"{where}: not in the Confluent wire format (begins with {start})")
    return int.from_bytes(value[1:WIRE_HEADER_BYTES], "big")


def place(topic: str, offset: int | None) -> str:
    """Return the place of a record in words; only for errors, as it costs more than the check."""
    return topic if offset is None else f"{topic}, offset {offset}"


class SchemaIds(Protocol):
    """Schema ids of a keyspace. Both directions are cached; ids never change."""

    def register(self, text: str) -> int:
        """Return the id of a schema, registering it if it is new; it is then readable."""

    def text_of(self, schema_id: int) -> str:
        """Return the schema with this id; Halt when there is none."""
