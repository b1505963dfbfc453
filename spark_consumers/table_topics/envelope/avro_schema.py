"""Connect schemas as Avro schemas, as Confluent's AvroConverter writes them."""

import re
from typing import Any, Final

from event_token.errors import UsageError
from spark_consumers.table_topics.envelope import column_types as types
from spark_consumers.table_topics.envelope.connect_schema import ConnectSchema

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
    types.CONNECT_DATE: "date",
    types.CONNECT_TIME: "time-millis",
    types.CONNECT_TIMESTAMP: "timestamp-millis",
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
    if schema.name == types.DECIMAL:
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
    if schema.name == types.DECIMAL:
        found["logicalType"] = "decimal"
    elif schema.name in _LOGICAL:
        found["logicalType"] = _LOGICAL[schema.name]
    return found
