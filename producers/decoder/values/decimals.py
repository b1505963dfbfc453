"""DECIMAL: nine digits in four bytes; either side of the point is rounded up to whole bytes."""

from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64, u8

from producers.decoder.values.wire import read_be, write_string

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
