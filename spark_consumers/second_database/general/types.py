"""The types of a target's columns as SQLAlchemy names them, and values of each kind. Pure."""

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from topics.records.table_shape import UNSIGNED_LONG_DIGITS, Column, TableShape, ValueKind

SqlType: TypeAlias = sa.types.TypeEngine[Any]

TYPES: Final[Mapping[ValueKind, SqlType]] = {
    ValueKind.INT: sa.Integer(),
    ValueKind.YEAR: sa.Integer(),
    ValueKind.LONG: sa.BigInteger(),
    ValueKind.BIT: sa.BigInteger(),
    ValueKind.UNSIGNED_LONG: sa.Numeric(UNSIGNED_LONG_DIGITS, 0),
    ValueKind.BIT64: sa.Numeric(UNSIGNED_LONG_DIGITS, 0),
    ValueKind.FLOAT: sa.REAL(),
    ValueKind.DOUBLE: sa.Double(),
    ValueKind.STRING: sa.Text(),
    ValueKind.ENUM: sa.Text(),
    ValueKind.SET: sa.Text(),
    ValueKind.JSON: sa.Text(),
    ValueKind.BYTES: sa.LargeBinary(),
    ValueKind.DATE: sa.Date(),
    # Standard SQL's TIME is a time of day.
    ValueKind.TIME: sa.BigInteger(),
    ValueKind.DATETIME: sa.DateTime(),
    ValueKind.TIMESTAMP: sa.DateTime(),
}
META_TYPES: Final[Mapping[str, SqlType]] = {
    "key": sa.Text(),
    "long": sa.BigInteger(),
    "name": sa.String(255),
    "bytes": sa.LargeBinary(),
    "text": sa.Text(),
    "flag": sa.Boolean(),
    "small": sa.SmallInteger(),
}
_MICROS = 999_999
_TEXTS: Final = ("", "a", "A", "a ", " a", "\u00e4", "\u2603\U0001f600", "'\"\\%:\n")
_LONGS: Final = (-(2**63), 0, 2**63 - 1)
_UNSIGNED: Final = (Decimal(0), Decimal(2**63), Decimal(2**64 - 1))
_MOMENTS: Final = (
    datetime(1, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001 - DATETIME has no time zone
    datetime(9999, 12, 31, 23, 59, 59, _MICROS),  # noqa: DTZ001
)
_EXTREMES: Final[Mapping[ValueKind, tuple[object, ...]]] = {
    ValueKind.INT: (-(2**31), 0, 2**31 - 1),
    ValueKind.YEAR: (0, 2155),
    ValueKind.LONG: _LONGS,
    ValueKind.BIT: (0, 2**63 - 1),
    ValueKind.UNSIGNED_LONG: _UNSIGNED,
    ValueKind.BIT64: _UNSIGNED,
    ValueKind.FLOAT: (-3.4028234663852886e38, 1.1754943508222875e-38, 0.10000000149011612),
    ValueKind.DOUBLE: (-1.7976931348623157e308, 2.2250738585072014e-308, 0.1),
    ValueKind.STRING: _TEXTS,
    ValueKind.ENUM: _TEXTS,
    ValueKind.SET: ([], ["a", "b"]),
    ValueKind.JSON: ("null", '{"a": "\u2603"}'),
    ValueKind.BYTES: (b"", b"\x00", b"\x00\xff", b"\xff "),
    ValueKind.DATE: (date(1, 1, 1), date(9999, 12, 31)),
    ValueKind.TIME: (-3_020_399_999_999, 0, 3_020_399_999_999),
    ValueKind.DATETIME: _MOMENTS,
    ValueKind.TIMESTAMP: _MOMENTS,
}


def extremes_of(column: Column) -> tuple[object, ...]:
    """Return values of a column that databases are known to change, all different."""
    if column.kind is not ValueKind.DECIMAL:
        return _EXTREMES[column.kind]
    # Digit by digit: arithmetic would round to the 28 digits of Python's context.
    nines = (9,) * column.precision
    numbers = ((1, nines), (0, (0,)), (0, nines))
    return tuple(Decimal((sign, digits, -column.scale)) for sign, digits in numbers)


def plain(rows: pa.Table, shape: TableShape, types: Mapping[str, SqlType]) -> pa.Table:
    """Return rows as they are staged: sets are texts, and every time is UTC without a zone."""
    for column in shape.columns:
        i = rows.schema.get_field_index(column.name)
        values = rows[i]
        if pa.types.is_list(values.type):
            values = pc.binary_join(values.combine_chunks(), ",")
        elif pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("us"))
        elif pa.types.is_decimal(values.type) and isinstance(types[column.name], sa.Text):
            values = _decimal_texts(values)
        rows = rows.set_column(i, column.name, values)
    return rows


def _decimal_texts(values: pa.ChunkedArray) -> pa.Array:
    """Return decimals as texts with all their digits: Arrow's cast writes 0.00 as `0E-10`."""
    return pa.array(
        (None if value is None else f"{value:f}" for value in values.to_pylist()), pa.string()
    )
