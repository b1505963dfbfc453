"""Writes column values from the bytes of records as JSON or Avro, one class per way to write.

No Python object is made of a value, except of those that are rare. Typed for mypyc.
"""

import re
import struct
from binascii import b2a_base64
from json.encoder import encode_basestring
from typing import Final

from librt.strings import (
    BytesWriter,
    read_f32_le,
    read_f64_le,
    write_f64_le,
)
from mypy_extensions import i64, u8
from numpy import float32

from sinks.errors import ValueDoesNotFit
from sinks.table_topics.envelope import connect_types as types
from sinks.table_topics.envelope.connect_types import ConnectSchema, declared_number
from topics.arrow.columns.json_values import (
    DAY_US,
    decimal_text,
    write_clock,
    write_date,
    write_decimal,
    write_moment,
    write_number,
)
from topics.records.cursor import POSITIVE_MASK, Cursor
from topics.records.table_shape import UNSIGNED_LONG_BYTES, Column, ValueKind

_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_LETTER_Z: Final = 0x5A
# The first byte of characters beyond 16 bits in UTF-8, which Java's converter escapes.
_BEYOND_16_BITS: Final = 0xF0
# In a JSON string: an escaped backslash, which is passed, and where Java's escapes differ.
_JAVA: Final = re.compile("\\\\\\\\|\\\\u00[01][0-9a-f]|[\U00010000-\U0010ffff]")
# The branch of a union before a value: null is branch 0, except where the default is not null.
FIRST_BRANCH: Final = b"\x00"
SECOND_BRANCH: Final = b"\x02"
NULL_BRANCH: Final = b"\x00"
JSON_NULL: Final = b"null"


def write_varint(out: BytesWriter, number: i64) -> None:
    """Write an int or a long of Avro: zigzag, seven bits per byte, lowest first."""
    left: i64 = (number << 1) ^ (number >> 63)
    while left < 0 or left > 0x7F:
        out.append(u8(0x80 | (left & 0x7F)))
        # As an unsigned shift: the highest bit of zigzag is no sign.
        left = (left >> 7) & (POSITIVE_MASK >> 6)
    out.append(u8(left))


def write_avro_bytes(out: BytesWriter, content: bytes) -> None:
    """Write a string or bytes of Avro."""
    write_varint(out, len(content))
    out.write(content)


def write_java_string(out: BytesWriter, record: bytes, begin: i64, end: i64) -> None:
    """Write bytes begin to end (UTF-8) as the JSON string that Connect's JsonConverter writes.

    It escapes control characters and, more than JSON requires, characters beyond 16 bits. Keys
    must have the same bytes, because their hash chooses the partition.
    """
    first: i64 = len(out)
    out.append(u8(_QUOTE))
    written = begin
    at = begin
    while at < end:
        byte: i64 = record[at]
        if byte < 0x20 or byte >= _BEYOND_16_BITS:
            out.truncate(first)
            out.write(_java_json(record[begin:end]))
            return
        if byte == _QUOTE or byte == _BACKSLASH:  # noqa: PLR1714, SIM109 - a tuple would box it
            if at > written:
                out.write(record[written:at])
            out.append(u8(_BACKSLASH))
            written = at
        at += 1
    if end > written:
        out.write(record[written:end])
    out.append(u8(_QUOTE))


def java_string(content: bytes) -> bytes:
    """Return UTF-8 as the JSON string that Connect's JsonConverter writes."""
    out = BytesWriter()
    write_java_string(out, content, 0, len(content))
    return out.getvalue()


def _java_json(content: bytes) -> bytes:
    text: str = _JAVA.sub(_java_escape, encode_basestring(content.decode("utf-8")))
    return text.encode("utf-8")


def _java_escape(found: re.Match[str]) -> str:
    text: str = found[0]
    if len(text) == 1:
        first, second = struct.unpack(">HH", text.encode("utf-16-be"))
        return f"\\u{first:04X}\\u{second:04X}"
    return text if text == "\\\\" else f"\\u{text[2:].upper()}"


