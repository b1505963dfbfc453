"""Rows of a log and rows of a SELECT in one form, so that they can be compared."""

import json
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from databases.sql import quoted
from event_token import Flavor
from topics.records.table_shape import TableShape, ValueKind
from topics.records.vevent import Row

# A row: each column's value as text, None for NULL.
Shown = dict[str, str | None]

_NUMBERS = {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "bit"}
_REALS = {"float", "double"}
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
_TIMES = {"date", "time", "datetime", "timestamp", "uuid", "inet4", "inet6", "json"}
_MICROSECOND = timedelta(microseconds=1)


def selected(column: str, data_type: str) -> str:
    """Return the expression that shows a column of a type of information_schema."""
    name = quoted(column)
    if data_type == "year":  # YEAR(2) shows two digits
        number = f"({name} + 0)"
        century = f"IF({number} > 99 OR {number} = 0, 0, IF({number} < 70, 2000, 1900))"
        return f"{number} + {century}"
    if data_type in _NUMBERS:
        return f"{name} + 0"
    if data_type in _REALS:
        return f"{name} + 0e0"
    if data_type in _TEXTS:
        return f"CONVERT({name} USING utf8mb4)"
    if data_type in _TIMES:
        return f"CAST({name} AS CHAR)"
    if data_type in ("enum", "set"):
        return f"CONVERT(CONCAT({name}, '') USING utf8mb4)"
    return f"HEX({name})"


def shown_cell(value: Any, data_type: str) -> str | None:
    """Return what `selected` gave, as `shown_row` shows the same value."""
    if value is None:
        return None
    if data_type in _REALS:
        return repr(float(value))
    if data_type == "json":
        return _json(str(value))
    if isinstance(value, Decimal):
        return format(value, "f")
    text = value.decode() if isinstance(value, bytes) else str(value)
    if data_type in ("time", "datetime", "timestamp"):
        return _short(text)
    return text


def shown_row(shape: TableShape, row: Row, flavor: Flavor) -> Shown:
    """Return an image of an event."""
    kinds = {column.name: column.kind for column in shape.columns}
    return {name: _shown(value, kinds[name], flavor) for name, value in row.items()}


def _shown(value: Any, kind: ValueKind, flavor: Flavor) -> str | None:
    match value:
        case None:
            return None
        case bytes():
            return value.hex().upper()
        case Decimal():
            return format(value, "f")
        case list():
            return ",".join(value)
        case datetime():
            return _short(value.replace(tzinfo=None).isoformat(" "))
        case date():
            return value.isoformat()
        case timedelta():
            return _time(value)
        case float():
            return repr(value)
        case _ if kind is ValueKind.JSON and flavor is Flavor.MYSQL:
            return _json(str(value))
        case _ if kind in (ValueKind.DATETIME, ValueKind.TIMESTAMP):
            return _short(str(value))
        case _:
            return str(value)


def _json(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


def _short(text: str) -> str:
    """A time without the zeros at the end of its fraction."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def _time(value: timedelta) -> str:
    seconds, microseconds = divmod(abs(value) // _MICROSECOND, 1_000_000)
    sign = "-" if value < timedelta(0) else ""
    minutes, second = divmod(seconds, 60)
    return _short(f"{sign}{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}.{microseconds:06d}")


def agrees(row: Mapping[str, str | None], image: Mapping[str, str | None]) -> bool:
    """Tell whether a row has an image's values in the columns that both have."""
    return all(row[name] == value for name, value in image.items() if name in row)
