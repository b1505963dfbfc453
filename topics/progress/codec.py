"""Encodes and decodes progress records; their schema is registered like any other."""

import json
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, TypeAlias

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from event_token.errors import Halt
from topics.errors import CorruptRecord
from topics.progress.record import (
    BinlogReach,
    InParts,
    LastDdl,
    LastTransaction,
    Mark,
    MarkKind,
    PassedStatements,
    Progress,
    Skipped,
    StopReason,
    Tick,
)
from topics.records.table_shape import (
    WIRE_HEADER_BYTES,
    SchemaIds,
    schema_id_of,
    schema_text,
    wire_header,
)

Headers: TypeAlias = Sequence[tuple[str, bytes]]

# Each form of progress has one, or two with a registry that changes white space.
_SCHEMAS_MAX: Final = 16
Written: TypeAlias = list[tuple[str, str | bytes | None]]

_DDL: Final = "shardstream.ddl"
_STOPPED: Final = "shardstream.stopped"
_PASSED: Final = "shardstream.passed"
_BINLOGS: Final = "shardstream.binlogs"
_PROVED: Final = "shardstream.proved"


def note_headers(progress: Progress) -> Written:
    """Return the headers of a progress record, as Kafka's client takes them."""
    written: Written = []
    if progress.ddl is not None:
        written.append((_DDL, json.dumps(asdict(progress.ddl)).encode()))
    if progress.stopped is not None:
        written.append((_STOPPED, json.dumps(asdict(progress.stopped)).encode()))
    if progress.passed is not None:
        written.append((_PASSED, json.dumps(asdict(progress.passed)).encode()))
    if progress.binlogs is not None:
        written.append((_BINLOGS, json.dumps(asdict(progress.binlogs)).encode()))
    if progress.proved is not None:
        written.append((_PROVED, json.dumps(progress.proved).encode()))
    return written


def with_notes(progress: Progress, headers: Headers) -> Progress:
    """Return a progress record with what its headers say."""
    for name, value in headers:
        with suppress(ValueError, TypeError, AttributeError):
            if name == _DDL:
                progress = replace(progress, ddl=_ddl(json.loads(value)))
            elif name == _STOPPED:
                progress = replace(progress, stopped=_stopped(json.loads(value)))
            elif name == _PASSED:
                progress = replace(progress, passed=_passed(json.loads(value)))
            elif name == _BINLOGS:
                progress = replace(progress, binlogs=_binlogs(json.loads(value)))
            elif name == _PROVED:
                progress = replace(progress, proved=int(json.loads(value)))
    return progress


# A later release may say more.


def _ddl(fields: dict[str, object]) -> LastDdl:
    return LastDdl(_time(fields), str(fields.get("kind", "")), str(fields.get("tables", "")))


def _stopped(fields: dict[str, object]) -> StopReason:
    restarts = fields.get("restarts")
    return StopReason(
        _time(fields),
        str(fields.get("error", "")),
        str(fields.get("text", "")),
        restarts if isinstance(restarts, int) else 0,
        str(fields.get("command", "")),
    )


def _passed(fields: dict[str, object]) -> PassedStatements:
    count = fields.get("count")
    if not isinstance(count, int):
        raise TypeError(count)
    return PassedStatements(count, _time(fields), str(fields.get("table", "")))


def _binlogs(fields: dict[str, object]) -> BinlogReach:
    since_us, kept_s = fields.get("since_us"), fields.get("kept_s")
    if not isinstance(since_us, int):
        raise TypeError(since_us)
    return BinlogReach(since_us, kept_s if isinstance(kept_s, int) else None)


def _time(fields: dict[str, object]) -> int:
    at_us = fields.get("at_us")
    if not isinstance(at_us, int):
        raise TypeError(at_us)
    return at_us


# A single key, so that compaction keeps the last record.
PROGRESS_KEY: Final = b"progress"


def _record(name: str, **types: object) -> dict[str, Any]:
    fields = [{"name": field, "type": kind} for field, kind in types.items()]
    return {"type": "record", "name": name, "fields": fields}


