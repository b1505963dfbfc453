"""The fields of the envelope, which every record of a shard log begins with, and their versions.

ENVELOPE is the one table of them. The Avro schema, the Arrow columns (`topics.arrow`), the values
of a statement's record and the order in which `topics.records.envelope` reads are made from it or
are checked against it by tests. Compiled code spells out the fields of version 1 only.

A later release adds a field by one row at the end of the table, with `since` and a default: see
"Upgrades" in docs/architecture.md.
"""

from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

# Both by their index on the wire.
EVENT_TYPES: Final = ("ROW", "DDL", "JOURNAL", "LAST_PK", "COPY_COMPLETED", "SKIP")
OPS: Final = ("NONE", "INSERT", "UPDATE", "DELETE", "READ")
# The version of the envelope that added a type or an op at the end of its list, unless it is 1.
SYMBOLS_SINCE: Final[dict[str, int]] = {}

_TOKEN: Final = [
    {"name": "timestamp_us", "type": "long"},
    {"name": "shard", "type": "string"},
    {"name": "position", "type": "string"},
]
_ORIGIN: Final = {"type": "record", "name": "Origin", "fields": _TOKEN}
_INVALID_DATE: Final = {
    "type": "record",
    "name": "InvalidDate",
    "fields": [
        {"name": "image", "type": "int"},
        {"name": "column", "type": "int"},
        {"name": "text", "type": "string"},
    ],
}


@dataclass(frozen=True, slots=True)
class EnvelopeField:
    """A field of the envelope.

    `avro` is its type on the wire; that of a field added later is string, long, boolean or bytes,
    or ["null", one of these]. `default` is its value in records of versions before `since`, and in
    records whose writer does not set it. `column` is the type of the Arrow column that shows it
    (string, long, boolean, bytes), "" if none does.
    """

    name: str
    avro: Any
    default: Any
    column: str = ""
    since: int = 1


# In the order of the wire. `columns_before` and `columns_after` are bit maps: column i is in the
# row image if bit (i & 7), counted from the lowest, of byte (i >> 3) is set; they are empty if
# there is no such image. `invalid_dates` has texts such as `2024-02-00` (image: 0 before, 1 after).
ENVELOPE: tuple[EnvelopeField, ...] = (
    EnvelopeField(
        "type", {"type": "enum", "name": "Type", "symbols": list(EVENT_TYPES)}, "ROW", "string"
    ),
    EnvelopeField("seq", "long", 0, "long"),
    EnvelopeField(
        "token",
        {
            "type": "record",
            "name": "EventToken",
            "fields": [*_TOKEN, {"name": "origin", "type": ["null", _ORIGIN]}],
        },
        None,
        "string",
    ),
    EnvelopeField("commit_us", "long", 0, "long"),
    EnvelopeField("gtid", "string", "", "string"),
    EnvelopeField("row_index", "long", 0, "long"),
    EnvelopeField("last", "boolean", False, "boolean"),
    EnvelopeField("database", "string", "", "string"),
    EnvelopeField("table", "string", "", "string"),
    EnvelopeField("op", {"type": "enum", "name": "Op", "symbols": list(OPS)}, "NONE", "string"),
    EnvelopeField("keyspace_id_before", ["null", "bytes"], None, "bytes"),
    EnvelopeField("keyspace_id_after", ["null", "bytes"], None, "bytes"),
    EnvelopeField("columns_before", "bytes", b""),
    EnvelopeField("columns_after", "bytes", b""),
    EnvelopeField("invalid_dates", {"type": "array", "items": _INVALID_DATE}, [], "string"),
)


def newest_version() -> int:
    """Return the newest version of the envelope, which this release writes."""
    return max(*(field.since for field in ENVELOPE), *SYMBOLS_SINCE.values(), 1)


def envelope_fields(version: int) -> list[dict[str, Any]]:
    """Return the fields of a version of the envelope as those of an Avro record."""
    return [
        {"name": field.name, "type": _as_of(version, field.avro)}
        for field in ENVELOPE
        if field.since <= version
    ]


def added_fields() -> tuple[EnvelopeField, ...]:
    """Return the fields that versions after 1 have added; they follow those of version 1."""
    return tuple(field for field in ENVELOPE if field.since > 1)


def envelope_defaults() -> dict[str, Any]:
    """Return an envelope in which nothing is set."""
    return {field.name: field.default for field in ENVELOPE}


def encoded_additions() -> bytes:
    """Return the added fields as they are on the wire, with their defaults."""
    from fastavro import parse_schema, schemaless_writer  # noqa: PLC0415 - a cache does without it

    fields = [{"name": field.name, "type": field.avro} for field in added_fields()]
    out = BytesIO()
    schemaless_writer(
        out,
        parse_schema({"type": "record", "name": "Added", "fields": fields}),
        envelope_defaults(),
    )
    return out.getvalue()


def _as_of(version: int, avro: Any) -> Any:
    """Return a type without the symbols that were added after a version."""
    if not isinstance(avro, dict) or avro["type"] != "enum":
        return avro
    return {**avro, "symbols": [s for s in avro["symbols"] if SYMBOLS_SINCE.get(s, 1) <= version]}
