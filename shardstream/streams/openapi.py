"""The OpenAPI document of the routes under `/v1`."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from event_token import Order
from shardstream.status.access import COOKIE
from shardstream.stream_filter import Images
from shardstream.streams.encoding import EVENT_NAMES
from shardstream.streams.request import PARAMETERS, StreamFormat

# Of this interface; its first part is in the paths.
API_VERSION: Final = "1.0"

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer", "format": "int64"}
_TOKEN_OR_NULL: Final = {"oneOf": [{"$ref": "#/components/schemas/Token"}, {"type": "null"}]}
_NUMBER_OR_NULL: Final = {"type": ["integer", "null"], "format": "int64"}

_DESCRIPTIONS: Final = {
    "start": "earliest, latest (default), copy, a time with a zone, us: and microseconds since "
    "1970, or a position; the header Last-Event-ID wins over it",
    "key_range": "Part of the keyspace, e.g. -80; default: all of it",
    "table": "database.table, or both in backquotes; default: all tables",
    "columns": "Columns of each row, with commas between (default: all), beside the primary key",
    "where": "Only rows of which this condition is true, as in filter rules; an update that enters "
    "or leaves them is an INSERT or a DELETE",
    "images": "both: all columns of the row before and after; after: of the row before, only the "
    "primary key; none: of both, only the primary key",
    "order": "merged: one order of all shards; unmerged: each shard as soon as its changes come",
    "max_hold_ms": "Continue without a shard that is silent for this long; its rows come late",
    "name": "Report the position on Kafka under this name, for `shardstream status`",
    "ids": "each: every event has its position; batch: the last of those that are sent together",
}
_SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = {
    "order": {"type": "string", "enum": ["merged", "unmerged"], "default": "merged"},
    "ids": {"type": "string", "enum": ["each", "batch"], "default": "each"},
    "images": {"type": "string", "enum": [each.value for each in Images], "default": "both"},
    "max_hold_ms": {"type": "integer", "minimum": 0},
    "table": {"type": "array", "items": _TEXT},
}

_ERRORS: Final = {
    400: "A parameter, or the body, is wrong; `message` says what",
    401: "The token is missing or wrong",
    403: "A page of another web site asks",
    404: "The settings name no such keyspace, or no producer of it has started",
    405: "A stream is asked for by GET",
    406: "`Accept` names no format of streams",
    409: "The position is of another keyspace or key range, or of a log that was recreated",
    410: "Retention has passed the start; `earliest` is the position to start from now",
    421: "Without a token, the host is neither an address nor localhost",
    429: "All streams, or all readers that catch up, are taken; `Retry-After` says when to ask",
    503: "No broker answers, or a shard has not reached the start; ask again",
}
# Any request may get these; the last two as text, before anything else is looked at.
_ANY_REQUEST: Final = (401, 403, 421)
_AS_TEXT: Final = frozenset((401, 421))
# Server-sent events come with 200 in their place, and `retry`.
_LATER: Final = (429, 503)


def openapi_document() -> dict[str, Any]:
    """Return the document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "shardstream",
            "version": API_VERSION,
            "description": "Change streams of keyspaces, with every event's position.",
        },
        "security": [{"bearer": []}, {"cookie": []}, {}],
        "paths": {
            "/v1/streams/{keyspace}": {"get": _stream()},
            "/v1/keyspaces": {
                "get": _operation(
                    "listKeyspaces",
                    "The keyspaces of the settings",
                    (),
                    _object(keyspaces=_list(_TEXT)),
                )
            },
            "/v1/keyspaces/{keyspace}": {
                "get": {
                    **_operation(
                        "getKeyspace",
                        "Shards, vindexes and reshards of a keyspace",
                        (404, 503),
                        {"$ref": "#/components/schemas/Keyspace"},
                    ),
                    "parameters": [_in_path("keyspace")],
                }
            },
            "/v1/tokens/compare": {
                "post": {
                    **_operation(
                        "compareTokens",
                        "OLDER, EQUAL, NEWER, UNKNOWN: what a is to b",
                        (400,),
                        _object(order={"type": "string", "enum": [each.name for each in Order]}),
                    ),
                    "requestBody": {
                        "required": True,
                        "content": _json(
                            {**_object(a=_TEXT, b=_TEXT), "additionalProperties": False}
                        ),
                    },
                }
            },
            "/v1/positions/{position}": {
                "get": {
                    **_operation(
                        "decode",
                        "What a position or an event token says",
                        (400,),
                        {
                            "oneOf": [
                                {"$ref": "#/components/schemas/Position"},
                                {"$ref": "#/components/schemas/Token"},
                            ]
                        },
                    ),
                    "parameters": [_in_path("position")],
                }
            },
            "/v1/openapi.json": {"get": _operation("getOpenapi", "This document", (), _object())},
        },
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
            "schemas": {
                "Event": _event(),
                "Error": _error(),
                "Keyspace": _keyspace(),
                "Position": _position(),
                "Token": _token(),
            },
        },
    }


