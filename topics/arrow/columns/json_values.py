"""Writes column values as JSON text, one class per kind. Typed for mypyc.

The JSON is that of `topics.records.event_json`, which converts the Python values of a decoded
event. This module instead copies bytes of the record into an Arrow column and creates no Python
values; a property test holds the two against each other.
"""

import re
from base64 import b64encode
from typing import Final

from librt.strings import BytesWriter, read_f32_le, read_f64_le
from mypy_extensions import i64, u8
from numpy import float32

from topics.records.cursor import Cursor
from topics.records.table_shape import Column, ValueKind

SECOND_US: Final = 1_000_000
DAY_US: Final = 86_400_000_000

# The only 64-bit number that cannot be negated.
_INT64_MIN: Final = -0x8000000000000000

_HEX: Final = b"0123456789abcdef"
_ZERO: Final = 0x30
_MINUS: Final = 0x2D
_COLON: Final = 0x3A
_BACKSLASH: Final = 0x5C
_LETTER_T: Final = 0x54
_DOT: Final = 0x2E


def write_digits(out: BytesWriter, number: i64, width: i64) -> None:
    """Write a non-negative number in at least `width` digits."""
    digits: i64 = 1
    bound: i64 = 10
    # 64 bits hold at most 19 digits; a bound of 20 digits would overflow.
    while digits < 19 and number >= bound:
        digits += 1
        if digits < 19:
            bound *= 10
    digits = max(digits, width)
    begin: i64 = len(out)
    for _ in range(digits):
        out.append(u8(_ZERO))
    at: i64 = begin + digits - 1
    while at >= begin and number > 0:
        out[at] = u8(_ZERO + number % 10)
        number = number // 10
        at -= 1


def write_number(out: BytesWriter, number: i64) -> None:
    """Write a number in decimal."""
    if number >= 0:
        write_digits(out, number, 1)
    elif number == _INT64_MIN:
        out.write(b"-9223372036854775808")
    else:
        out.append(u8(_MINUS))
        write_digits(out, -number, 1)


