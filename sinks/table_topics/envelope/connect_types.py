"""Schemas in the terms of Kafka Connect, from which JSON and Avro schemas follow."""

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from event_token.errors import UsageError
from sinks.table_topics.options import (
    Decimals,
    EnvelopeOptions,
    Times,
    Unsigned,
)
from topics.records.table_shape import UNSIGNED_LONG_DIGITS, Column, ValueKind


@dataclass(frozen=True, slots=True)
class ConnectSchema:
    """A type of Connect: `name` gives a plain type its meaning (`io.debezium.time.Date`)."""

    type: str  # boolean, int16, int32, int64, float, double, string, bytes, struct, array
    optional: bool = True
    name: str | None = None
    version: int | None = None
    doc: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    default: str | None = None
    fields: tuple["ConnectField", ...] = ()  # of a struct
    items: "ConnectSchema | None" = None  # of an array

    def required(self) -> "ConnectSchema":
        """Return the same type without null."""
        return replace(self, optional=False)


@dataclass(frozen=True, slots=True)
class ConnectField:
    """A field of a struct."""

    name: str
    schema: ConnectSchema


def json_schema(schema: ConnectSchema, field: str | None = None) -> dict[str, Any]:
    """Return the schema as Connect's JsonConverter writes it into a message."""
    found: dict[str, Any] = {"type": schema.type}
    if schema.type == "struct":
        found["fields"] = [json_schema(f.schema, f.name) for f in schema.fields]
    if schema.items is not None:
        found["items"] = json_schema(schema.items)
    found["optional"] = schema.optional
    if schema.name is not None:
        found["name"] = schema.name
    if schema.version is not None:
        found["version"] = schema.version
    if schema.doc is not None:
        found["doc"] = schema.doc
    if schema.parameters:
        found["parameters"] = dict(schema.parameters)
    if schema.default is not None:
        found["default"] = schema.default
    if field is not None:
        found["field"] = field
    return found


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


_TEMPORAL: Final = {
    ValueKind.DATE: {
        Times.ADAPTIVE: ("int32", DATE),
        Times.CONNECT: ("int32", CONNECT_DATE),
        Times.ISOSTRING: ("string", ISO_DATE),
    },
    ValueKind.TIME: {
        Times.ADAPTIVE: ("int64", MICRO_TIME),
        Times.CONNECT: ("int32", CONNECT_TIME),
        Times.ISOSTRING: ("string", ISO_TIME),
    },
    ValueKind.DATETIME: {
        Times.ADAPTIVE: ("int64", TIMESTAMP),
        Times.CONNECT: ("int64", CONNECT_TIMESTAMP),
        Times.ISOSTRING: ("string", ISO_TIMESTAMP),
    },
}


def declared_number(sql_type: str) -> int:
    """Return the number in a type such as `datetime(6)` or `bit(20)`, 0 without one."""
    found = _DECLARED.match(sql_type)
    return 0 if found is None else int(found[1])


def connect_type(column: Column, options: EnvelopeOptions) -> ConnectSchema:
    """Return the type of a column's values. All are optional: the log does not record NOT NULL."""
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
    if column.kind is ValueKind.TIMESTAMP:
        return _named("string", ZONED_TIMESTAMP)
    of, name = _TEMPORAL[column.kind][times]
    if name == TIMESTAMP and declared_number(column.sql_type) > MILLISECOND_DIGITS:
        name = MICRO_TIMESTAMP
    return _named(of, name)


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


_PLAIN: Final = {
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
}
_LOGICAL: Final = {
    CONNECT_DATE: "date",
    CONNECT_TIME: "time-millis",
    CONNECT_TIMESTAMP: "timestamp-millis",
}
_INVALID: Final = re.compile(r"[^A-Za-z0-9_]")


def avro_name(name: str) -> str:
    """Return a valid Avro name: as Debezium's `avro` mode does, `_` for all other characters."""
    found = _INVALID.sub("_", name)
    return f"_{found}" if found[:1].isdigit() else found


def avro_schema(schema: ConnectSchema) -> dict[str, Any]:
    """Return the schema of a struct. UsageError when two fields would have the same name."""
    return _record(schema, set())


def _record(schema: ConnectSchema, known: set[str]) -> dict[str, Any]:
    parts = [avro_name(part) for part in (schema.name or "").split(".")]
    full_name = ".".join(parts)
    known.add(full_name)
    fields: dict[str, dict[str, Any]] = {}
    for field in schema.fields:
        name = avro_name(field.name)
        if name in fields:
            raise UsageError(
                f"{full_name}: two columns have the Avro name {name}: rename one, or choose JSON"
            )
        fields[name] = {"name": name, "type": _type(field.schema, known)}
        if field.schema.optional:
            fields[name]["default"] = field.schema.default
    return {
        "type": "record",
        "name": parts[-1],
        "namespace": ".".join(parts[:-1]),
        "fields": list(fields.values()),
        **_properties(schema, full_name),
    }


def _type(schema: ConnectSchema, known: set[str]) -> Any:
    found: Any
    if schema.type == "struct":
        full_name = ".".join(avro_name(part) for part in (schema.name or "").split("."))
        # A named type is defined where it occurs first.
        found = full_name if full_name in known else _record(schema, known)
    else:
        if schema.items is not None:
            found = {"type": "array", "items": _type(schema.items, known)}
        else:
            found = {"type": _PLAIN[schema.type]}
        found |= _properties(schema, schema.name)
        if len(found) == 1:
            found = found["type"]
    if not schema.optional:
        return found
    # A default must be of the first branch.
    return ["null", found] if schema.default is None else [found, "null"]


def _properties(schema: ConnectSchema, name: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    parameters = dict(schema.parameters)
    if schema.name == DECIMAL:
        found["scale"] = int(parameters["scale"])
        found["precision"] = int(parameters["connect.decimal.precision"])
    if schema.doc is not None:
        found["connect.doc"] = schema.doc
    if schema.version is not None:
        found["connect.version"] = schema.version
    if parameters:
        found["connect.parameters"] = parameters
    if schema.default is not None:
        found["connect.default"] = schema.default
    if name is not None:
        found["connect.name"] = name
    if schema.type == "int16":
        found["connect.type"] = "int16"
    if schema.name == DECIMAL:
        found["logicalType"] = "decimal"
    elif schema.name in _LOGICAL:
        found["logicalType"] = _LOGICAL[schema.name]
    return found
