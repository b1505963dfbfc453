"""Readers of column values into Arrow columns: one class a way of lying on the wire.

`take` is called where a value follows, `null` where there is none.
"""

from librt.strings import read_f32_le, read_f64_le, read_i64_be
from mypy_extensions import i64

from spark_consumers.row_columns.builders import (
    DecimalBuilder,
    DoubleBuilder,
    FloatBuilder,
    Int32Builder,
    Int64Builder,
    TextBuilder,
    TextListBuilder,
)
from spark_consumers.row_columns.text import decimal_text
from topics.records.cursor import Cursor


class ValueReader:
    """Takes one column's values off the wire."""

    def take(self, cursor: Cursor) -> None:
        """Take a value."""
        raise NotImplementedError

    def null(self) -> None:
        """Note a row without a value."""
        raise NotImplementedError


class Int32Reader(ValueReader):
    """int, date."""

    def __init__(self, into: Int32Builder) -> None:
        """Append to `into`."""
        self.into: Int32Builder = into

    def take(self, cursor: Cursor) -> None:
        """Take a value."""
        self.into.add(cursor.take_long())

    def null(self) -> None:
        """Note a row without a value."""
        self.into.add_null()


class Int64Reader(ValueReader):
    """int, long and the times that are longs."""

    def __init__(self, into: Int64Builder) -> None:
        """Append to `into`."""
        self.into: Int64Builder = into

    def take(self, cursor: Cursor) -> None:
        """Take a value."""
        self.into.add(cursor.take_long())

    def null(self) -> None:
        """Note a row without a value."""
        self.into.add_null()


class FloatReader(ValueReader):
    """float."""

    def __init__(self, into: FloatBuilder) -> None:
        """Append to `into`."""
        self.into: FloatBuilder = into

    def take(self, cursor: Cursor) -> None:
        """Take a value."""
        at = cursor.at
        cursor.skip(4)
        self.into.add(read_f32_le(cursor.record, at))

    def null(self) -> None:
        """Note a row without a value."""
        self.into.add_null()


class DoubleReader(ValueReader):
    """double, or float into a column that is a double by now."""

    def __init__(self, into: DoubleBuilder, is_float: bool) -> None:
        """Append to `into`."""
        self.into: DoubleBuilder = into
        self.is_float: bool = is_float

    def take(self, cursor: Cursor) -> None:
        """Take a value."""
        at = cursor.at
        if self.is_float:
            cursor.skip(4)
            self.into.add(read_f32_le(cursor.record, at))
        else:
            cursor.skip(8)
            self.into.add(read_f64_le(cursor.record, at))

    def null(self) -> None:
        """Note a row without a value."""
        self.into.add_null()


class TextReader(ValueReader):
    """string and bytes."""

    def __init__(self, into: TextBuilder) -> None:
        """Append to `into`."""
        self.into: TextBuilder = into

    def take(self, cursor: Cursor) -> None:
        """Take a value."""
        self.into.add(cursor.take_bytes())

    def null(self) -> None:
        """Note a row without a value."""
        self.into.add_null()


class DecimalReader(ValueReader):
    """decimal into decimal128: bytes of any length, or fixed(`fixed`) where that is not 0."""

    def __init__(self, into: DecimalBuilder, fixed: i64) -> None:
        """Append to `into`."""
        self.into: DecimalBuilder = into
        self.fixed: i64 = fixed

    def take(self, cursor: Cursor) -> None:
        """Take a value."""
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

    def null(self) -> None:
        """Note a row without a value."""
        self.into.add_null()


class DecimalTextReader(ValueReader):
    """decimal of more digits than decimal128 holds, into its text."""

    def __init__(self, into: TextBuilder, scale: int) -> None:
        """Append to `into`."""
        self.into: TextBuilder = into
        self.scale: int = scale

    def take(self, cursor: Cursor) -> None:
        """Take a value."""
        number = int.from_bytes(cursor.take_bytes(), "big", signed=True)
        self.into.add(decimal_text(number, self.scale))

    def null(self) -> None:
        """Note a row without a value."""
        self.into.add_null()


class TextListReader(ValueReader):
    """array of strings."""

    def __init__(self, into: TextListBuilder) -> None:
        """Append to `into`."""
        self.into: TextListBuilder = into

    def take(self, cursor: Cursor) -> None:
        """Take a value."""
        items = self.into.items
        count = cursor.take_block_count()
        while count != 0:
            while count > 0:
                items.add(cursor.take_bytes())
                count -= 1
            count = cursor.take_block_count()
        self.into.end_value()

    def null(self) -> None:
        """Note a row without a value."""
        self.into.add_null()


class VarintSkipper(ValueReader):
    """Passes int and long."""

    def take(self, cursor: Cursor) -> None:
        """Pass a value."""
        cursor.take_long()

    def null(self) -> None:
        """Pass a row without a value."""


class FixedSkipper(ValueReader):
    """Passes values of `size` bytes."""

    def __init__(self, size: i64) -> None:
        """Pass `size` bytes a value."""
        self.size: i64 = size

    def take(self, cursor: Cursor) -> None:
        """Pass a value."""
        cursor.skip(self.size)

    def null(self) -> None:
        """Pass a row without a value."""


class TextSkipper(ValueReader):
    """Passes string and bytes."""

    def take(self, cursor: Cursor) -> None:
        """Pass a value."""
        cursor.skip_bytes()

    def null(self) -> None:
        """Pass a row without a value."""


class TextListSkipper(ValueReader):
    """Passes an array of strings."""

    def take(self, cursor: Cursor) -> None:
        """Pass a value."""
        count = cursor.take_block_count()
        while count != 0:
            while count > 0:
                cursor.skip_bytes()
                count -= 1
            count = cursor.take_block_count()

    def null(self) -> None:
        """Pass a row without a value."""
