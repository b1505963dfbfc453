"""Encodes and decodes progress records; their schema is registered like any other."""

import json
import struct
from dataclasses import asdict
from io import BytesIO
from typing import Any, Final

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from event_token.errors import Halt
from topics.errors import CorruptRecord
from topics.progress.notes import Headers, with_notes
from topics.progress.record import LastTransaction, Mark, MarkKind, Progress, Skipped, Tick
from topics.records.schema_ids import SchemaIds
from topics.records.table_shape import schema_text
from topics.records.wire import WIRE_HEADER_BYTES, schema_id_of, wire_header

# A single key, so that compaction keeps the last record.
PROGRESS_KEY: Final = b"progress"

_TICK: Final = {
    "type": "record",
    "name": "Tick",
    "fields": [{"name": "timestamp_us", "type": "long"}, {"name": "offset", "type": "long"}],
}

_MARK: Final = {
    "type": "record",
    "name": "Mark",
    "fields": [
        {
            "name": "kind",
            "type": {"type": "enum", "name": "MarkKind", "symbols": [k.value for k in MarkKind]},
        },
        {"name": "offset", "type": "long"},
        {"name": "reshard_id", "type": "string"},
        {"name": "sources", "type": {"type": "array", "items": "string"}},
        {"name": "targets", "type": {"type": "array", "items": "string"}},
        {"name": "hop_time_us", "type": ["null", "long"]},
    ],
}

_LAST: Final = {
    "type": "record",
    "name": "LastTransaction",
    "fields": [
        {"name": "gtid", "type": "string"},
        {"name": "commit_us", "type": "long"},
        {"name": "server", "type": "string"},
        {"name": "binlog_file", "type": "string"},
        {"name": "binlog_pos", "type": "long"},
    ],
}

_SKIPPED: Final = {
    "type": "record",
    "name": "Skipped",
    "fields": [{"name": "count", "type": "long"}, {"name": "last_us", "type": "long"}],
}


def _schema(layout: int, *added: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Progress",
        "namespace": "shardstream",
        "progress": layout,
        "fields": [
            {"name": "first_seq", "type": "long"},
            {"name": "last_seq", "type": "long"},
            {"name": "end_offset", "type": "long"},
            {"name": "flavor", "type": "string"},
            {"name": "position", "type": "string"},
            {"name": "head_us", "type": "long"},
            {"name": "ticks", "type": {"type": "array", "items": _TICK}},
            {"name": "mark", "type": ["null", _MARK]},
            {"name": "server", "type": "string"},
            {"name": "server_time_us", "type": "long"},
            {"name": "lag_ms", "type": "long"},
            *added,
        ],
    }


# A new layout is another schema with another id; readers refuse schemas that they do not know.
# Records of layout 1 are still read: a log may hold all of them. Layout 3 is written only after a
# skip, whose own record stops readers of earlier releases by name.
_LAYOUT_1: Final = _schema(1)
_ADDED_BY_2: Final = (
    {"name": "last", "type": ["null", _LAST]},
    {"name": "identity", "type": "string"},
)
_LAYOUT_2: Final = _schema(2, *_ADDED_BY_2)
_LAYOUT_3: Final = _schema(3, *_ADDED_BY_2, {"name": "skipped", "type": _SKIPPED})
PROGRESS_SCHEMA_TEXT: Final = schema_text(_LAYOUT_2)
_AFTER_SKIP_TEXT: Final = schema_text(_LAYOUT_3)

_AVRO_BY_TEXT: Final = {
    PROGRESS_SCHEMA_TEXT: parse_schema(_LAYOUT_2),
    _AFTER_SKIP_TEXT: parse_schema(_LAYOUT_3),
    schema_text(_LAYOUT_1): parse_schema(_LAYOUT_1),
}


def encode_progress(progress: Progress, schema_ids: SchemaIds) -> bytes:
    """Return the value of a progress record; its key is PROGRESS_KEY. Notes are in its headers."""
    mark, last, skipped = progress.mark, progress.last, progress.skipped
    text = PROGRESS_SCHEMA_TEXT if skipped is None else _AFTER_SKIP_TEXT
    stream = BytesIO()
    stream.write(wire_header(schema_ids.register(text)))
    schemaless_writer(
        stream,
        _AVRO_BY_TEXT[text],
        {
            "first_seq": progress.first_seq,
            "last_seq": progress.last_seq,
            "end_offset": progress.end_offset,
            "flavor": progress.flavor,
            "position": progress.position,
            "head_us": progress.head_us,
            "ticks": [{"timestamp_us": t.timestamp_us, "offset": t.offset} for t in progress.ticks],
            "mark": None
            if mark is None
            else {
                "kind": mark.kind.value,
                "offset": mark.offset,
                "reshard_id": mark.reshard_id,
                "sources": list(mark.sources),
                "targets": list(mark.targets),
                "hop_time_us": mark.hop_time_us,
            },
            "server": progress.server,
            "server_time_us": progress.server_time_us,
            "lag_ms": progress.lag_ms,
            "last": None if last is None else asdict(last),
            "identity": progress.identity,
            "skipped": None if skipped is None else asdict(skipped),
        },
    )
    return stream.getvalue()


def decode_progress(
    value: bytes | None,
    schema_ids: SchemaIds,
    where: str = "a progress topic",
    headers: Headers = (),
) -> Progress:
    """Decode the value of a progress record, and its notes.

    CorruptRecord, naming `where`, on broken bytes; Halt on a schema of another release.
    """
    schema_id = schema_id_of(value, where)
    schema = _known_schema(schema_id, schema_ids, where)
    stream = BytesIO(value or b"")
    stream.seek(WIRE_HEADER_BYTES)
    try:
        fields: Any = schemaless_reader(stream, schema, None)
    except (EOFError, IndexError, OverflowError, ValueError, struct.error) as error:
        raise CorruptRecord(f"{where}: the record does not follow its schema: {error}") from error
    if stream.read(1):
        raise CorruptRecord(f"{where}: bytes are left after the last field")
    mark = fields.pop("mark")
    ticks = tuple(Tick(t["timestamp_us"], t["offset"]) for t in fields.pop("ticks"))
    last, skipped = fields.pop("last", None), fields.pop("skipped", None)
    progress = Progress(
        ticks=ticks,
        mark=None if mark is None else _mark(mark),
        last=None if last is None else LastTransaction(**last),
        skipped=None if skipped is None else Skipped(**skipped),
        **fields,
    )
    return with_notes(progress, headers) if headers else progress


def _mark(fields: dict[str, Any]) -> Mark:
    return Mark(
        kind=MarkKind(fields["kind"]),
        offset=fields["offset"],
        reshard_id=fields["reshard_id"],
        sources=tuple(fields["sources"]),
        targets=tuple(fields["targets"]),
        hop_time_us=fields["hop_time_us"],
    )


def _known_schema(schema_id: int, schema_ids: SchemaIds, where: str) -> Any:
    text = schema_ids.text_of(schema_id)
    if text in _AVRO_BY_TEXT:
        return _AVRO_BY_TEXT[text]
    # A registry may return the same schema with different white space.
    for known, schema in _AVRO_BY_TEXT.items():
        if json.loads(text) == json.loads(known):
            return schema
    raise Halt(
        f"{where}: schema {schema_id} is not a progress record that this release knows: read it "
        f"with the release that wrote it"
    )
