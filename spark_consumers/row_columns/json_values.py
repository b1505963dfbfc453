"""Writes column values as JSON text, one class per kind. Typed for mypyc.

The JSON is that of `topics.records.event_json`, which converts the Python values of a decoded
event. This module instead copies bytes of the record into an Arrow column and creates no Python
values; a property test holds the two against each other.
"""

from base64 import b64encode
from typing import Final

from librt.strings import BytesWriter, read_f32_le, read_f64_le
from mypy_extensions import i64, u8
from numpy import float32

from spark_consumers.row_columns.text import (
    decimal_text,
    write_date,
    write_decimal,
    write_json_string,
    write_moment,
    write_number,
    write_time,
)
from topics.records.cursor import Cursor

_QUOTE: Final = 0x22
_COMMA: Final = 0x2C
_OPEN: Final = 0x5B
_CLOSE: Final = 0x5D
_LETTER_Z: Final = 0x5A


class JsonValue:
    """Writes one column's values as JSON."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        """Read a value and write it as JSON."""
        raise NotImplementedError


class JsonNumber(JsonValue):
    """int, long."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        """Read a value and write it as JSON."""
        write_number(out, cursor.take_long())


class JsonFloat(JsonValue):
    """float and double in the fewest digits; no server stores infinities or NaN."""

    def __init__(self, is_double: bool) -> None:
        """Read eight bytes for a double, four for a float."""
        self.is_double: bool = is_double

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        """Read a value and write it as JSON."""
        at = cursor.at
        value: float
        if self.is_double:
            cursor.skip(8)
            value = read_f64_le(cursor.record, at)
        else:
            cursor.skip(4)
            value = read_f32_le(cursor.record, at)
        if value - value != 0.0:
            raise ValueError("a float value is not finite")
        # Python's repr is the shortest text of 64 bits, numpy's str that of 32 bits.
        text = repr(value) if self.is_double else str(float32(value))
        out.write(text.encode("ascii"))


class JsonUnsigned(JsonValue):
    """fixed(9): an unsigned 64-bit integer."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        """Read a value and write it as JSON."""
        at = cursor.at
        cursor.skip(9)
        high: i64 = cursor.record[at]
        cursor.at = at + 1
        low = cursor.take_big_endian(8)
        if high == 0 and low >= 0:
            write_number(out, low)
        else:
            number = int.from_bytes(cursor.record[at : at + 9], "big", signed=True)
            out.write(str(number).encode("ascii"))


class JsonDecimal(JsonValue):
    """decimal, as a string: JSON parsers would round a number."""

    def __init__(self, scale: i64) -> None:
        """Keep the scale of the column."""
        self.scale: i64 = scale

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        """Read a value and write it as JSON."""
        size = cursor.take_size()
        out.append(u8(_QUOTE))
        if size <= 8:
            write_decimal(out, cursor.take_big_endian(size), self.scale)
        else:
            at = cursor.at
            cursor.skip(size)
            number = int.from_bytes(cursor.record[at : at + size], "big", signed=True)
            out.write(decimal_text(number, int(self.scale)))
        out.append(u8(_QUOTE))


class JsonString(JsonValue):
    """string."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        """Read a value and write it as JSON."""
        size = cursor.take_size()
        at = cursor.at
        cursor.at = at + size
        write_json_string(out, cursor.record, at, at + size)


class JsonBase64(JsonValue):
    """bytes, in base64."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        """Read a value and write it as JSON."""
        out.append(u8(_QUOTE))
        out.write(b64encode(cursor.take_bytes()))
        out.append(u8(_QUOTE))


class JsonDate(JsonValue):
    """date: YYYY-MM-DD."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        """Read a value and write it as JSON."""
        out.append(u8(_QUOTE))
        write_date(out, cursor.take_long())
        out.append(u8(_QUOTE))


class JsonTime(JsonValue):
    """time: [-]HH:MM:SS[.ffffff]."""

    def __init__(self, decimals: i64) -> None:
        """Keep the fractional digits that the column declares."""
        self.decimals: i64 = decimals

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        """Read a value and write it as JSON."""
        out.append(u8(_QUOTE))
        write_time(out, cursor.take_long(), self.decimals)
        out.append(u8(_QUOTE))


class JsonMoment(JsonValue):
    """datetime and timestamp; a timestamp ends in Z."""

    def __init__(self, is_utc: bool, decimals: i64) -> None:
        """`is_utc`: a timestamp; `decimals`: the declared fractional digits."""
        self.is_utc: bool = is_utc
        self.decimals: i64 = decimals

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        """Read a value and write it as JSON."""
        out.append(u8(_QUOTE))
        write_moment(out, cursor.take_long(), self.decimals)
        if self.is_utc:
            out.append(u8(_LETTER_Z))
        out.append(u8(_QUOTE))


class JsonStringList(JsonValue):
    """array of strings."""

    def __init__(self) -> None:
        """Create the writer of the items."""
        self.item: JsonString = JsonString()

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        """Read a value and write it as JSON."""
        out.append(u8(_OPEN))
        is_first = True
        count = cursor.take_block_count()
        while count != 0:
            while count > 0:
                if not is_first:
                    out.append(u8(_COMMA))
                is_first = False
                self.item.write(cursor, out)
                count -= 1
            count = cursor.take_block_count()
        out.append(u8(_CLOSE))


class JsonVerbatim(JsonValue):
    """The JSON text of the server, which is always valid."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        """Read a value and write it as JSON."""
        out.write(cursor.take_bytes())
