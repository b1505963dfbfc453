"""Arrow column builders: plain buffers to which one value is appended at a time.

Typed for mypyc. `take()` returns the buffers of a batch and resets the builder; `shard_decoder`
turns buffers into Arrow arrays.
"""

from typing import Final

from librt.strings import BytesWriter, write_f32_le, write_f64_le, write_i32_le, write_i64_le
from mypy_extensions import i32, i64, u8

# Arrow strings and lists have signed 32-bit offsets.
COLUMN_BYTES_MAX: Final = 0x7FFFFFFF
INT32_MAX: Final = 0x7FFFFFFF


class Buffers:
    """The buffers of a column; `valid` has one byte per row, or is empty if no row is null."""

    def __init__(self, rows: int, valid: bytes, values: bytes, offsets: bytes) -> None:
        """Hold the buffers."""
        self.rows: int = rows
        self.valid: bytes = valid
        self.values: bytes = values
        self.offsets: bytes = offsets


class ColumnBuilder:
    """Builds a column; null rows have zero bytes as their value."""

    def __init__(self) -> None:
        """Start without rows."""
        self.rows: i64 = 0
        self.has_nulls: bool = False
        self.valid: BytesWriter = BytesWriter()
        self.values: BytesWriter = BytesWriter()
        self.offsets: BytesWriter = BytesWriter()

    def add_null(self) -> None:
        """Append a null."""
        raise NotImplementedError

    def count_value(self) -> None:
        """Count a row whose value was written to the buffers."""
        if self.has_nulls:
            self.valid.append(u8(1))
        self.rows += 1

    def count_null(self) -> None:
        """Count a null row whose filler was written to the buffers."""
        if not self.has_nulls:
            # Most columns have no null in a batch, so validity is tracked from the first one on.
            self.valid.write(b"\x01" * int(self.rows))
            self.has_nulls = True
        self.valid.append(u8(0))
        self.rows += 1

    def take(self) -> Buffers:
        """Return the buffers and reset the builder."""
        taken = Buffers(
            self.rows, self.valid.getvalue(), self.values.getvalue(), self.offsets.getvalue()
        )
        self.rows = 0
        self.has_nulls = False
        self.valid = BytesWriter()
        self.values = BytesWriter()
        self.offsets = BytesWriter()
        return taken


class Int32Builder(ColumnBuilder):
    """int32, date32."""

    def add(self, value: i64) -> None:
        """Append a value; ValueError outside 32 signed bits."""
        if value > INT32_MAX or value < -INT32_MAX - 1:
            raise ValueError(f"{value} does not fit 32 bits")
        write_i32_le(self.values, i32(value))
        self.count_value()

    def add_null(self) -> None:
        """Append a null."""
        write_i32_le(self.values, 0)
        self.count_null()


class Int64Builder(ColumnBuilder):
    """int64, timestamp[us]."""

    def add(self, value: i64) -> None:
        """Append a value."""
        write_i64_le(self.values, value)
        self.count_value()

    def add_null(self) -> None:
        """Append a null."""
        write_i64_le(self.values, 0)
        self.count_null()


class FloatBuilder(ColumnBuilder):
    """float32."""

    def add(self, value: float) -> None:
        """Append a value."""
        write_f32_le(self.values, value)
        self.count_value()

    def add_null(self) -> None:
        """Append a null."""
        write_f32_le(self.values, 0.0)
        self.count_null()


class DoubleBuilder(ColumnBuilder):
    """float64."""

    def add(self, value: float) -> None:
        """Append a value."""
        write_f64_le(self.values, value)
        self.count_value()

    def add_null(self) -> None:
        """Append a null."""
        write_f64_le(self.values, 0.0)
        self.count_null()


class BooleanBuilder(ColumnBuilder):
    """bool: one byte per row here, one bit in Arrow."""

    def add(self, value: bool) -> None:
        """Append a value."""
        self.values.append(u8(1) if value else u8(0))
        self.count_value()

    def add_null(self) -> None:
        """Append a null."""
        self.values.append(u8(0))
        self.count_null()


class DecimalBuilder(ColumnBuilder):
    """decimal128: the low and the high 64 bits."""

    def add(self, low: i64, high: i64) -> None:
        """Append a value."""
        write_i64_le(self.values, low)
        write_i64_le(self.values, high)
        self.count_value()

    def add_big(self, value: int) -> None:
        """Append a value of any size; OverflowError beyond 128 bits."""
        self.values.write(value.to_bytes(16, "little", signed=True))
        self.count_value()

    def add_null(self) -> None:
        """Append a null."""
        write_i64_le(self.values, 0)
        write_i64_le(self.values, 0)
        self.count_null()


class TextBuilder(ColumnBuilder):
    """string and binary: the bytes, and the end of each value."""

    def add(self, value: bytes) -> None:
        """Append a value."""
        self.values.write(value)
        self.end_value()

    def end_value(self) -> None:
        """Append the bytes written to `values` since the last value as one value."""
        self._write_end()
        self.count_value()

    def add_null(self) -> None:
        """Append a null."""
        self._write_end()
        self.count_null()

    def _write_end(self) -> None:
        size: i64 = len(self.values)
        if size > COLUMN_BYTES_MAX:
            raise ValueError(f"a batch has more than {COLUMN_BYTES_MAX} bytes in one column")
        write_i32_le(self.offsets, i32(size))


class TextListBuilder(ColumnBuilder):
    """list<string>: `items` holds the strings of all rows."""

    def __init__(self) -> None:
        """Start without rows."""
        super().__init__()
        self.items: TextBuilder = TextBuilder()

    def end_value(self) -> None:
        """Append the items added since the last value as one value."""
        write_i32_le(self.offsets, i32(self.items.rows))
        self.count_value()

    def add_null(self) -> None:
        """Append a null."""
        write_i32_le(self.offsets, i32(self.items.rows))
        self.count_null()


class StructBuilder(ColumnBuilder):
    """A struct: only whether a row has it; its children are separate columns."""

    def __init__(self, children: list[ColumnBuilder]) -> None:
        """Take the columns of the struct, in order."""
        super().__init__()
        self.children: list[ColumnBuilder] = children

    def add_null(self) -> None:
        """Append a null struct."""
        for child in self.children:
            child.add_null()
        self.count_null()
