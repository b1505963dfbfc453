"""Reads column values: one reader class per wire format, one RowReader per table version.

Logical types are converted here, because Avro's own support neither negative times nor 65 digits,
nor years outside of Python's range. Invalid bytes raise ValueError, IndexError or OverflowError.
"""

from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Final

from librt.strings import read_f32_le, read_f64_le
from mypy_extensions import i64

from topics.records.cursor import Cursor
from topics.records.table_shape import UNSIGNED_LONG_BYTES, Column, TableShape, ValueKind
from topics.records.vevent import InvalidDate, Row, Value

EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - DATETIME has no time zone
EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
# A DECIMAL has up to 65 digits; the rest is room to scale without rounding.
EXACT: Final = Context(prec=200)
UNSIGNED_LONG_MAX: Final = 2**64 - 1

_LONG_BYTES: Final = 8
_FLOAT_BYTES: Final = 4
_DOUBLE_BYTES: Final = 8
_DATE_KINDS: Final = frozenset({ValueKind.DATE, ValueKind.DATETIME, ValueKind.TIMESTAMP})


class ColumnReader:
    """Reads the values of one column; this base class reads integers."""

    def __init__(self, column: Column) -> None:
        """Remember the column."""
        self.name: str = column.name
        self.may_be_invalid: bool = column.kind in _DATE_KINDS

    def take(self, cursor: Cursor) -> Value:
        """Read a value that is not NULL."""
        return cursor.take_long()


class _TextReader(ColumnReader):
    """Reads text, labels and JSON text."""

    def take(self, cursor: Cursor) -> Value:
        return cursor.take_text()


class _BytesReader(ColumnReader):
    def take(self, cursor: Cursor) -> Value:
        return cursor.take_bytes()


class _FloatReader(ColumnReader):
    def take(self, cursor: Cursor) -> Value:
        at = cursor.at
        cursor.skip(_FLOAT_BYTES)
        return read_f32_le(cursor.record, at)


class _DoubleReader(ColumnReader):
    def take(self, cursor: Cursor) -> Value:
        at = cursor.at
        cursor.skip(_DOUBLE_BYTES)
        return read_f64_le(cursor.record, at)


class _UnsignedLongReader(ColumnReader):
    """Reads BIGINT UNSIGNED and BIT(64)."""

    def take(self, cursor: Cursor) -> Value:
        at = cursor.at
        cursor.skip(UNSIGNED_LONG_BYTES)
        number = int.from_bytes(cursor.record[at : cursor.at], "big")
        if number > UNSIGNED_LONG_MAX:
            raise ValueError(f"{number} does not fit 64 bits")
        return number


class _DecimalReader(ColumnReader):
    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.exponent: int = -column.scale

    def take(self, cursor: Cursor) -> Value:
        size = cursor.take_size()
        number: int
        if size <= _LONG_BYTES:
            number = cursor.take_big_endian(size)
        else:
            at = cursor.at
            cursor.skip(size)
            number = int.from_bytes(cursor.record[at : cursor.at], "big", signed=True)
        return EXACT.scaleb(Decimal(number), self.exponent)


class _DateReader(ColumnReader):
    def take(self, cursor: Cursor) -> Value:
        return date.fromordinal(EPOCH_ORDINAL + cursor.take_long())


class _TimeReader(ColumnReader):
    def take(self, cursor: Cursor) -> Value:
        return timedelta(microseconds=int(cursor.take_long()))


class _DatetimeReader(ColumnReader):
    """Reads DATETIME and TIMESTAMP, which differ in their epoch."""

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.epoch: datetime = EPOCH_UTC if column.kind is ValueKind.TIMESTAMP else EPOCH

    def take(self, cursor: Cursor) -> Value:
        epoch: datetime = self.epoch
        return epoch + timedelta(microseconds=int(cursor.take_long()))


class _SetReader(ColumnReader):
    def take(self, cursor: Cursor) -> Value:
        labels: list[str] = []
        count = cursor.take_block_count()
        while count > 0:
            labels.append(cursor.take_text())
            count -= 1
            if count == 0:
                count = cursor.take_block_count()
        return labels


def _reader(column: Column) -> ColumnReader:
    match column.kind:
        case ValueKind.INT | ValueKind.YEAR | ValueKind.LONG | ValueKind.BIT:
            return ColumnReader(column)
        case ValueKind.STRING | ValueKind.ENUM | ValueKind.JSON:
            return _TextReader(column)
        case ValueKind.BYTES:
            return _BytesReader(column)
        case ValueKind.FLOAT:
            return _FloatReader(column)
        case ValueKind.DOUBLE:
            return _DoubleReader(column)
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return _UnsignedLongReader(column)
        case ValueKind.DECIMAL:
            return _DecimalReader(column)
        case ValueKind.DATE:
            return _DateReader(column)
        case ValueKind.TIME:
            return _TimeReader(column)
        case ValueKind.DATETIME | ValueKind.TIMESTAMP:
            return _DatetimeReader(column)
        case ValueKind.SET:
            return _SetReader(column)


class RowReader:
    """Reads the row images of one table version."""

    def __init__(self, shape: TableShape) -> None:
        """Create a reader per column."""
        self._columns: list[ColumnReader] = [_reader(column) for column in shape.columns]
        count = len(self._columns)
        self._whole: bytes = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")

    def take(self, cursor: Cursor, present: bytes, invalid_dates: dict[int, str]) -> Row:
        """Read an image whose bit map of columns is `present`; absent columns are left out.

        `invalid_dates`: texts of invalid dates, by column index.
        """
        is_whole = present == self._whole
        if not is_whole and (len(present) != len(self._whole) or present[-1:] > self._whole[-1:]):
            raise ValueError(f"the bit map of columns has {len(present)} bytes")
        row: Row = {}
        index: i64 = 0
        for column in self._columns:
            has_value = cursor.take_present()
            if is_whole or present[index >> 3] >> (index & 7) & 1:
                row[column.name] = column.take(cursor) if has_value else None
            elif has_value:
                raise ValueError(f"column {column.name} has a value although the bit map lacks it")
            index += 1  # noqa: SIM113 - enumerate() would not count in native integers
        if invalid_dates:
            self._put_invalid_dates(row, invalid_dates)
        return row

    def _put_invalid_dates(self, row: Row, invalid_dates: dict[int, str]) -> None:
        for index, text in invalid_dates.items():
            if not 0 <= index < len(self._columns):
                raise ValueError(f"an invalid date belongs to column {index}, which does not exist")
            column = self._columns[index]
            if not column.may_be_invalid or row.get(column.name, text) is not None:
                raise ValueError(f"column {column.name} cannot hold the date text {text!r}")
            row[column.name] = InvalidDate(text)