_TICK: Final = _record("Tick", timestamp_us="long", offset="long")
_NAMES: Final = {"type": "array", "items": "string"}
_MARK: Final = _record(
    "Mark",
    # Written out: a symbol more is another schema, which needs a new version.
    kind={"type": "enum", "name": "MarkKind", "symbols": ["BEGIN", "END", "CANCEL"]},
    offset="long",
    reshard_id="string",
    sources=_NAMES,
    targets=_NAMES,
    hop_time_us=["null", "long"],
)
_LAST: Final = _record(
    "LastTransaction",
    gtid="string",
    commit_us="long",
    server="string",
    binlog_file="string",
    binlog_pos="long",
)
_SKIPPED: Final = _record("Skipped", count="long", last_us="long")
_FIELDS: Final = _record(
    "Progress",
    first_seq="long",
    last_seq="long",
    end_offset="long",
    flavor="string",
    position="string",
    head_us="long",
    ticks={"type": "array", "items": _TICK},
    mark=["null", _MARK],
    server="string",
    server_time_us="long",
    lag_ms="long",
    lasts={"type": "array", "items": _LAST},
    identity="string",
    skipped=["null", _SKIPPED],
)["fields"]

# A new version is another schema with another id; readers refuse schemas that they do not know.
_SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Progress",
    "namespace": "shardstream",
    "progress": 1,
    "fields": _FIELDS,
}
PROGRESS_SCHEMA_TEXT: Final = schema_text(_SCHEMA)

# Of progress that covers records in parts, which releases without them must not read.
_IN_PARTS: Final = _record("InParts", seq="long", parts="long")
_SCHEMA_2: Final[dict[str, Any]] = {
    **_SCHEMA,
    "progress": 2,
    "fields": [*_FIELDS, {"name": "in_parts", "type": {"type": "array", "items": _IN_PARTS}}],
}
_TEXT_2: Final = schema_text(_SCHEMA_2)
_AVRO: Final = {text: parse_schema(json.loads(text)) for text in (PROGRESS_SCHEMA_TEXT, _TEXT_2)}


@lru_cache(maxsize=_SCHEMAS_MAX)
def _known_text(text: str) -> str | None:
    """Return a schema of progress as this release writes it, None for one of another release.

    A registry may return the same schema with different white space.
    """
    fields = json.loads(text)
    return next((known for known in _AVRO if json.loads(known) == fields), None)


def encode_progress(progress: Progress, schema_ids: SchemaIds) -> bytes:
    """Return the value of a progress record; its key is PROGRESS_KEY. Notes are in its headers."""
    fields = asdict(progress)
    for note in ("ddl", "stopped", "passed", "binlogs", "proved"):
        del fields[note]
    text = PROGRESS_SCHEMA_TEXT
    if progress.in_parts:
        text = _TEXT_2
        fields["in_parts"] = [each._asdict() for each in progress.in_parts]
    else:
        del fields["in_parts"]
    stream = BytesIO()
    stream.write(wire_header(schema_ids.register(text)))
    schemaless_writer(stream, _AVRO[text], fields)
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
    text = _known_text(schema_ids.text_of(schema_id))
    if text is None:
        raise Halt(
            f"{where}: schema {schema_id} is not a progress record that this release knows: read "
            f"it with the release that wrote it"
        )
    stream = BytesIO(value or b"")
    stream.seek(WIRE_HEADER_BYTES)
    try:
        fields: Any = schemaless_reader(stream, _AVRO[text], None)
    except (EOFError, IndexError, OverflowError, ValueError, struct.error) as error:
        raise CorruptRecord(f"{where}: the record does not follow its schema: {error}") from error
    if stream.read(1):
        raise CorruptRecord(f"{where}: bytes are left after the last field")
    mark, skipped = fields.pop("mark"), fields.pop("skipped")
    progress = Progress(
        ticks=tuple(Tick(**tick) for tick in fields.pop("ticks")),
        mark=None if mark is None else _mark(mark),
        lasts=tuple(LastTransaction(**last) for last in fields.pop("lasts")),
        skipped=None if skipped is None else Skipped(**skipped),
        in_parts=tuple(InParts(**each) for each in fields.pop("in_parts", ())),
        **fields,
    )
    return with_notes(progress, headers) if headers else progress


def _mark(fields: dict[str, Any]) -> Mark:
    lists = {name: tuple(fields[name]) for name in ("sources", "targets")}
    return Mark(**{**fields, **lists, "kind": MarkKind(fields["kind"])})