# From how many digits before the point, and after how many zeros behind it, a float has an
# exponent. Keys of topics have been written so.
_WHOLE_DIGITS_MAX: Final = 10
_ZEROS_MAX: Final = 5


def float_text(shortest: str) -> str:
    """Return a float as JSON messages have it, from its shortest decimal (`1e-07`, `12.0`)."""
    sign = "-" if shortest.startswith("-") else ""
    mantissa, _, exponent = shortest.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(exponent or 0)
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    if not digits:
        return f"{sign}0"
    if point > _WHOLE_DIGITS_MAX or point < -_ZEROS_MAX:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{rest}e{point - 1:+d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return sign + digits + "0" * (point - len(digits))
    return f"{sign}{digits[:point]}.{digits[point:]}"


class ValueWriter:
    """Writes one column's values; this base class writes integers."""

    def __init__(self, *, is_avro: bool) -> None:
        """Write Avro or JSON."""
        self.is_avro: bool = is_avro

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        """Read a value and write it; False, and nothing is written, if the format has none."""
        self.put(out, cursor.take_long())
        return True

    def put(self, out: BytesWriter, number: i64) -> None:
        """Write a number."""
        if self.is_avro:
            write_varint(out, number)
        else:
            write_number(out, number)


class _Milliseconds(ValueWriter):
    """Microseconds as milliseconds: rounded down, also before 1970."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        self.put(out, cursor.take_long() // 1000)
        return True


class _DayMilliseconds(ValueWriter):
    """A TIME as milliseconds of a day."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        time_us = cursor.take_long()
        if time_us < 0 or time_us >= DAY_US:
            return False
        self.put(out, time_us // 1000)
        return True


class _SignedLong(ValueWriter):
    """BIGINT UNSIGNED as a signed number."""

    def __init__(self, *, is_avro: bool, where: str) -> None:
        super().__init__(is_avro=is_avro)
        self.where: str = where

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        at = cursor.at
        cursor.skip(1)
        number = cursor.take_big_endian(8)
        if number < 0:
            value = int.from_bytes(cursor.record[at : cursor.at], "big")
            raise ValueDoesNotFit(
                f"{self.where}: {value} is beyond 2**63-1 and would become a negative number: "
                f"write such columns as decimals (--unsigned precise)"
            )
        self.put(out, number)
        return True


class _Flag(ValueWriter):
    """BIT(1)."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        is_set = cursor.take_long() != 0
        if self.is_avro:
            out.append(u8(1) if is_set else u8(0))
        else:
            out.write(b"true" if is_set else b"false")
        return True


class _Float(ValueWriter):
    """FLOAT, in the fewest digits of 32 bits."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        at = cursor.at
        cursor.skip(4)
        if self.is_avro:
            out.write(cursor.record[at : at + 4])
        else:
            write_json_float(out, read_f32_le(cursor.record, at))
        return True


class _Double(ValueWriter):
    """DOUBLE, in the fewest digits of 64 bits."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        at = cursor.at
        cursor.skip(8)
        if self.is_avro:
            out.write(cursor.record[at : at + 8])
        else:
            write_json_double(out, read_f64_le(cursor.record, at))
        return True


def write_json_float(out: BytesWriter, value: float) -> None:
    """Write 32 bits."""
    _check_finite(value)
    out.write(float_text(str(float32(value))).encode("ascii"))


def write_json_double(out: BytesWriter, value: float) -> None:
    """Write 64 bits."""
    _check_finite(value)
    out.write(float_text(repr(value)).encode("ascii"))


def _check_finite(value: float) -> None:
    if value - value != 0.0:
        raise ValueError("a float value is not finite, for which JSON has no number")


class TextWriter(ValueWriter):
    """Writes strings; this base class writes the record's own."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        """Read a string and write it."""
        size = cursor.take_size()
        at = cursor.at
        cursor.at = at + size
        if self.is_avro:
            write_varint(out, size)
            out.write(cursor.record[at : at + size])
        else:
            write_java_string(out, cursor.record, at, at + size)
        return True

    def put_text(self, out: BytesWriter, text: bytes) -> None:
        """Write a string that has no character that JSON escapes."""
        if self.is_avro:
            write_avro_bytes(out, text)
        else:
            out.append(u8(_QUOTE))
            out.write(text)
            out.append(u8(_QUOTE))


class _SetLabels(TextWriter):
    """SET as labels with commas between them."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        labels: list[bytes] = []
        count = cursor.take_block_count()
        while count != 0:
            while count > 0:
                labels.append(cursor.take_bytes())
                count -= 1
            count = cursor.take_block_count()
        text = b",".join(labels)
        if self.is_avro:
            write_avro_bytes(out, text)
        else:
            write_java_string(out, text, 0, len(text))
        return True


class _MomentText(TextWriter):
    """YYYY-MM-DDTHH:MM:SS[.ffffff]Z with at least `decimals` fractional digits."""

    def __init__(self, *, is_avro: bool, decimals: i64) -> None:
        super().__init__(is_avro=is_avro)
        self.decimals: i64 = decimals

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        text = BytesWriter()
        write_moment(text, cursor.take_long(), self.decimals)
        text.append(u8(_LETTER_Z))
        self.put_text(out, text.getvalue())
        return True


class _DateText(TextWriter):
    """YYYY-MM-DDZ."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        text = BytesWriter()
        write_date(text, cursor.take_long())
        text.append(u8(_LETTER_Z))
        self.put_text(out, text.getvalue())
        return True


class _ClockText(TextWriter):
    """A TIME as HH:MM:SS[.ffffff]Z."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        time_us = cursor.take_long()
        if time_us < 0 or time_us >= DAY_US:
            return False
        text = BytesWriter()
        write_clock(text, time_us, 0)
        text.append(u8(_LETTER_Z))
        self.put_text(out, text.getvalue())
        return True


class _Decimal(TextWriter):
    """Reads DECIMAL, or BIGINT UNSIGNED (`fixed` bytes), and writes it with all its digits."""

    def __init__(self, *, is_avro: bool, fixed: i64, scale: i64) -> None:
        super().__init__(is_avro=is_avro)
        self.fixed: i64 = fixed
        self.scale: i64 = scale

    def take_unscaled(self, cursor: Cursor) -> bytes:
        """Read the unscaled value: big-endian two's complement."""
        size = self.fixed
        if size == 0:
            size = cursor.take_size()
        at = cursor.at
        cursor.skip(size)
        return cursor.record[at : at + size]

    def text(self, cursor: Cursor) -> bytes:
        """Read a value as text, never with an exponent."""
        unscaled = self.take_unscaled(cursor)
        size: i64 = len(unscaled)
        if size > 8:
            return decimal_text(int.from_bytes(unscaled, "big", signed=True), int(self.scale))
        out = BytesWriter()
        within = Cursor()
        within.open(unscaled, 0)
        write_decimal(out, within.take_big_endian(size), self.scale)
        return out.getvalue()

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        self.put_text(out, self.text(cursor))
        return True


class _DecimalNumber(_Decimal):
    """A decimal as a number with all its digits; JSON only."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        out.write(self.text(cursor))
        return True


class _DecimalDouble(_Decimal):
    """A decimal as the nearest double."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        value = float(self.text(cursor))
        if self.is_avro:
            write_f64_le(out, value)
        else:
            write_json_double(out, value)
        return True


class _DecimalBytes(_Decimal):
    """The shortest two's complement, as Java's BigInteger gives it."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        unscaled = self.take_unscaled(cursor)
        last: i64 = len(unscaled) - 1
        begin: i64 = 0
        while begin < last:
            byte: i64 = unscaled[begin]
            sign: i64 = unscaled[begin + 1]
            # A first byte that only repeats the sign of the next one.
            if not ((byte == 0 and sign < 0x80) or (byte == 0xFF and sign >= 0x80)):
                break
            begin += 1
        write_binary(out, unscaled[begin:], is_avro=self.is_avro)
        return True


def write_binary(out: BytesWriter, content: bytes, *, is_avro: bool) -> None:
    """Write bytes, in JSON as base64."""
    if is_avro:
        write_avro_bytes(out, content)
    else:
        out.append(u8(_QUOTE))
        out.write(b2a_base64(content, newline=False))
        out.append(u8(_QUOTE))


class _Binary(ValueWriter):
    """BINARY and BLOB."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        write_binary(out, cursor.take_bytes(), is_avro=self.is_avro)
        return True


class _Bits(ValueWriter):
    """BIT as `size` bytes, little-endian; BIT(64) has `fixed` bytes in the record."""

    def __init__(self, *, is_avro: bool, size: i64, is_fixed: bool) -> None:
        super().__init__(is_avro=is_avro)
        self.size: i64 = size
        self.is_fixed: bool = is_fixed

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        number: i64
        if self.is_fixed:
            cursor.skip(1)
            number = cursor.take_big_endian(8)
        else:
            number = cursor.take_long()
        content = BytesWriter()
        at: i64 = 0
        while at < self.size:
            content.append(u8((number >> (8 * at)) & 0xFF))
            at += 1
        write_binary(out, content.getvalue(), is_avro=self.is_avro)
        return True


# MySQL's own format: the SRID in four bytes, then WKB, of a point in 21 bytes, little-endian.
_SRID_BYTES: Final = 4
_X_AT: Final = 9
_Y_AT: Final = 17
_POINT_BYTES: Final = 25


class _Geometry(ValueWriter):
    """A geometry as a struct of WKB and SRID; a point has its coordinates before them."""

    def __init__(self, *, is_avro: bool, is_point: bool) -> None:
        super().__init__(is_avro=is_avro)
        self.is_point: bool = is_point

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        value = cursor.take_bytes()
        # The schema's int32, as Debezium reads it: an SRID from 2^31 on becomes negative.
        srid = int.from_bytes(value[:_SRID_BYTES], "little", signed=True)
        if self.is_point:
            if len(value) != _POINT_BYTES:
                raise ValueError(f"a point has {len(value)} bytes")
            self._write_coordinates(out, value)
        wkb = value[_SRID_BYTES:]
        if self.is_avro:
            if self.is_point:
                out.write(SECOND_BRANCH)
            write_avro_bytes(out, wkb)
            if srid:
                out.write(SECOND_BRANCH)
                write_varint(out, srid)
            else:
                out.write(NULL_BRANCH)
            return True
        out.write(b',"wkb":' if self.is_point else b'{"wkb":')
        write_binary(out, wkb, is_avro=False)
        out.write(b',"srid":')
        out.write(str(srid).encode("ascii") if srid else JSON_NULL)
        out.write(b"}")
        return True

    def _write_coordinates(self, out: BytesWriter, value: bytes) -> None:
        x = read_f64_le(value, _X_AT)
        y = read_f64_le(value, _Y_AT)
        if self.is_avro:
            write_f64_le(out, x)
            write_f64_le(out, y)
        else:
            out.write(b'{"x":')
            write_json_double(out, x)
            out.write(b',"y":')
            write_json_double(out, y)


class _Vector(ValueWriter):
    """VECTOR as an array of floats."""

    def write(self, cursor: Cursor, out: BytesWriter) -> bool:
        value = cursor.take_bytes()
        count: i64 = len(value) // 4
        if self.is_avro:
            # One block with all items, where there are any, and a count of 0 at the end.
            write_varint(out, count)
            if count > 0:
                out.write(value)
                write_varint(out, 0)
            return True
        out.write(b"[")
        at: i64 = 0
        while at < count:
            if at > 0:
                out.write(b",")
            write_json_float(out, read_f32_le(value, at * 4))
            at += 1
        out.write(b"]")
        return True


def value_writer(column: Column, to: ConnectSchema, *, is_avro: bool, where: str) -> ValueWriter:
    """Return the writer of a column's values as a Connect type.

    `where`: the table and the column, for the message of ValueDoesNotFit.
    """
    match column.kind:
        case ValueKind.UNSIGNED_LONG if to.type == "int64":
            return _SignedLong(is_avro=is_avro, where=where)
        case ValueKind.DECIMAL | ValueKind.UNSIGNED_LONG:
            return _decimal_writer(column, to, is_avro=is_avro)
        case ValueKind.FLOAT:
            return _Float(is_avro=is_avro)
        case ValueKind.DOUBLE:
            return _Double(is_avro=is_avro)
        case ValueKind.STRING | ValueKind.ENUM | ValueKind.JSON:
            return TextWriter(is_avro=is_avro)
        case ValueKind.SET:
            return _SetLabels(is_avro=is_avro)
        case ValueKind.BIT | ValueKind.BIT64:
            bits = declared_number(column.sql_type)
            if bits == 1:
                return _Flag(is_avro=is_avro)
            is_fixed = column.kind is ValueKind.BIT64
            return _Bits(is_avro=is_avro, size=(bits + 7) // 8, is_fixed=is_fixed)
        case ValueKind.DATE | ValueKind.TIME | ValueKind.DATETIME | ValueKind.TIMESTAMP:
            return _temporal_writer(column, to, is_avro=is_avro)
        case ValueKind.BYTES if to.type == "struct":
            return _Geometry(is_avro=is_avro, is_point=to.name == types.POINT)
        case ValueKind.BYTES if to.type == "array":
            return _Vector(is_avro=is_avro)
        case ValueKind.BYTES:
            return _Binary(is_avro=is_avro)
        case ValueKind.INT | ValueKind.LONG | ValueKind.YEAR:
            return ValueWriter(is_avro=is_avro)


def header_writer(column: Column, to: ConnectSchema, *, where: str) -> ValueWriter:
    """Return the writer of a key's column in a header, where decimals are JSON numbers."""
    if to.name == types.DECIMAL:
        return _DecimalNumber(is_avro=False, fixed=_fixed_bytes(column), scale=column.scale)
    return value_writer(column, to, is_avro=False, where=where)


def _fixed_bytes(column: Column) -> int:
    return UNSIGNED_LONG_BYTES if column.kind is ValueKind.UNSIGNED_LONG else 0


def _decimal_writer(column: Column, to: ConnectSchema, *, is_avro: bool) -> ValueWriter:
    fixed, scale = _fixed_bytes(column), column.scale
    if to.type == "bytes":
        return _DecimalBytes(is_avro=is_avro, fixed=fixed, scale=scale)
    if to.type == "string":
        return _Decimal(is_avro=is_avro, fixed=fixed, scale=scale)
    return _DecimalDouble(is_avro=is_avro, fixed=fixed, scale=scale)


def _temporal_writer(column: Column, to: ConnectSchema, *, is_avro: bool) -> ValueWriter:
    match to.name:
        case types.ZONED_TIMESTAMP:
            return _MomentText(is_avro=is_avro, decimals=declared_number(column.sql_type))
        case types.ISO_TIMESTAMP:
            return _MomentText(is_avro=is_avro, decimals=0)
        case types.ISO_DATE:
            return _DateText(is_avro=is_avro)
        case types.CONNECT_TIME:
            return _DayMilliseconds(is_avro=is_avro)
        case types.ISO_TIME:
            return _ClockText(is_avro=is_avro)
        case types.TIMESTAMP | types.CONNECT_TIMESTAMP:
            return _Milliseconds(is_avro=is_avro)
        case _:
            return ValueWriter(is_avro=is_avro)
