"""Reads column values into Arrow column builders, one class per wire format. Typed for mypyc.

`take` reads a value from the cursor; `null` handles a row without a value.
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
    """Reads the values of one column."""

    def take(self, cursor: Cursor) -> None:
        """Read a value."""
        raise NotImplementedError

    def null(self) -> None:
        """Handle a null."""
        raise NotImplementedError


class Int32Reader(ValueReader):
    """int, date."""

    def __init__(self, into: Int32Builder) -> None:
        """Append to `into`."""
        self.into: Int32Builder = into

    def take(self, cursor: Cursor) -> None:
        """Read a value."""
        self.into.add(cursor.take_long())

    def null(self) -> None:
        """Handle a null."""
        self.into.add_null()


class Int64Reader(ValueReader):
    """int, long and the temporal types stored as longs."""

    def __init__(self, into: Int64Builder) -> None:
        """Append to `into`."""
        self.into: Int64Builder = into

    def take(self, cursor: Cursor) -> None:
        """Read a value."""
        self.into.add(cursor.take_long())

    def null(self) -> None:
        """Handle a null."""
        self.into.add_null()


class FloatReader(ValueReader):
    """float."""

    def __init__(self, into: FloatBuilder) -> None:
        """Append to `into`."""
        self.into: FloatBuilder = into

    def take(self, cursor: Cursor) -> None:
        """Read a value."""
        at = cursor.at
        cursor.skip(4)
        self.into.add(read_f32_le(cursor.record, at))

    def null(self) -> None:
        """Handle a null."""
        self.into.add_null()


class DoubleReader(ValueReader):
    """double, or float for a column that has become a double."""

    def __init__(self, into: DoubleBuilder, is_float: bool) -> None:
        """Append to `into`."""
        self.into: DoubleBuilder = into
        self.is_float: bool = is_float

    def take(self, cursor: Cursor) -> None:
        """Read a value."""
        at = cursor.at
        if self.is_float:
            cursor.skip(4)
            self.into.add(read_f32_le(cursor.record, at))
        else:
            cursor.skip(8)
            self.into.add(read_f64_le(cursor.record, at))

    def null(self) -> None:
        """Handle a null."""
        self.into.add_null()


class TextReader(ValueReader):
    """string and bytes."""

    def __init__(self, into: TextBuilder) -> None:
        """Append to `into`."""
        self.into: TextBuilder = into

    def take(self, cursor: Cursor) -> None:
        """Read a value."""
        self.into.add(cursor.take_bytes())

    def null(self) -> None:
        """Handle a null."""
        self.into.add_null()


class DecimalReader(ValueReader):
    """decimal as decimal128, stored as bytes or (`fixed` not 0) as fixed(`fixed`)."""

    def __init__(self, into: DecimalBuilder, fixed: i64) -> None:
        """Append to `into`."""
        self.into: DecimalBuilder = into
        self.fixed: i64 = fixed

    def take(self, cursor: Cursor) -> None:
        """Read a value."""
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
        """Handle a null."""
        self.into.add_null()


class DecimalTextReader(ValueReader):
    """decimal with more digits than decimal128 holds, as text."""

    def __init__(self, into: TextBuilder, scale: int) -> None:
        """Append to `into`."""
        self.into: TextBuilder = into
        self.scale: int = scale

    def take(self, cursor: Cursor) -> None:
        """Read a value."""
        number = int.from_bytes(cursor.take_bytes(), "big", signed=True)
        self.into.add(decimal_text(number, self.scale))

    def null(self) -> None:
        """Handle a null."""
        self.into.add_null()


class TextListReader(ValueReader):
    """array of strings."""

    def __init__(self, into: TextListBuilder) -> None:
        """Append to `into`."""
        self.into: TextListBuilder = into

    def take(self, cursor: Cursor) -> None:
        """Read a value."""
        items = self.into.items
        count = cursor.take_block_count()
        while count != 0:
            while count > 0:
                items.add(cursor.take_bytes())
                count -= 1
            count = cursor.take_block_count()
        self.into.end_value()

    def null(self) -> None:
        """Handle a null."""
        self.into.add_null()


class VarintSkipper(ValueReader):
    """Skips int and long."""

    def take(self, cursor: Cursor) -> None:
        """Skip a value."""
        cursor.take_long()

    def null(self) -> None:
        """Do nothing for a null."""


class FixedSkipper(ValueReader):
    """Skips values of `size` bytes."""

    def __init__(self, size: i64) -> None:
        """Skip `size` bytes per value."""
        self.size: i64 = size

    def take(self, cursor: Cursor) -> None:
        """Skip a value."""
        cursor.skip(self.size)

    def null(self) -> None:
        """Do nothing for a null."""


class TextSkipper(ValueReader):
    """Skips string and bytes."""

    def take(self, cursor: Cursor) -> None:
        """Skip a value."""
        cursor.skip_bytes()

    def null(self) -> None:
        """Do nothing for a null."""


class TextListSkipper(ValueReader):
    """Skips an array of strings."""

    def take(self, cursor: Cursor) -> None:
        """Skip a value."""
        count = cursor.take_block_count()
        while count != 0:
            while count > 0:
                cursor.skip_bytes()
                count -= 1
            count = cursor.take_block_count()

    def null(self) -> None:
        """Do nothing for a null."""
