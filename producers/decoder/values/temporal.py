"""Dates and times: from the server's packed forms to Avro numbers, or to text for invalid dates.

Invalid dates are zero and partial dates, and days like 31 February that ALLOW_INVALID_DATES lets
in. They are written as null, and their text goes into the record's envelope.
"""

from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64, u8

from producers.decoder.values.wire import read_be, write_string

US_PER_SECOND: Final = 1_000_000
US_PER_DAY: Final = 86_400_000_000
# Stands for an invalid date: smaller than any date, time or timestamp that servers can store.
INVALID_DATE: Final = -0x4000_0000_0000_0000

_DATETIME_OFFSET: Final = 0x80_0000_0000
_TIME_OFFSET: Final = 0x80_0000


def fraction_bytes(digits: i64) -> i64:
    """Return how many bytes hold that many fractional digits of a second."""
    return (digits + 1) >> 1


def read_fraction(buf: bytes, pos: i64, digits: i64) -> i64:
    """Read the fraction that follows a time, as microseconds."""
    if digits == 0:
        return 0
    if digits <= 2:
        return i64(buf[pos]) * 10_000
    if digits <= 4:
        return read_be(buf, pos, 2) * 100
    return read_be(buf, pos, 3)


def days_from_civil(year: i64, month: i64, day: i64) -> i64:
    """Return days since 1970-01-01 in the proleptic Gregorian calendar, for year >= 1."""
    shifted: i64 = year - 1 if month <= 2 else year
    era: i64 = shifted // 400
    year_of_era: i64 = shifted - era * 400
    month_from_march: i64 = month - 3 if month > 2 else month + 9
    day_of_year: i64 = (153 * month_from_march + 2) // 5 + day - 1
    day_of_era: i64 = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468


def is_valid_date(year: i64, month: i64, day: i64) -> bool:
    """Tell whether a day exists; years begin at 1."""
    if year < 1 or month < 1 or month > 12 or day < 1:
        return False
    if day <= 28:
        return True
    if month == 2:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return leap and day == 29
    if day == 31:
        return month not in (4, 6, 9, 11)
    return day <= 30


def date_days(packed: i64) -> i64:
    """Return days since 1970-01-01 from a DATE's three bytes, or INVALID_DATE."""
    year, month, day = packed >> 9, (packed >> 5) & 15, packed & 31
    if not is_valid_date(year, month, day):
        return INVALID_DATE
    return days_from_civil(year, month, day)


def date_text(packed: i64) -> str:
    """Return a DATE's three bytes as the server prints them."""
    return f"{packed >> 9:04d}-{(packed >> 5) & 15:02d}-{packed & 31:02d}"


def read_datetime(buf: bytes, pos: i64) -> i64:
    """Read a DATETIME's five bytes; ValueError where no server stores them so."""
    packed = read_be(buf, pos, 5) - _DATETIME_OFFSET
    if packed < 0:
        raise ValueError("a DATETIME is negative")
    return packed


