"""Integers and strings as the binlog and Avro encode them. Offsets and lengths are in bytes.

All functions give the same result compiled and plain: `i64` wraps only when compiled, so every
result is masked to its width. Reading past the end of the buffer raises IndexError in both.
"""

from typing import Final

from librt.strings import (
    BytesWriter,
    read_f32_le,
    read_f64_le,
    read_i16_le,
    read_i32_be,
    read_i32_le,
    read_i64_be,
    read_i64_le,
    write_i64_le,
)
from mypy_extensions import i64, u8

from topics.records.table_shape import UNSIGNED_LONG_BYTES, ValueKind

# 64 bits, seven per byte.
_LONG_BYTES_MAX: Final = 10
# Above this length a slice is cheaper than copying eight bytes at a time.
_COPY_BY_WORDS_MAX: Final = 96


def read_u16(buf: bytes, pos: i64) -> i64:
    """Read two bytes, little-endian, unsigned."""
    return i64(read_i16_le(buf, pos)) & 0xFFFF


def read_u24(buf: bytes, pos: i64) -> i64:
    """Read three bytes, little-endian, unsigned."""
    return i64(buf[pos]) | (i64(buf[pos + 1]) << 8) | (i64(buf[pos + 2]) << 16)


def read_u32(buf: bytes, pos: i64) -> i64:
    """Read four bytes, little-endian, unsigned."""
    return i64(read_i32_le(buf, pos)) & 0xFFFFFFFF


def read_u48(buf: bytes, pos: i64) -> i64:
    """Read six bytes, little-endian, unsigned."""
    return read_u32(buf, pos) | (read_u16(buf, pos + 4) << 32)


def read_u56(buf: bytes, pos: i64) -> i64:
    """Read seven bytes, little-endian, unsigned."""
    return read_u32(buf, pos) | (read_u24(buf, pos + 4) << 32)


def read_be(buf: bytes, pos: i64, size: i64) -> i64:
    """Read one to seven bytes, big-endian, unsigned."""
    value: i64 = 0
    if size >= 4:
        value = i64(read_i32_be(buf, pos)) & 0xFFFFFFFF
        pos += 4
        size -= 4
    for i in range(size):
        value = (value << 8) | i64(buf[pos + i])
    return value


def read_le(buf: bytes, pos: i64, size: i64) -> i64:
    """Read one to seven bytes, little-endian, unsigned."""
    value: i64 = 0
    for i in range(size):
        value |= i64(buf[pos + i]) << (8 * i)
    return value


def packed_size(buf: bytes, pos: i64) -> i64:
    """Return how many bytes the length-encoded integer at `pos` has: 1, 3, 4 or 9."""
    first = i64(buf[pos])
    if first < 251:
        return 1
    if first == 252:
        return 3
    if first == 253:
        return 4
    if first == 254:
        return 9
    raise ValueError(f"byte {first} does not begin a length-encoded integer")


def read_packed(buf: bytes, pos: i64) -> i64:
    """Read a length-encoded integer; ValueError beyond 63 bits."""
    size = packed_size(buf, pos)
    if size == 1:
        return i64(buf[pos])
    if size == 3:
        return read_u16(buf, pos + 1)
    if size == 4:
        return read_u24(buf, pos + 1)
    value = read_i64_le(buf, pos + 1)
    if value < 0:
        raise ValueError("a length-encoded integer is beyond 63 bits")
    return value


def take(buf: bytes, pos: i64, size: i64) -> bytes:
    """Copy `size` bytes; IndexError where they are not all there, unlike a slice."""
    if size < 0 or pos < 0 or size > len(buf) - pos:
        raise IndexError(f"{size} bytes at {pos} pass the end of a buffer of {len(buf)}")
    return buf[pos : pos + size]


def write_long(out: BytesWriter, value: i64) -> None:
    """Write an Avro int or long: zigzag, then seven bits per byte."""
    rest: i64 = (value << 1) ^ (value >> 63)
    while rest < 0 or rest > 127:
        out.append(u8((rest & 0x7F) | 0x80))
        rest = (rest >> 7) & 0x01FFFFFFFFFFFFFF
    out.append(u8(rest & 0x7F))


def read_long(buf: bytes, pos: i64) -> i64:
    """Read an Avro int or long."""
    value: i64 = 0
    shift: i64 = 0
    for i in range(long_size(buf, pos)):
        value |= (i64(buf[pos + i]) & 0x7F) << shift
        shift += 7
    return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1)


def long_size(buf: bytes, pos: i64) -> i64:
    """Return how many bytes the Avro int or long at `pos` has: 1 to 10."""
    size: i64 = 1
    while i64(buf[pos + size - 1]) & 0x80:
        size += 1
        if size > _LONG_BYTES_MAX:
            raise ValueError("an Avro number does not end")
    return size


def is_at(buf: bytes, pos: i64, size: i64, wanted: bytes) -> bool:
    """Tell whether buf[pos:pos + size] is `wanted`, without making a slice."""
    if size != len(wanted) or pos < 0 or pos + size > len(buf):
        return False
    at: i64 = 0
    while at + 8 <= size:
        if read_i64_le(buf, pos + at) != read_i64_le(wanted, at):
            return False
        at += 8
    while at < size:
        if i64(buf[pos + at]) != i64(wanted[at]):
            return False
        at += 1
    return True


