"""Events as JSON, as `shardstream tail --json` prints them."""

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
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

_ToJson = Callable[[Any], Any]


class _Number(str):
    """A number in the digits of the server, printed unchanged."""

    __slots__ = ()


def event_to_json_dict(event: VEvent) -> dict[str, Any]:
    """Return the event in types of the json module.

    Numbers inside JSON columns become Python numbers and lose digits beyond a double's, unlike in
    `event_to_json_text`. Columns that are not in the row image are absent. CorruptRecord when a
    JSON column does not contain JSON.
    """
    return _event(event, _parse_json)


def event_to_json_text(event: VEvent) -> str:
    """Return the event as one line of JSON, with all digits of numbers in JSON columns."""
    return _dump(_event(event, _parse_json_exactly))


def _event(event: VEvent, parse: _ToJson) -> dict[str, Any]:
    position = event.position
    fields: dict[str, Any] = {
        "type": event.type.value,
        "database": event.database,
        "table": event.table,
        "op": event.op.value,
        "before": _row(event, event.before, parse),
        "after": _row(event, event.after, parse),
        "shard": event.shard,
        "seq": event.seq,
        "offset": event.offset,
        "timestamp_us": event.timestamp_us,
        "gtid": event.gtid,
        "token": event.token.to_string(),
        "position": None if position is None else position.to_string(),
    }
    if event.statement is not None:
        fields["statement"] = event.statement
    if event.late:
        fields["late"] = True
    if event.possible_duplicate:
        fields["possible_duplicate"] = True
    return fields


def _row(event: VEvent, row: Row | None, parse: _ToJson) -> dict[str, Any] | None:
    if row is None or event.shape is None:
        return None
    converted: dict[str, Any] = {}
    for name, to_json in _plan(event.shape, parse):
        if name not in row:
            continue
        value = row[name]
        if value is None or isinstance(value, InvalidDate):
            converted[name] = value
            continue
        try:
            converted[name] = to_json(value)
        except ValueError as error:
            raise CorruptRecord(
                f"log of shard {event.shard}, offset {event.offset}: column {name} of "
                f"{event.database}.{event.table}: {error}",
            ) from error
    return converted


@lru_cache(maxsize=_PLANS_MAX)
def _plan(shape: TableShape, parse: _ToJson) -> tuple[tuple[str, _ToJson], ...]:
    return tuple((column.name, _to_json(column, parse)) for column in shape.columns)


def _to_json(column: Column, parse: _ToJson) -> _ToJson:
    match column.kind:
        case ValueKind.FLOAT:
            return shortest_float
        case ValueKind.DECIMAL:
            return _decimal_text
        case ValueKind.BYTES:
            return _base64_text
        case ValueKind.DATE:
            return date.isoformat
        case ValueKind.TIME:
            digits = _fraction_digits(column.sql_type)
            return lambda value: _time_text(value, digits)
        case ValueKind.DATETIME:
            digits = _fraction_digits(column.sql_type)
            return lambda value: _datetime_text(value, digits)
        case ValueKind.TIMESTAMP:
            digits = _fraction_digits(column.sql_type)
            return lambda value: _datetime_text(value, digits) + "Z"
        case ValueKind.JSON:
            return parse
        case _:
            return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _decimal_text(value: Decimal) -> str:
    return format(value, "f")


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


def _parse_json(text: str) -> Any:
    return json.loads(text, parse_float=_finite, parse_constant=_no_constant)


def _parse_json_exactly(text: str) -> Any:
    return json.loads(
        text,
        parse_float=_Number,
        parse_int=_Number,
        parse_constant=_no_constant,
    )


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is beyond a double")
    return number


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _dump(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_dump(k)}: {_dump(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_dump, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
