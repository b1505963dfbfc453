"""Events as JSON, as `shardstream tail --json` prints them."""

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from json.encoder import encode_basestring as _string
from typing import Any, Final

from topics.errors import CorruptRecord
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import InvalidDate, Row, VEvent

# Nine significant digits distinguish all 32-bit floats.
_FLOAT_DIGITS_MAX: Final = 9

# Table versions whose plans are cached; a stream that mixes more rebuilds plans.
_PLANS_MAX: Final = 1024

_FRACTION: Final = re.compile(r"\w+\(([0-6])\)")

_MICROSECOND: Final = timedelta(microseconds=1)

# The text of a value other than NULL.
_ToText = Callable[[Any], str]

# `json.dumps` would make an encoder for each value.
_json_text: Final = json.JSONEncoder(ensure_ascii=False).encode


class _Number(str):
    """A number in the digits of the server, printed unchanged."""

    __slots__ = ()


def event_to_json_dict(event: VEvent) -> dict[str, Any]:
    """Return the event in types of the json module.

    Numbers inside JSON columns become Python numbers and lose digits beyond a double's, unlike in
    `event_to_json_text`. Columns that are not in the row image are absent. CorruptRecord when a
    JSON column does not contain JSON.
    """
    found: dict[str, Any] = json.loads(_event_text(event, _document_text))
    return found


def event_to_json_text(event: VEvent, *, with_position: bool = True) -> str:
    """Return the event as one line of JSON, with all digits of numbers in JSON columns.

    `with_position` False leaves `position` out, whose length grows with the shards.
    """
    return _event_text(event, _exact_document_text, with_position=with_position)


def _event_text(event: VEvent, document: _ToText, *, with_position: bool = True) -> str:
    """Return the event; `document` returns the text of a JSON column's value."""
    text = (
        f'{{"type": "{event.type}", "database": {_string(event.database)}, '
        f'"table": {_string(event.table)}, "op": "{event.op}", '
        f'"before": {_row_text(event, event.before, document)}, '
        f'"after": {_row_text(event, event.after, document)}, '
        f'"shard": {_string(event.shard)}, "seq": {event.seq}, "offset": {event.offset}, '
        f'"timestamp_us": {event.timestamp_us}, "gtid": {_string(event.gtid)}, '
        f'"token": "{event.token.to_string()}"'
    )
    if with_position:
        position = event.position
        text += ', "position": ' + ("null" if position is None else f'"{position.to_string()}"')
    for name, value in event.added.items():
        shown = _base64_text(value) if isinstance(value, bytes) else value
        text += f", {_string(name)}: {_json_text(shown)}"
    if event.statement is not None:
        text += f', "statement": {_string(event.statement)}'
    if event.late:
        text += ', "late": true'
    if event.possible_duplicate:
        text += ', "possible_duplicate": true'
    return text + "}"


def _row_text(event: VEvent, row: Row | None, document: _ToText) -> str:
    if row is None or event.shape is None:
        return "null"
    texts: list[str] = []
    for name, begin, to_text in _plan(event.shape).columns:
        if name not in row:
            continue
        value = row[name]
        if value is None:
            texts.append(begin + "null")
            continue
        if isinstance(value, InvalidDate):
            texts.append(begin + _string(value))
            continue
        try:
            texts.append(begin + (document if to_text is _document_text else to_text)(value))
        except ValueError as error:
            raise CorruptRecord(
                f"log of shard {event.shard}, offset {event.offset}: column {name} of "
                f"{event.database}.{event.table}: {error}",
            ) from error
    return "{" + ", ".join(texts) + "}"


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the rows of one table version are written: name, `"name": ` and text of each column."""

    shape: TableShape
    columns: tuple[tuple[str, str, _ToText], ...]


# By identity: all rows of a table version share one shape, which is long to compare.
_plans: Final[dict[int, _Plan]] = {}


def _plan(shape: TableShape) -> _Plan:
    found = _plans.get(id(shape))
    if found is None:
        if len(_plans) >= _PLANS_MAX:
            _plans.clear()
        columns = tuple((c.name, f"{_string(c.name)}: ", _to_text(c)) for c in shape.columns)
        found = _plans[id(shape)] = _Plan(shape, columns)
    return found


def _to_text(column: Column) -> _ToText:
    match column.kind:
        case ValueKind.FLOAT:
            return lambda value: _json_text(shortest_float(value))
        case ValueKind.DECIMAL:
            return lambda value: f'"{value:f}"'
        case ValueKind.BYTES:
            return lambda value: f'"{_base64_text(value)}"'
        case ValueKind.DATE:
            return lambda value: f'"{value.isoformat()}"'
        case ValueKind.TIME:
            digits = _fraction_digits(column.sql_type)
            return lambda value: f'"{_time_text(value, digits)}"'
        case ValueKind.DATETIME:
            digits = _fraction_digits(column.sql_type)
            return lambda value: f'"{_datetime_text(value, digits)}"'
        case ValueKind.TIMESTAMP:
            digits = _fraction_digits(column.sql_type)
            return lambda value: f'"{_datetime_text(value, digits)}Z"'
        case ValueKind.JSON:
            return _document_text
        case ValueKind.STRING | ValueKind.ENUM:
            return _string
        case (
            ValueKind.INT
            | ValueKind.LONG
            | ValueKind.UNSIGNED_LONG
            | ValueKind.YEAR
            | ValueKind.BIT
            | ValueKind.BIT64
        ):
            return int.__repr__
        case ValueKind.DOUBLE | ValueKind.SET:
            return _json_text


def _base64_text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def shortest_float(value: float) -> float:
    """Return the shortest number that rounds to the same 32-bit float: 0.1."""
    packed = struct.pack("<f", value)
    for digits in range(1, _FLOAT_DIGITS_MAX):
        shorter = float(f"{value:.{digits}g}")
        try:
            if struct.pack("<f", shorter) == packed:
                return shorter
        except OverflowError:  # the largest floats, rounded up
            continue
    return float(f"{value:.{_FLOAT_DIGITS_MAX}g}")


def _fraction_digits(sql_type: str) -> int | None:
    """Return the declared fractional digits of a time type; None: as many as the value has."""
    declared = _FRACTION.match(sql_type)
    return None if declared is None else int(declared[1])


def _fraction_text(microseconds: int, digits: int | None) -> str:
    text = f"{microseconds:06d}"
    # A declared precision never hides digits that are there.
    shown = max(len(text.rstrip("0")), digits or 0)
    return f".{text[:shown]}" if shown else ""


def _datetime_text(value: datetime, digits: int | None) -> str:
    whole = value.replace(microsecond=0, tzinfo=None).isoformat()
    return whole + _fraction_text(value.microsecond, digits)


def _time_text(value: timedelta, digits: int | None) -> str:
    seconds, microseconds = divmod(abs(value) // _MICROSECOND, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    sign = "-" if value < timedelta(0) else ""
    return f"{sign}{hour:02d}:{minute:02d}:{second:02d}{_fraction_text(microseconds, digits)}"


def _document_text(text: str) -> str:
    return _json_text(json.loads(text, parse_float=_finite, parse_constant=_no_constant))


def _exact_document_text(text: str) -> str:
    document = json.loads(
        text,
        parse_float=_Number,
        parse_int=_Number,
        parse_constant=_no_constant,
    )
    return _exact_text(document)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is beyond a double")
    return number


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _exact_text(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_string(k)}: {_exact_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_exact_text, value)) + "]"
    return _json_text(value)
