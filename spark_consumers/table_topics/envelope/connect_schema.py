"""Schemas in the terms of Kafka Connect, from which JSON and Avro schemas follow."""

from dataclasses import dataclass, replace
from typing import Any


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
