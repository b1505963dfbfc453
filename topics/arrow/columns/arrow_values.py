"""Reads column values into Arrow column builders, one class per wire format. Typed for mypyc.

`take` reads a value from the cursor; `null` handles a row without a value.
"""

from librt.strings import read_f32_le, read_f64_le, read_i64_be
from mypy_extensions import i64

from topics.arrow.columns.builders import (
    ColumnBuilder,
    DecimalBuilder,
    DoubleBuilder,
    FloatBuilder,
    Int32Builder,
    Int64Builder,
    TextBuilder,
    TextListBuilder,
)
from topics.arrow.columns.json_values import decimal_text
from topics.records.cursor import Cursor
from topics.records.table_shape import UNSIGNED_LONG_BYTES, Column, ValueKind


class ValueReader:
    """Reads the values of one column into a builder, or skips them."""

    def __init__(self, column: ColumnBuilder | None = None) -> None:
        """Append nulls to `column`; None: the values are skipped."""
        self.column: ColumnBuilder | None = column

    def take(self, cursor: Cursor) -> None:
        """Read a value."""
        raise NotImplementedError

    def null(self) -> None:
        """Handle a row without a value."""
        if self.column is not None:
            self.column.add_null()


class _Int32Reader(ValueReader):
    """int, date."""

    def __init__(self, into: Int32Builder) -> None:
        super().__init__(into)
        self.into: Int32Builder = into

    def take(self, cursor: Cursor) -> None:
        self.into.add(cursor.take_long())


class _Int64Reader(ValueReader):
    """int, long and the temporal types stored as longs."""

    def __init__(self, into: Int64Builder) -> None:
        super().__init__(into)
        self.into: Int64Builder = into

    def take(self, cursor: Cursor) -> None:
        self.into.add(cursor.take_long())


class _FloatReader(ValueReader):
    """float."""

    def __init__(self, into: FloatBuilder) -> None:
        super().__init__(into)
        self.into: FloatBuilder = into

    def take(self, cursor: Cursor) -> None:
        at = cursor.at
        cursor.skip(4)
        self.into.add(read_f32_le(cursor.record, at))


class _DoubleReader(ValueReader):
    """double, or float for a column that has become a double."""

    def __init__(self, into: DoubleBuilder, is_float: bool) -> None:
        super().__init__(into)
        self.into: DoubleBuilder = into
        self.is_float: bool = is_float

    def take(self, cursor: Cursor) -> None:
        at = cursor.at
        if self.is_float:
            cursor.skip(4)
            self.into.add(read_f32_le(cursor.record, at))
        else:
            cursor.skip(8)
            self.into.add(read_f64_le(cursor.record, at))


class _TextReader(ValueReader):
    """string and bytes."""

    def __init__(self, into: TextBuilder) -> None:
        super().__init__(into)
        self.into: TextBuilder = into

    def take(self, cursor: Cursor) -> None:
        self.into.add(cursor.take_bytes())


class _DecimalReader(ValueReader):
    """decimal as decimal128, stored as bytes or (`fixed` not 0) as fixed(`fixed`)."""

    def __init__(self, into: DecimalBuilder, fixed: i64) -> None:
        super().__init__(into)
        self.into: DecimalBuilder = into
        self.fixed: i64 = fixed

    def take(self, cursor: Cursor) -> None:
        size = self.fixed
        if size == 0:
            size = cursor.take_size()
        if size <= 8:
            low = cursor.take_big_endian(size)
            high: i64 = -1 if low < 0 else 0
            self.into.add(low, high)
        elif size <= 16:
            high = cursor.take_big_endian(size - 8)
            at = cursor.at
            cursor.skip(8)
            self.into.add(read_i64_be(cursor.record, at), high)
        else:
            at = cursor.at
            cursor.skip(size)
            number = int.from_bytes(cursor.record[at : at + size], "big", signed=True)
            self.into.add_big(number)


class _DecimalTextReader(ValueReader):
    """decimal with more digits than decimal128 holds, as text."""

    def __init__(self, into: TextBuilder, scale: int) -> None:
        super().__init__(into)
        self.into: TextBuilder = into
        self.scale: int = scale

    def take(self, cursor: Cursor) -> None:
        number = int.from_bytes(cursor.take_bytes(), "big", signed=True)
        self.into.add(decimal_text(number, self.scale))


class _TextListReader(ValueReader):
    """array of strings."""

    def __init__(self, into: TextListBuilder) -> None:
        super().__init__(into)
        self.into: TextListBuilder = into

    def take(self, cursor: Cursor) -> None:
        items = self.into.items
        count = cursor.take_block_count()
        while count != 0:
            while count > 0:
                items.add(cursor.take_bytes())
                count -= 1
            count = cursor.take_block_count()
        self.into.end_value()


class _VarintSkipper(ValueReader):
    """Skips int and long."""

    def take(self, cursor: Cursor) -> None:
        cursor.take_long()


class _FixedSkipper(ValueReader):
    """Skips values of `size` bytes."""

    def __init__(self, size: i64) -> None:
        super().__init__()
        self.size: i64 = size

    def take(self, cursor: Cursor) -> None:
        cursor.skip(self.size)


class _TextSkipper(ValueReader):
    """Skips string and bytes."""

    def take(self, cursor: Cursor) -> None:
        cursor.skip_bytes()


class _TextListSkipper(ValueReader):
    """Skips an array of strings."""

    def take(self, cursor: Cursor) -> None:
        count = cursor.take_block_count()
        while count != 0:
            while count > 0:
                cursor.skip_bytes()
                count -= 1
            count = cursor.take_block_count()


def skipper_for(column: Column) -> ValueReader:
    """Return a reader that skips the values of a column."""
    match column.kind:
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return _FixedSkipper(UNSIGNED_LONG_BYTES)
        case ValueKind.FLOAT:
            return _FixedSkipper(4)
        case ValueKind.DOUBLE:
            return _FixedSkipper(8)
        case (
            ValueKind.DECIMAL | ValueKind.STRING | ValueKind.ENUM | ValueKind.JSON | ValueKind.BYTES
        ):
            return _TextSkipper()
        case ValueKind.SET:
            return _TextListSkipper()
        case (
            ValueKind.INT
            | ValueKind.LONG
            | ValueKind.YEAR
            | ValueKind.BIT
            | ValueKind.DATE
            | ValueKind.TIME
            | ValueKind.DATETIME
            | ValueKind.TIMESTAMP
        ):
            return _VarintSkipper()


def reader_for(column: Column, into: ColumnBuilder) -> ValueReader:
    """Return a reader of a column's values into a builder that fits them (see `check_fits`)."""
    match into:
        case Int32Builder():
            return _Int32Reader(into)
        case Int64Builder():
            return _Int64Reader(into)
        case FloatBuilder():
            return _FloatReader(into)
        case DoubleBuilder():
            return _DoubleReader(into, is_float=column.kind is ValueKind.FLOAT)
        case DecimalBuilder():
            is_bytes = column.kind is ValueKind.DECIMAL
            return _DecimalReader(into, 0 if is_bytes else UNSIGNED_LONG_BYTES)
        case TextBuilder():
            if column.kind is ValueKind.DECIMAL:
                return _DecimalTextReader(into, column.scale)
            return _TextReader(into)
        case TextListBuilder():
            return _TextListReader(into)
        case _:
            raise ValueError(f"no reader for {column} into {into}")