def _stream() -> dict[str, Any]:
    found = _operation(
        "readStream", "The changes of a keyspace, from a position onwards", _ERRORS, {}
    )
    sse = (
        f"Server-sent events named {', '.join(EVENT_NAMES)}; `id` is the position, `data` an Event "
        f"without `position`. In place of {' and '.join(map(str, _LATER))} a stream that ends at "
        f"once, with `retry` and the reason as a comment"
    )
    found["responses"]["200"] = {
        "description": "The stream, which has no end",
        "content": {
            StreamFormat.SSE.value: {"schema": {"type": "string", "description": sse}},
            StreamFormat.NDJSON.value: {"schema": {"$ref": "#/components/schemas/Event"}},
            StreamFormat.ARROW.value: {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "description": "Arrow IPC streams, one after the other; the metadata of a "
                    "record batch has `position` where the stream may be continued",
                }
            },
        },
    }
    return {**found, "parameters": [_in_path("keyspace"), *map(_in_query, PARAMETERS), _LAST_ID]}


_LAST_ID: Final = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The position to continue from",
    "schema": _TEXT,
}


def _operation(
    name: str, summary: str, errors: Iterable[int], answer: Mapping[str, Any]
) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(status): {
            "description": _ERRORS[status],
            "content": (
                {"text/plain": {"schema": _TEXT}}
                if status in _AS_TEXT
                else _json({"$ref": "#/components/schemas/Error"})
            ),
        }
        for status in sorted({*errors, *_ANY_REQUEST})
    }
    ok = {"description": summary, "content": _json(answer)}
    return {"operationId": name, "summary": summary, "responses": {"200": ok, **responses}}


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has all of these."""
    return {"type": "object", "properties": properties, "required": [*properties]}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _TEXT}


def _in_query(name: str) -> dict[str, Any]:
    schema = _SCHEMAS.get(name, _TEXT)
    return {"name": name, "in": "query", "description": _DESCRIPTIONS[name], "schema": schema}


def _event() -> dict[str, Any]:
    """Return what `shardstream tail --json` prints, and what only a stream has."""
    image = {"type": ["object", "null"]}
    return {
        "type": "object",
        "required": ["type"],
        "properties": {
            **dict.fromkeys(("type", "database", "table", "op", "shard", "gtid"), _TEXT),
            **dict.fromkeys(("token", "position", "statement"), _TEXT),
            **dict.fromkeys(("seq", "offset", "timestamp_us", "frontier_us"), _NUMBER),
            "before": image,
            "after": image,
            "late": {"type": "boolean"},
            "possible_duplicate": {"type": "boolean"},
            "waiting": {"type": "array", "items": _TEXT},
            **dict.fromkeys(("reason", "error", "message", "earliest"), _TEXT),
        },
    }


def _error() -> dict[str, Any]:
    found = _object(type=_TEXT, error=_TEXT, message=_TEXT)
    found["properties"]["earliest"] = _TEXT
    return found


def _keyspace() -> dict[str, Any]:
    return _object(
        keyspace=_TEXT,
        epoch=_NUMBER,
        shards=_list(_object(name=_TEXT, state=_TEXT, key_range=_TEXT)),
        vindexes=_list(_object(database=_TEXT, table=_TEXT, columns=_list(_TEXT), vindex=_TEXT)),
        reshards=_list(
            _object(
                id=_TEXT,
                sources=_list(_TEXT),
                targets=_list(_TEXT),
                state=_TEXT,
                hop_time_us=_NUMBER_OR_NULL,
            )
        ),
    )


def _position() -> dict[str, Any]:
    shard = _object(offset=_NUMBER, seq=_NUMBER, token=_TOKEN_OR_NULL)
    return _object(
        kind={"const": "position"},
        epoch=_NUMBER,
        frontier_us=_NUMBER,
        frontier=_TEXT,
        shards={"type": "object", "additionalProperties": shard},
    )


def _token() -> dict[str, Any]:
    return _object(
        kind={"const": "token"},
        shard=_TEXT,
        timestamp_us=_NUMBER_OR_NULL,
        time={"type": ["string", "null"]},
        flavor=_TEXT,
        gtids=_TEXT,
        origin=_TOKEN_OR_NULL,
    )
