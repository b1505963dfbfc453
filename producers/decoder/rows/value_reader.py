"""Reads single values of row images, which are first written as a record would have them."""

from librt.strings import BytesWriter
from mypy_extensions import i64

from producers.decoder.rows.invalid_dates import InvalidDates
from producers.decoder.rows.value_writer import read_integer, write_value
from producers.decoder.tables.plan import ColumnPlan
from producers.decoder.values import operations as ops
from producers.decoder.values.decimals import read_decimal
from producers.decoder.values.raw_values import read_raw
from producers.decoder.values.wire import encode_string


class ValueReader:
    """Reads values that are not NULL; `at`: where the value is in the event."""

    def __init__(self) -> None:
        """Begin with empty buffers."""
        self._out: BytesWriter = BytesWriter()
        self._dates: InvalidDates = InvalidDates()

    def raw(self, column: ColumnPlan, buf: bytes, at: i64) -> object:
        """Return a raw value (values/raw_values.py), of an invalid date its text."""
        if column.op < ops.U64 or column.op == ops.DECIMAL:
            return int(read_whole_number(column, buf, at))
        text = self._write(column, buf, at)
        return text or read_raw(self._out.getvalue(), 1, column.form)

    def encoded(self, column: ColumnPlan, buf: bytes, at: i64) -> bytes:
        """Return a value as a record's key has it."""
        text = self._write(column, buf, at)
        return encode_string(text) if text else self._out.getvalue()[1:]

    def _write(self, column: ColumnPlan, buf: bytes, at: i64) -> str:
        """Write a value after its null branch; return the text of an invalid date, else ""."""
        self._out.truncate(0)
        write_value(self._dates, self._out, column, buf, at)
        return self._dates.take_text()


def read_whole_number(column: ColumnPlan, buf: bytes, at: i64) -> i64:
    """Read an integer, or a DECIMAL as its unscaled value; of at most 64 bits."""
    if column.op == ops.DECIMAL:
        return read_decimal(buf, at, column.whole_digits, column.fraction_digits)
    return read_integer(column.op, buf, at)