def write_numbered(out: BytesWriter, prefix: bytes, number: i64, suffix: bytes) -> None:
    """Write an Avro string: `prefix`, `number` in decimal (nothing below 0), `suffix`."""
    digits: i64 = 0
    rest = number
    while rest > 0:
        rest = rest // 10
        digits += 1
    if number == 0:
        digits = 1
    write_long(out, len(prefix) + digits + len(suffix))
    out.write(prefix)
    begin: i64 = len(out)
    at: i64 = begin
    while at < begin + digits:
        out.append(u8(0))
        at += 1
    while at > begin:
        rest = number // 10
        at -= 1
        out[at] = u8(48 + number - rest * 10)
        number = rest
    out.write(suffix)


def write_string(out: BytesWriter, value: bytes) -> None:
    """Write Avro bytes, or an Avro string given as UTF-8."""
    write_long(out, len(value))
    out.write(value)


def copy(out: BytesWriter, buf: bytes, pos: i64, size: i64) -> None:
    """Write `size` bytes of `buf`, short pieces without making a slice."""
    if size > _COPY_BY_WORDS_MAX:
        out.write(take(buf, pos, size))
        return
    end = pos + size
    while pos + 8 <= end:
        write_i64_le(out, read_i64_le(buf, pos))
        pos += 8
    while pos < end:
        out.append(u8(i64(buf[pos])))
        pos += 1


def copy_text(out: BytesWriter, buf: bytes, pos: i64, size: i64) -> bool:
    """Write `size` bytes of `buf` and tell whether all are ASCII."""
    if size > _COPY_BY_WORDS_MAX:
        raw = take(buf, pos, size)
        out.write(raw)
        return raw.isascii()
    # From two halves: mypyc makes a constant of more than 62 bits an object.
    high_bits: i64 = 0x80808080
    high_bits |= high_bits << 32
    seen: i64 = 0
    end = pos + size
    while pos + 8 <= end:
        word = read_i64_le(buf, pos)
        seen |= word
        write_i64_le(out, word)
        pos += 8
    while pos < end:
        byte = i64(buf[pos])
        seen |= byte
        out.append(u8(byte))
        pos += 1
    return seen & high_bits == 0


def encode_string(text: str) -> bytes:
    """Return `text` as an Avro string."""
    out = BytesWriter()
    write_string(out, text.encode("utf-8"))
    return out.getvalue()


def encode_packed(value: int) -> bytes:
    """Return a length-encoded integer below 2**24."""
    if value < 251:
        return bytes([value])
    if value < 1 << 16:
        return b"\xfc" + value.to_bytes(2, "little")
    return b"\xfd" + value.to_bytes(3, "little")


# How a value is read. Numbers, because comparing enums is slow.
_VARINT: Final = 0
_NINE_BYTES: Final = 1
_DOUBLE: Final = 2
_FLOAT: Final = 3
_TEXT: Final = 4
_DECIMAL: Final = 5
_BYTES: Final = 6
_UNREAD: Final = 7
_FORMS: Final = {
    ValueKind.INT: _VARINT,
    ValueKind.LONG: _VARINT,
    ValueKind.YEAR: _VARINT,
    ValueKind.BIT: _VARINT,
    ValueKind.DATE: _VARINT,
    ValueKind.TIME: _VARINT,
    ValueKind.DATETIME: _VARINT,
    ValueKind.TIMESTAMP: _VARINT,
    ValueKind.UNSIGNED_LONG: _NINE_BYTES,
    ValueKind.BIT64: _NINE_BYTES,
    ValueKind.DOUBLE: _DOUBLE,
    ValueKind.FLOAT: _FLOAT,
    ValueKind.STRING: _TEXT,
    ValueKind.ENUM: _TEXT,
    ValueKind.JSON: _TEXT,
    ValueKind.DECIMAL: _DECIMAL,
    ValueKind.BYTES: _BYTES,
    ValueKind.SET: _UNREAD,
}


def raw_form(kind: ValueKind) -> int:
    """Return how `read_raw` reads values of a kind."""
    return _FORMS[kind]


def read_raw(record: bytes, at: i64, form: i64) -> object:
    """Read the Avro value at `at`, which is behind its union branch."""
    if form == _VARINT:
        return int(read_long(record, at))
    if form == _NINE_BYTES:
        return int.from_bytes(take(record, at, UNSIGNED_LONG_BYTES), "big")
    if form == _DOUBLE:
        return read_f64_le(record, at)
    if form == _FLOAT:
        return read_f32_le(record, at)
    if form == _UNREAD:
        return b""  # rules only ask whether it is NULL
    content = take(record, at + long_size(record, at), read_long(record, at))
    if form == _TEXT:
        return content.decode("utf-8")
    if form == _DECIMAL:
        if len(content) == 8:
            return int(read_i64_be(content, 0))
        return int.from_bytes(content, "big", signed=True)
    return content
