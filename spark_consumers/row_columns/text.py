"""Writes numbers, dates and JSON strings as text, byte by byte. Typed for mypyc."""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

SECOND_US: Final = 1_000_000
DAY_US: Final = 86_400_000_000

# The only 64-bit number that cannot be negated.
_INT64_MIN: Final = -0x8000000000000000

_HEX: Final = b"0123456789abcdef"
_ZERO: Final = 0x30
_MINUS: Final = 0x2D
_COLON: Final = 0x3A
_QUOTE: Final = 0x22
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
