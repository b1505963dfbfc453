"""Column values as SQL literals that the server stores unchanged. Pure.

The session must be in UTC with a sql_mode that allows invalid dates (`target_session.STRICT_MODE`).
Text and bytes are hexadecimal: no quoting rule and no character set can change them.
"""

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from databases.sql import text_literal
from topics.records.table_shape import Column, ValueKind
from topics.records.vevent import InvalidDate, Value

ToLiteral = Callable[[Any], str]

# A quick test: most documents hold no such number.
_MAY_BE_DECIMAL: Final = re.compile(r"\d\.\d|\d{19}")
_DATE_KINDS: Final = frozenset((ValueKind.DATE, ValueKind.DATETIME, ValueKind.TIMESTAMP))
_INTEGERS: Final = range(-(2**63), 2**64)

_UTC_OFFSET: Final = "+00:00"
_MICROSECOND: Final = timedelta(microseconds=1)


def literal_writer(column: Column) -> ToLiteral:
    """Return a function that writes the values of a column that are not NULL."""
    write = _writer(column)
    if column.kind not in _DATE_KINDS:
        return write
    return lambda value: text_literal(value) if isinstance(value, InvalidDate) else write(value)


def is_error_label(column: Column, value: Value) -> bool:
    """Whether the value is the ENUM error value, index 0, which strict mode takes from nobody."""
    return column.kind is ValueKind.ENUM and value == "" and "" not in column.labels


def _writer(column: Column) -> ToLiteral:
    match column.kind:
        case ValueKind.FLOAT | ValueKind.DOUBLE:
            return _float
        case ValueKind.DECIMAL:
            return _decimal
        case ValueKind.STRING:
            return text_literal
        case ValueKind.JSON:
            return _json
        case ValueKind.ENUM:
            return _label_writer(column)
        case ValueKind.SET:
            return lambda value: text_literal(",".join(value))
        case ValueKind.BYTES:
            return lambda value: f"x'{value.hex()}'"
        case ValueKind.DATE:
            return lambda value: f"'{value.isoformat()}'"
        case ValueKind.DATETIME:
            return lambda value: f"'{value.isoformat(' ')}'"
        case ValueKind.TIMESTAMP:  # without the offset, which is that of UTC, as the session's
            return lambda value: f"'{value.isoformat(' ')[: -len(_UTC_OFFSET)]}'"
        case ValueKind.TIME:
            return _time
        case _:
            return str  # whole numbers: integers, YEAR, BIT


def _label_writer(column: Column) -> ToLiteral:
    known = {label: text_literal(label) for label in column.labels}
    if is_error_label(column, ""):
        known[""] = "0"
    return lambda value: known.get(value) or text_literal(value)


def _json(text: str) -> str:
    """A JSON document whose decimals stay decimals.

    The server would parse 12.50 as a double and print 12.5, so such numbers are set one by one.
    """
    if not _MAY_BE_DECIMAL.search(text):
        return text_literal(text)
    document = json.loads(text, parse_float=_Digits, parse_int=_Digits)
    decimals = "".join(
        f", {text_literal(path)}, {number}" for path, number in _decimals(document, "$")
    )
    return (
        f"JSON_SET(CAST({text_literal(text)} AS JSON){decimals})"
        if decimals
        else text_literal(text)
    )


class _Digits(str):
    """A number, digit by digit as the server printed it."""

    __slots__ = ()


def _decimals(value: Any, path: str) -> Iterator[tuple[str, _Digits]]:
    """Yield path and digits of each number that a double or a 64-bit integer does not print."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _decimals(item, f"{path}.{json.dumps(key)}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _decimals(item, f"{path}[{i}]")
    elif isinstance(value, _Digits) and "e" not in value.lower():
        if "." not in value:
            is_decimal = int(value) not in _INTEGERS
        else:
            trailing = value.endswith("0") and not value.endswith(".0")
            is_decimal = trailing or Decimal(value) != Decimal(repr(float(value)))
        if is_decimal:
            yield path, value


def _float(value: float) -> str:
    # repr has all the digits; with an exponent the server reads a double, not a decimal.
    text = repr(value)
    return text if "e" in text else text + "e0"


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _time(value: timedelta) -> str:
    seconds, microseconds = divmod(abs(value) // _MICROSECOND, 1_000_000)
    sign = "-" if value < timedelta(0) else ""
    minutes, second = divmod(seconds, 60)
    return f"'{sign}{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}.{microseconds:06d}'"
