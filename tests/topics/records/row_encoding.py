"""Encodes rows with fastavro, the counterpart of `topics.records.values` for tests.

fastavro writes the plain Avro types. The logical types are converted here, because its own
conversions support neither negative times nor 65 digits.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from topics.records.table_shape import (
    DECIMAL_FIXED_DIGITS,
    UNSIGNED_LONG_BYTES,
    Column,
    TableShape,
    ValueKind,
    avro_name,
)
from topics.records.values import EPOCH, EPOCH_ORDINAL, EPOCH_UTC, EXACT, UNSIGNED_LONG_MAX
from topics.records.vevent import InvalidDate, Row, Value

Convert = Callable[[Any], Any]

_MICROSECOND: Final = timedelta(microseconds=1)
_INT64: Final = range(-(2**63), 2**63)


class ValueMisfitError(ValueError):
    """Raised when a value does not fit its column."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How the rows of one table version are written."""

    shape: TableShape
    # (name on the wire, name of the column, conversion), in order.
    _encoders: tuple[tuple[str, str, Convert], ...]

    @classmethod
    def of(cls, shape: TableShape) -> "RowPlan":
        """Return the plan of a table version."""
        return cls(shape, tuple((avro_name(c.name), c.name, _encoder(c)) for c in shape.columns))

    def write(self, row: Row) -> tuple[dict[str, Any], bytes, dict[int, str]]:
        """Return the raw image, its bit map and its invalid dates; ValueMisfitError."""
        unknown = row.keys() - {c.name for c in self.shape.columns}
        if unknown:
            raise ValueMisfitError(f"{self.shape.table} has no column {', '.join(sorted(unknown))}")
        raw: dict[str, Any] = {}
        invalid_dates = {}
        present = []
        for i, (wire, name, write) in enumerate(self._encoders):
            raw[wire] = None
            if name not in row:
                continue
            present.append(i)
            value = row[name]
            if isinstance(value, InvalidDate):
                invalid_dates[i] = str(value)
            elif value is not None:
                raw[wire] = write(value)
        return raw, _bit_map(present, len(self.shape.columns)), invalid_dates

    def write_value(self, index: int, value: Value) -> Any:
        """Return the raw value of one column that is not NULL; ValueMisfitError."""
        return self._encoders[index][2](value)


def _bit_map(present: Iterable[int], columns: int) -> bytes:
    bits = sum(1 << i for i in present)
    return bits.to_bytes((columns + 7) // 8, "little")


def _encoder(column: Column) -> Convert:
    """Return the conversion of a column's Python values that are not None."""
    match column.kind:
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return _checked(int, _write_unsigned_long, column)
        case ValueKind.DECIMAL:
            return _checked(Decimal, _decimal_writer(column), column)
        case ValueKind.DATE:
            return _checked(date, lambda v: v.toordinal() - EPOCH_ORDINAL, column)
        case ValueKind.TIME:
            return _checked(timedelta, lambda v: v // _MICROSECOND, column)
        case ValueKind.DATETIME:
            return _checked(datetime, lambda v: (v - EPOCH) // _MICROSECOND, column)
        case ValueKind.TIMESTAMP:
            return _checked(datetime, lambda v: (v - EPOCH_UTC) // _MICROSECOND, column)
        case ValueKind.STRING | ValueKind.ENUM | ValueKind.JSON:
            return _checked(str, str, column)
        case ValueKind.BYTES:
            return _checked(bytes, bytes, column)
        case ValueKind.SET:
            return _checked(list, list, column)
        case ValueKind.FLOAT | ValueKind.DOUBLE:
            return _checked(float, float, column)
        case ValueKind.INT | ValueKind.YEAR | ValueKind.LONG | ValueKind.BIT:
            return _checked(int, _write_long, column)


def _checked(of: type, write: Convert, column: Column) -> Convert:
    """Wrap a conversion so that a value of another type is a ValueMisfitError."""

    def encode(value: Any) -> Any:
        if not isinstance(value, of):
            raise ValueMisfitError(
                f"column {column.name} ({column.sql_type}) cannot hold {value!r}"
            )
        try:
            return write(value)
        except (OverflowError, TypeError, ArithmeticError) as error:
            raise ValueMisfitError(f"column {column.name}: {value!r}: {error}") from error

    return encode


def _write_long(value: int) -> int:
    if value not in _INT64:
        raise ValueMisfitError(f"{value} does not fit 64 bits")
    return value


def _write_unsigned_long(value: int) -> bytes:
    if not 0 <= value <= UNSIGNED_LONG_MAX:
        raise ValueMisfitError(f"{value} does not fit 64 unsigned bits")
    return value.to_bytes(UNSIGNED_LONG_BYTES, "big")


def _decimal_writer(column: Column) -> Convert:
    fixed_bytes = 8 if column.precision <= DECIMAL_FIXED_DIGITS else 0

    def write(value: Decimal) -> bytes:
        scaled = EXACT.scaleb(value, column.scale)
        unscaled = int(scaled)
        if scaled != unscaled or len(str(abs(unscaled))) > column.precision:
            raise ValueMisfitError(f"{value} does not fit {column.sql_type}")
        size = fixed_bytes or (unscaled.bit_length() + 8) // 8
        return unscaled.to_bytes(size, "big", signed=True)

    return write