def datetime_us(packed: i64, fraction_us: i64) -> i64:
    """Return microseconds since 1970-01-01 00:00:00 in the same time zone, or INVALID_DATE."""
    year_month: i64 = packed >> 22
    day: i64 = (packed >> 17) & 31
    if not is_valid_date(year_month // 13, year_month % 13, day):
        return INVALID_DATE
    days = days_from_civil(year_month // 13, year_month % 13, day)
    seconds: i64 = ((packed >> 12) & 31) * 3600 + ((packed >> 6) & 63) * 60 + (packed & 63)
    return days * US_PER_DAY + seconds * US_PER_SECOND + fraction_us


def fraction_text(fraction_us: i64, digits: i64) -> str:
    """Return the point and as many digits as the column has, "" for none."""
    return f".{fraction_us:06d}"[: digits + 1] if digits else ""


def datetime_text(packed: i64, fraction_us: i64, digits: i64) -> str:
    """Return a DATETIME as the server prints it."""
    year_month = packed >> 22
    date = f"{year_month // 13:04d}-{year_month % 13:02d}-{(packed >> 17) & 31:02d}"
    time = f"{(packed >> 12) & 31:02d}:{(packed >> 6) & 63:02d}:{packed & 63:02d}"
    return f"{date} {time}{fraction_text(fraction_us, digits)}"


def read_time_us(buf: bytes, pos: i64, digits: i64) -> i64:
    """Read a TIME as microseconds; it may be negative."""
    size = fraction_bytes(digits)
    bits: i64 = 8 * size
    # A variable: a constant shifted by a variable has only 32 bits under mypyc.
    value: i64 = read_be(buf, pos, 3 + size)
    whole: i64 = (value >> bits) - _TIME_OFFSET
    value = (whole << bits) + (value - ((value >> bits) << bits))
    negative = value < 0
    if negative:
        value = -value
    clock: i64 = value >> bits
    seconds: i64 = ((clock >> 12) & 0x3FF) * 3600 + ((clock >> 6) & 63) * 60 + (clock & 63)
    fraction: i64 = value - (clock << bits)
    if size == 1:
        fraction *= 10_000
    elif size == 2:
        fraction *= 100
    total: i64 = seconds * US_PER_SECOND + fraction
    return -total if negative else total


_GROUP_DIGITS: Final = 9
_GROUP_BYTES: Final = 4
_GROUP: Final = 1_000_000_000


def _bytes_of(digits: i64) -> i64:
    """Return the bytes of a group of fewer than nine digits."""
    return (digits + 1) >> 1


def _mask(size: i64) -> i64:
    """Return one to four bytes of ones.

    Spelled out: a constant shifted by a variable has only 32 bits under mypyc.
    """
    if size == 1:
        return 0xFF
    if size == 2:
        return 0xFFFF
    return 0xFFFFFF if size == 3 else 0xFFFFFFFF


def _power(digits: i64) -> i64:
    result: i64 = 1
    while digits > 0:
        result *= 10
        digits -= 1
    return result


def _read_group(buf: bytes, pos: i64, size: i64, first: bool, negative: bool) -> i64:
    """Read one group. The number's first bit is its sign; negative numbers are inverted."""
    value = read_be(buf, pos, size)
    mask = _mask(size)
    if first:
        value ^= mask - (mask >> 1)
    return mask - value if negative else value


def read_decimal(buf: bytes, pos: i64, whole_digits: i64, fraction_digits: i64) -> i64:
    """Read a DECIMAL of at most 18 digits as its unscaled value."""
    negative = i64(buf[pos]) & 0x80 == 0
    start = pos
    value: i64 = 0
    head: i64 = whole_digits % _GROUP_DIGITS
    if head:
        size = _bytes_of(head)
        value = _read_group(buf, pos, size, True, negative)
        pos += size
    groups: i64 = whole_digits // _GROUP_DIGITS + fraction_digits // _GROUP_DIGITS
    while groups > 0:
        group = _read_group(buf, pos, _GROUP_BYTES, pos == start, negative)
        value = value * _GROUP + group
        pos += _GROUP_BYTES
        groups -= 1
    tail: i64 = fraction_digits % _GROUP_DIGITS
    if tail:
        size = _bytes_of(tail)
        value = value * _power(tail) + _read_group(buf, pos, size, pos == start, negative)
    return -value if negative else value


def read_big_decimal(buf: bytes, pos: i64, whole_digits: i64, fraction_digits: i64) -> int:
    """Read a DECIMAL of any precision as its unscaled value."""
    negative = i64(buf[pos]) & 0x80 == 0
    start = pos
    value: int = 0
    head: i64 = whole_digits % _GROUP_DIGITS
    if head:
        size = _bytes_of(head)
        value = _read_group(buf, pos, size, True, negative)
        pos += size
    groups: i64 = whole_digits // _GROUP_DIGITS + fraction_digits // _GROUP_DIGITS
    while groups > 0:
        group: int = _read_group(buf, pos, _GROUP_BYTES, pos == start, negative)
        value = value * _GROUP + group
        pos += _GROUP_BYTES
        groups -= 1
    tail: i64 = fraction_digits % _GROUP_DIGITS
    if tail:
        size = _bytes_of(tail)
        last: int = _read_group(buf, pos, size, pos == start, negative)
        power: int = _power(tail)
        value = value * power + last
    return -value if negative else value


def write_decimal(
    out: BytesWriter, buf: bytes, pos: i64, whole_digits: i64, fraction_digits: i64
) -> None:
    """Write a DECIMAL of at most 18 digits, always as eight bytes."""
    out.append(u8(16))
    write_i64_be(out, read_decimal(buf, pos, whole_digits, fraction_digits))


def write_big_decimal(
    out: BytesWriter, buf: bytes, pos: i64, whole_digits: i64, fraction_digits: i64
) -> None:
    """Write a DECIMAL of more than 18 digits in as few bytes as it needs."""
    value = read_big_decimal(buf, pos, whole_digits, fraction_digits)
    size = value.bit_length() // 8 + 1
    write_string(out, value.to_bytes(size, "big", signed=True))


def decimal_text(value: int, scale: int) -> str:
    """Return the number as the server prints it."""
    digits = str(abs(value)).rjust(scale + 1, "0")
    sign = "-" if value < 0 else ""
    if scale == 0:
        return sign + digits
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}"
