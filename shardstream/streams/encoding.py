"""Events, watermarks and errors of a stream as bytes: server-sent events or lines of JSON. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from databases.statements import TokenReader, readings, without_setting
from event_token import StreamPosition
from event_token.errors import ShardstreamError, UsageError
from event_token.position import later_of
from shardstream.streams.request import RequestRefused, StreamFormat
from topics.reading.followed_shards import Wait
from topics.records.event_json import event_to_json_text
from topics.records.vevent import EventType, VEvent

# The names of server-sent events.
WATERMARK: Final = "watermark"
ERROR: Final = "error"
TRUNCATE: Final = "truncate"
_NAMES: Final = {
    EventType.ROW: "row",
    EventType.DDL: "ddl",
    EventType.JOURNAL: "hop",
    EventType.SKIP: "skip",
    EventType.LAST_PK: "copy",
    EventType.COPY_COMPLETED: "copy",
}
# Clients whose language takes these for the ends of lines would cut an event in two. In JSON they
# stand in strings alone.
_LINE_ENDS: Final = ("\x85", "\u2028", "\u2029")
EVENT_NAMES: Final = (*dict.fromkeys(_NAMES.values()), TRUNCATE, WATERMARK, ERROR)


@dataclass(frozen=True)
class Reached:
    """Where a reader is: its position, and the shards that it waits for, None while events come.

    Clients that share a reader share its texts: a position is long where there are many shards.
    """

    position: StreamPosition
    waiting: Wait | None

    @cached_property
    def text(self) -> str:
        """A watermark, without the position."""
        return json.dumps(watermark_json(self))

    @cached_property
    def position_text(self) -> str:
        """The position, as clients get it."""
        return self.position.to_string()


def event_name(event: VEvent) -> str:
    """Return the name of an event; that of a DDL statement which empties a table is its own."""
    if event.type is EventType.DDL and _is_truncate(event.statement or ""):
        return TRUNCATE
    return _NAMES[event.type]


def _is_truncate(statement: str) -> bool:
    return TokenReader(without_setting(readings(statement)[0])).comes("TRUNCATE")


def watermark_json(reached: Reached) -> dict[str, Any]:
    """Return a watermark: `frontier_us`, before which everything has come, and what holds it."""
    waiting = reached.waiting
    return {
        "type": WATERMARK.upper(),
        "frontier_us": reached.position.frontier_us,
        "waiting": [] if waiting is None else list(waiting.shards),
        "reason": "" if waiting is None else waiting.reason,
    }


def error_json(error: ShardstreamError) -> dict[str, Any]:
    """Return an error: its class, what happened, and the earliest start where that is known."""
    cause = error.__cause__ if isinstance(error, RequestRefused) else None
    found: dict[str, Any] = {
        "type": ERROR.upper(),
        "error": type(cause or error).__name__,
        "message": str(error),
    }
    if isinstance(error, RequestRefused) and error.earliest is not None:
        found["earliest"] = error.earliest
    return found


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a client's stream is written; those of one encoding share its bytes.

    `has_every_id` False: of events that are written together, only the last has a position.
    """

    format: StreamFormat
    has_every_id: bool

    def events(self, events: Sequence[VEvent], read: StreamPosition | None = None) -> list[bytes]:
        """Return each event. CorruptRecord when one cannot be decoded.

        `read`: what the client has read beside these events; no position is before it.
        """
        last = len(events) - 1
        write = _sse_event if self.format is StreamFormat.SSE else _ndjson_event
        return [
            write(event, _position_text(event, read) if self.has_every_id or at == last else "")
            for at, event in enumerate(events)
        ]

    def watermark(self, reached: Reached) -> bytes:
        """Return a watermark with its position."""
        if self.format is StreamFormat.SSE:
            return _sse(WATERMARK, reached.text, reached.position_text)
        return _line(reached.text, reached.position_text)

    def error(self, error: ShardstreamError) -> bytes:
        """Return an error, after which the stream ends."""
        text = json.dumps(error_json(error))
        return _sse(ERROR, text) if self.format is StreamFormat.SSE else text.encode() + b"\n"


def _position_text(event: VEvent, read: StreamPosition | None) -> str:
    position = event.position
    if position is None:
        raise UsageError("an event of a stream has no position")
    return (position if read is None else later_of(position, read)).to_string()


def _event_text(event: VEvent) -> str:
    text = event_to_json_text(event, with_position=False)
    if not text.isascii():
        for end in _LINE_ENDS:
            text = text.replace(end, f"\\u{ord(end):04x}")
    return text


def _sse_event(event: VEvent, position: str) -> bytes:
    return _sse(event_name(event), _event_text(event), position)


def _ndjson_event(event: VEvent, position: str) -> bytes:
    return _line(_event_text(event), position)


def _line(text: str, position: str) -> bytes:
    if position:
        text = f'{text[:-1]}, "position": "{position}"}}'
    return text.encode() + b"\n"


def _sse(name: str, text: str, position: str = "") -> bytes:
    """Return a server-sent event; JSON has no line break of its own."""
    event_id = f"id: {position}\n" if position else ""
    return f"{event_id}event: {name}\ndata: {text}\n\n".encode()
