"""The Connect type of each kind of column, as Debezium's MySQL connector chooses it."""

import re
from typing import Final

from spark_consumers.table_topics.envelope.connect_schema import ConnectField, ConnectSchema
from spark_consumers.table_topics.envelope.options import (
    Decimals,
    EnvelopeOptions,
    Times,
    Unsigned,
)
from topics.records.table_shape import UNSIGNED_LONG_DIGITS, Column, ValueKind

DATE: Final = "io.debezium.time.Date"
MICRO_TIME: Final = "io.debezium.time.MicroTime"
TIMESTAMP: Final = "io.debezium.time.Timestamp"
MICRO_TIMESTAMP: Final = "io.debezium.time.MicroTimestamp"
ZONED_TIMESTAMP: Final = "io.debezium.time.ZonedTimestamp"
YEAR: Final = "io.debezium.time.Year"
ISO_DATE: Final = "io.debezium.time.IsoDate"
ISO_TIME: Final = "io.debezium.time.IsoTime"
ISO_TIMESTAMP: Final = "io.debezium.time.IsoTimestamp"
CONNECT_DATE: Final = "org.apache.kafka.connect.data.Date"
CONNECT_TIME: Final = "org.apache.kafka.connect.data.Time"
CONNECT_TIMESTAMP: Final = "org.apache.kafka.connect.data.Timestamp"
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
BITS: Final = "io.debezium.data.Bits"
ENUM: Final = "io.debezium.data.Enum"
ENUM_SET: Final = "io.debezium.data.EnumSet"
JSON: Final = "io.debezium.data.Json"
GEOMETRY: Final = "io.debezium.data.geometry.Geometry"
POINT: Final = "io.debezium.data.geometry.Point"
FLOAT_VECTOR: Final = "io.debezium.data.FloatVector"

# A DATETIME with more fractional digits does not fit milliseconds.
MILLISECOND_DIGITS: Final = 3
# A double has all decimals of that number of digits, each as a number of its own.
_DOUBLE_DIGITS: Final = 15
_GEOMETRIES: Final = frozenset(
    {
        *("geometry", "linestring", "polygon", "multipoint"),
        *("multilinestring", "multipolygon", "geometrycollection"),
    }
)
_INT16: Final = frozenset({"tinyint", "tinyint unsigned", "smallint"})
_DECLARED: Final = re.compile(r"\w+\((\d+)\)")

_OPTIONAL_INT32: Final = ConnectSchema("int32")
_BYTES: Final = ConnectSchema("bytes")
_GEOMETRY_SCHEMA: Final = ConnectSchema(
    "struct",
    name=GEOMETRY,
    version=1,
    doc="Geometry",
    fields=(ConnectField("wkb", _BYTES.required()), ConnectField("srid", _OPTIONAL_INT32)),
)
_POINT_SCHEMA: Final = ConnectSchema(
    "struct",
    name=POINT,
    version=1,
    doc="Geometry (POINT)",
    fields=(
        ConnectField("x", ConnectSchema("double", optional=False)),
        ConnectField("y", ConnectSchema("double", optional=False)),
        ConnectField("wkb", _BYTES),
        ConnectField("srid", _OPTIONAL_INT32),
    ),
)
_VECTOR_SCHEMA: Final = ConnectSchema(
    "array", name=FLOAT_VECTOR, version=1, items=ConnectSchema("float", optional=False)
)


def declared_number(sql_type: str) -> int:
    """Return the number in a type such as `datetime(6)` or `bit(20)`, 0 without one."""
    found = _DECLARED.match(sql_type)
    return 0 if found is None else int(found[1])