def write_decimal(out: BytesWriter, number: i64, scale: i64) -> None:
    """Write number / 10**scale without an exponent."""
    if scale == 0 or scale > 18 or number == _INT64_MIN:
        out.write(decimal_text(int(number), int(scale)))
        return
    if number < 0:
        out.append(u8(_MINUS))
        number = -number
    power: i64 = 1
    for _ in range(scale):
        power *= 10
    write_digits(out, number // power, 1)
    out.append(u8(_DOT))
    write_digits(out, number % power, scale)


def decimal_text(number: int, scale: int) -> bytes:
    """Return number / 10**scale without an exponent, for numbers of any size."""
    digits = str(abs(number)).rjust(scale + 1, "0")
    text = digits if scale == 0 else digits[:-scale] + "." + digits[-scale:]
    return ("-" + text if number < 0 else text).encode("ascii")


def write_date(out: BytesWriter, days: i64) -> None:
    """Write days since 1970-01-01 as YYYY-MM-DD (proleptic Gregorian calendar)."""
    # In years that begin in March the leap day comes last; 400 years have 146097 days.
    shifted = days + 719468
    era = shifted // 146097
    day_of_era = shifted - era * 146097
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400
    if month <= 2:
        year += 1
    write_digits(out, year, 4)
    out.append(u8(_MINUS))
    write_digits(out, month, 2)
    out.append(u8(_MINUS))
    write_digits(out, day, 2)


def write_clock(out: BytesWriter, time_us: i64, decimals: i64) -> None:
    """Write a non-negative time as HH:MM:SS with at least `decimals` fractional digits.

    Further fractional digits are written up to the last one that is not zero.
    """
    seconds = time_us // SECOND_US
    micros = time_us - seconds * SECOND_US
    write_digits(out, seconds // 3600, 2)
    out.append(u8(_COLON))
    write_digits(out, seconds // 60 % 60, 2)
    out.append(u8(_COLON))
    write_digits(out, seconds % 60, 2)
    shown: i64 = 6
    while shown > decimals and micros % 10 == 0:
        micros = micros // 10
        shown -= 1
    if shown > 0:
        out.append(u8(_DOT))
        write_digits(out, micros, shown)


def write_time(out: BytesWriter, time_us: i64, decimals: i64) -> None:
    """Write a TIME value: a duration that may be negative and over a day."""
    if time_us < 0:
        out.append(u8(_MINUS))
        time_us = -time_us
    write_clock(out, time_us, decimals)


def write_moment(out: BytesWriter, moment_us: i64, decimals: i64) -> None:
    """Write microseconds since the epoch as YYYY-MM-DDTHH:MM:SS[.ffffff]."""
    days = moment_us // DAY_US
    write_date(out, days)
    out.append(u8(_LETTER_T))
    write_clock(out, moment_us - days * DAY_US, decimals)


def write_json_string(out: BytesWriter, record: bytes, begin: i64, end: i64) -> None:
    """Write bytes begin to end of a record (UTF-8) as a JSON string with quotes."""
    out.append(u8(_QUOTE))
    written = begin
    at = begin
    while at < end:
        byte: i64 = record[at]
        if byte < 0x20 or byte in (_QUOTE, _BACKSLASH):
            if at > written:
                out.write(record[written:at])
            _write_escape(out, byte)
            written = at + 1
        at += 1
    if end > written:
        out.write(record[written:end])
    out.append(u8(_QUOTE))


def _write_escape(out: BytesWriter, byte: i64) -> None:
    out.append(u8(_BACKSLASH))
    if byte >= 0x20:
        out.append(u8(byte))
        return
    out.write(b"u00")
    out.append(u8(_HEX[byte >> 4]))
    out.append(u8(_HEX[byte & 0xF]))


_QUOTE: Final = 0x22
_COMMA: Final = 0x2C
_OPEN: Final = 0x5B
_CLOSE: Final = 0x5D
_LETTER_Z: Final = 0x5A
_DECIMALS: Final = re.compile(r"\(([0-6])\)")


class JsonValue:
    """Writes one column's values as JSON."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        """Read a value and write it as JSON."""
        raise NotImplementedError


class _JsonNumber(JsonValue):
    """int, long."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        write_number(out, cursor.take_long())


class _JsonFloat(JsonValue):
    """float and double in the fewest digits; no server stores infinities or NaN."""

    def __init__(self, is_double: bool) -> None:
        self.is_double: bool = is_double

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
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


class _JsonUnsigned(JsonValue):
    """fixed(9): an unsigned 64-bit integer."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
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


class _JsonDecimal(JsonValue):
    """decimal, as a string: JSON parsers would round a number."""

    def __init__(self, scale: i64) -> None:
        self.scale: i64 = scale

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
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


class _JsonString(JsonValue):
    """string."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        size = cursor.take_size()
        at = cursor.at
        cursor.at = at + size
        write_json_string(out, cursor.record, at, at + size)


class _JsonBase64(JsonValue):
    """bytes, in base64."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        out.append(u8(_QUOTE))
        out.write(b64encode(cursor.take_bytes()))
        out.append(u8(_QUOTE))


class _JsonDate(JsonValue):
    """date: YYYY-MM-DD."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        out.append(u8(_QUOTE))
        write_date(out, cursor.take_long())
        out.append(u8(_QUOTE))


class _JsonTime(JsonValue):
    """time: [-]HH:MM:SS[.ffffff]."""

    def __init__(self, decimals: i64) -> None:
        self.decimals: i64 = decimals

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        out.append(u8(_QUOTE))
        write_time(out, cursor.take_long(), self.decimals)
        out.append(u8(_QUOTE))


class _JsonMoment(JsonValue):
    """datetime and timestamp; a timestamp ends in Z."""

    def __init__(self, is_utc: bool, decimals: i64) -> None:
        self.is_utc: bool = is_utc
        self.decimals: i64 = decimals

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        out.append(u8(_QUOTE))
        write_moment(out, cursor.take_long(), self.decimals)
        if self.is_utc:
            out.append(u8(_LETTER_Z))
        out.append(u8(_QUOTE))


class _JsonStringList(JsonValue):
    """array of strings."""

    def __init__(self) -> None:
        self.item: _JsonString = _JsonString()

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
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


class _JsonVerbatim(JsonValue):
    """The JSON text of the server, which is always valid."""

    def write(self, cursor: Cursor, out: BytesWriter) -> None:
        out.write(cursor.take_bytes())


def json_value_for(column: Column) -> JsonValue:
    """Return the JSON writer of a column's values, as in `topics.records.event_json`."""
    match column.kind:
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return _JsonUnsigned()
        case ValueKind.FLOAT | ValueKind.DOUBLE:
            return _JsonFloat(is_double=column.kind is ValueKind.DOUBLE)
        case ValueKind.DECIMAL:
            return _JsonDecimal(column.scale)
        case ValueKind.STRING | ValueKind.ENUM:
            return _JsonString()
        case ValueKind.JSON:
            return _JsonVerbatim()
        case ValueKind.BYTES:
            return _JsonBase64()
        case ValueKind.DATE:
            return _JsonDate()
        case ValueKind.TIME:
            return _JsonTime(_declared_decimals(column))
        case ValueKind.DATETIME | ValueKind.TIMESTAMP:
            is_utc = column.kind is ValueKind.TIMESTAMP
            return _JsonMoment(is_utc=is_utc, decimals=_declared_decimals(column))
        case ValueKind.SET:
            return _JsonStringList()
        case ValueKind.INT | ValueKind.LONG | ValueKind.YEAR | ValueKind.BIT:
            return _JsonNumber()


def _declared_decimals(column: Column) -> int:
    """Return the fractional digits of the declared type: 3 for `datetime(3)`."""
    declared = _DECIMALS.search(column.sql_type)
    return 0 if declared is None else int(declared[1])
