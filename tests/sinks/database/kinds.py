"""A table with a column of each kind, and a value of each."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from tests.sinks.database.followed import ITEMS
from topics.records.table_shape import Column, TableShape, ValueKind

BIG = 2**64 - 1
OTHERS: dict[ValueKind, object] = {
    ValueKind.UNSIGNED_LONG: Decimal(BIG),
    ValueKind.BIT64: Decimal(BIG),
    ValueKind.BIT: 5,
    ValueKind.FLOAT: 0.5,
    ValueKind.DOUBLE: 1e300,
    ValueKind.DECIMAL: Decimal("-123.45"),
    ValueKind.STRING: "ü'\"\\,\n\t\\N",
    ValueKind.BYTES: b"\x00\xff\\",
    ValueKind.DATE: date(1, 1, 1),
    ValueKind.TIME: -timedelta(hours=838, minutes=59, seconds=59, microseconds=1),
    ValueKind.DATETIME: datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - DATETIME has none
    ValueKind.TIMESTAMP: datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    ValueKind.YEAR: 2155,
    ValueKind.ENUM: "",
    ValueKind.SET: ["a", 'b,"}', ""],
    ValueKind.JSON: '{"a": [1.5, null]}',
}


def kinds(*more: Column) -> TableShape:
    """A table with a column of each kind."""
    rest = (Column(kind.value, kind, kind.value, 10, 2) for kind in OTHERS)
    return replace(ITEMS, columns=(*ITEMS.columns, *rest, *more))