def connect_type(column: Column, options: EnvelopeOptions) -> ConnectSchema:
    """Return the type of a column's values. All are optional: the log does not tell NOT NULL."""
    match column.kind:
        case ValueKind.INT:
            return ConnectSchema("int16" if column.sql_type in _INT16 else "int32")
        case ValueKind.LONG:
            return ConnectSchema("int64")
        case ValueKind.UNSIGNED_LONG:
            if options.unsigned is Unsigned.LONG:
                return ConnectSchema("int64")
            return _decimal(UNSIGNED_LONG_DIGITS, 0)
        case ValueKind.FLOAT:
            return ConnectSchema("float")
        case ValueKind.DOUBLE:
            return ConnectSchema("double")
        case ValueKind.DECIMAL:
            return _decimal_as(options.decimal, column)
        case ValueKind.STRING:
            return ConnectSchema("string")
        case ValueKind.BYTES:
            return _bytes(column.sql_type)
        case ValueKind.YEAR:
            return _named("int32", YEAR)
        case ValueKind.ENUM:
            return _named("string", ENUM, allowed=",".join(column.labels))
        case ValueKind.SET:
            return _named("string", ENUM_SET, allowed=",".join(column.labels))
        case ValueKind.JSON:
            return _named("string", JSON)
        case ValueKind.BIT | ValueKind.BIT64:
            bits = declared_number(column.sql_type)
            return (
                ConnectSchema("boolean") if bits == 1 else _named("bytes", BITS, length=str(bits))
            )
        case ValueKind.DATE | ValueKind.TIME | ValueKind.DATETIME | ValueKind.TIMESTAMP:
            return _temporal(column, options.time)


def keeps_values_apart(column: Column, to: ConnectSchema) -> bool:
    """Tell whether different values of a column stay different as `to`, as those of a key must."""
    if column.kind is ValueKind.DECIMAL and to.type == "double":
        return column.precision <= _DOUBLE_DIGITS
    is_cut = to.name in {CONNECT_TIME, CONNECT_TIMESTAMP}
    return not is_cut or declared_number(column.sql_type) <= MILLISECOND_DIGITS


def _temporal(column: Column, times: Times) -> ConnectSchema:
    is_milliseconds = declared_number(column.sql_type) <= MILLISECOND_DIGITS
    match column.kind, times:
        case ValueKind.TIMESTAMP, _:
            return _named("string", ZONED_TIMESTAMP)
        case ValueKind.DATE, Times.ADAPTIVE:
            return _named("int32", DATE)
        case ValueKind.DATE, Times.CONNECT:
            return _named("int32", CONNECT_DATE)
        case ValueKind.DATE, Times.ISOSTRING:
            return _named("string", ISO_DATE)
        case ValueKind.TIME, Times.ADAPTIVE:
            return _named("int64", MICRO_TIME)
        case ValueKind.TIME, Times.CONNECT:
            return _named("int32", CONNECT_TIME)
        case ValueKind.TIME, Times.ISOSTRING:
            return _named("string", ISO_TIME)
        case _, Times.ADAPTIVE:
            return _named("int64", TIMESTAMP if is_milliseconds else MICRO_TIMESTAMP)
        case _, Times.CONNECT:
            return _named("int64", CONNECT_TIMESTAMP)
        case _:
            return _named("string", ISO_TIMESTAMP)


def _decimal_as(decimals: Decimals, column: Column) -> ConnectSchema:
    match decimals:
        case Decimals.PRECISE:
            return _decimal(column.precision, column.scale)
        case Decimals.STRING:
            return ConnectSchema("string")
        case Decimals.DOUBLE:
            return ConnectSchema("double")


def _decimal(precision: int, scale: int) -> ConnectSchema:
    parameters = (("scale", str(scale)), ("connect.decimal.precision", str(precision)))
    return ConnectSchema("bytes", name=DECIMAL, version=1, parameters=parameters)


def _bytes(sql_type: str) -> ConnectSchema:
    if sql_type in _GEOMETRIES:
        return _GEOMETRY_SCHEMA
    if sql_type == "point":
        return _POINT_SCHEMA
    return _VECTOR_SCHEMA if sql_type.startswith("vector(") else _BYTES


def _named(of: str, name: str, **parameters: str) -> ConnectSchema:
    return ConnectSchema(of, name=name, version=1, parameters=tuple(parameters.items()))
