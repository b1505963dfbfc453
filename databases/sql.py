"""Queries, quoted identifiers, and literals that no quoting rule or character set can change."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

_MICROSECOND: Final = timedelta(microseconds=1)


def rows(connection: Any, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    with connection.cursor() as cursor:
        # Without values PyMySQL must not format the text: % in LIKE is no placeholder then.
        cursor.execute(query, tuple(values) or None)
        return list(cursor.fetchall())


def raw_rows(connection: Any, query: str) -> list[tuple[Any, ...]]:
    """All rows of a query, with texts as bytes: not all that a catalog shows is text."""
    before, connection.use_unicode = connection.use_unicode, False
    try:
        return rows(connection, query)
    finally:
        connection.use_unicode = before


def named_rows(connection: Any, query: str) -> list[dict[str, Any]]:
    """All rows of a query, each as a dict by column name."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def quoted(name: str) -> str:
    """An identifier in backquotes, safe for any name."""
    return "`" + name.replace("`", "``") + "`"


def beyond(columns: Sequence[tuple[str, bool]], place: Sequence[str], *, upto: bool = False) -> str:
    """The condition that a row follows a place in key order, or with `upto` that it does not.

    `columns`: the names, and whether each descends. `place`: literals, empty without a bound; then
    the condition is "". `a > x OR (a = x AND b > y)` is, unlike (a, b) > (x, y), a range of an
    index.
    """
    choices = []
    equal: list[str] = []
    for (name, descends), value in zip(columns, place, strict=bool(place)):
        sign = "<" if descends != upto else ">"
        choices.append(" AND ".join([*equal, f"{quoted(name)} {sign} {value}"]))
        equal.append(f"{quoted(name)} = {value}")
    if upto and equal:
        choices.append(" AND ".join(equal))
    return " OR ".join(f"({choice})" for choice in choices)


def text_literal(text: str) -> str:
    """Text as a hexadecimal literal."""
    return f"_utf8mb4 x'{text.encode().hex()}'"


def bytes_literal(value: bytes) -> str:
    """Bytes as a hexadecimal literal."""
    return f"x'{value.hex()}'"


def time_literal(value: timedelta) -> str:
    """A TIME value, also negative and beyond a day."""
    seconds, microseconds = divmod(abs(value) // _MICROSECOND, 1_000_000)
    minutes, second = divmod(seconds, 60)
    sign = "-" if value < timedelta() else ""
    return f"'{sign}{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}.{microseconds:06d}'"


def value_literal(value: object) -> str:
    """A value as a driver returns it, for a session in UTC; ValueError on other types."""
    match value:
        case int() | Decimal():
            return str(value)
        case float():
            return repr(value)
        case str():
            return text_literal(value)
        case bytes() | memoryview():
            return bytes_literal(bytes(value))
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            return f"'{moment.isoformat(' ', 'microseconds')}'"
        case date():
            return f"'{value.isoformat()}'"
        case timedelta():
            return time_literal(value)
        case list() | set() | frozenset():
            return text_literal(",".join(map(str, value)))
        case _:
            raise ValueError(f"no column holds a {type(value).__name__}")
