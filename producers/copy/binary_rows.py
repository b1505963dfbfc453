"""Converts rows of a prepared statement's result to binlog row images.

So the decoder writes copied rows by the same code as logged ones, and their bytes are equal. Text
is in its column's character set, ENUM and SET are unsigned numbers, times are in UTC.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from producers.decoder.tables.plan import ColumnPlan
from producers.decoder.values import operations as ops
from producers.decoder.values.temporal import days_from_civil
from producers.decoder.values.wire import (
    copy,
    packed_size,
    read_packed,
    read_u16,
    read_u24,
    read_u32,
    take,
)

_DATETIME_OFFSET: Final = 0x80_0000_0000
_TIME_OFFSET: Final = 0x80_0000
_GROUP_DIGITS: Final = 9
_SECONDS_A_DAY: Final = 86_400
# A packet of this length is continued by the next one.
_PACKET_FULL: Final = 0xFFFFFF


def write_row_image(out: BytesWriter, columns: list[ColumnPlan], buf: bytes, pos: i64) -> i64:
    """Write the image of the row packet that begins at `pos` with its 0; return where it ends."""
    count: i64 = len(columns)
    null_at: i64 = pos + 1
    pos = null_at + ((count + 9) >> 3)
    # The packet's map of NULLs begins at its third bit, the image's at its first.
    for i in range((count + 7) >> 3):
        low: i64 = i64(buf[null_at + i]) >> 2
        high: i64 = 0
        if i + 1 < (count + 9) >> 3:
            high = (i64(buf[null_at + i + 1]) & 3) << 6
        out.append(u8((low | high) & 0xFF))
    bit: i64 = 2
    for column in columns:
        is_null = (i64(buf[null_at + (bit >> 3)]) >> (bit & 7)) & 1
        bit += 1
        if not is_null:
            pos = _write_value(out, column, buf, pos)
    return pos


def value_ends(columns: list[ColumnPlan], buf: bytes, pos: i64) -> list[int]:
    """Where each value of a row packet begins, and finally where the packet ends."""
    count: i64 = len(columns)
    null_at: i64 = pos + 1
    pos = null_at + ((count + 9) >> 3)
    places: list[int] = [pos]
    bit: i64 = 2
    scratch = BytesWriter()
    for column in columns:
        if not (i64(buf[null_at + (bit >> 3)]) >> (bit & 7)) & 1:
            pos = _write_value(scratch, column, buf, pos)
        bit += 1
        places.append(pos)
    return places


def _write_value(out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64) -> i64:
    op = column.op
    if op <= ops.U64:
        copy(out, buf, pos, column.size)
        # MEDIUMINT comes in four bytes.
        return pos + (4 if column.size == 3 else column.size)
    if op <= ops.LENGTH_LAST or op >= ops.UUID:  # UUID and later: cast to BINARY
        size = read_packed(buf, pos)
        pos += packed_size(buf, pos)
        if pos + size > len(buf):
            raise IndexError(f"a value of {size} bytes exceeds its packet")
        _write_le(out, size, column.size)
        copy(out, buf, pos, size)
        return pos + size
    if ops.DATE <= op <= ops.TIMESTAMP:
        return _write_temporal(out, column, buf, pos)
    if op in (ops.FLOAT, ops.DOUBLE):
        copy(out, buf, pos, column.size)
        return pos + column.size
    if op in (ops.DECIMAL, ops.BIG_DECIMAL):
        size = read_packed(buf, pos)
        pos += packed_size(buf, pos)
        _write_decimal(out, column, take(buf, pos, size))
        return pos + size
    if op in (ops.ENUM, ops.SET):
        copy(out, buf, pos, column.size)
        return pos + 8
    if op == ops.YEAR:
        year = read_u16(buf, pos)
        out.append(u8((year - 1900) & 0xFF if year else 0))
        return pos + 2
    if op in (ops.BIT, ops.BIT64):
        size = read_packed(buf, pos)
        pos += packed_size(buf, pos)
        for _ in range(column.size - size):
            out.append(u8(0))
        out.write(take(buf, pos, size))
        return pos + size
    raise ValueError(f"operation {op} cannot be copied")


def _write_le(out: BytesWriter, value: i64, size: i64) -> None:
    if size < 8 and value >> (8 * size):
        raise ValueError(f"{value} does not fit {size} bytes")
    for i in range(size):
        out.append(u8((value >> (8 * i)) & 0xFF))


def _write_be(out: BytesWriter, value: i64, size: i64) -> None:
    for i in range(size):
        out.append(u8((value >> (8 * (size - 1 - i))) & 0xFF))


def _write_temporal(out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64) -> i64:
    """Write a DATE, TIME, DATETIME or TIMESTAMP; short packet forms omit zeros."""
    op = column.op
    size: i64 = i64(buf[pos])
    pos += 1
    if pos + size > len(buf):
        raise IndexError("a time exceeds its packet")
    if op == ops.TIME:
        _write_time(out, column, buf, pos, size)
        return pos + size
    year: i64 = read_u16(buf, pos) if size >= 4 else 0
    month: i64 = i64(buf[pos + 2]) if size >= 4 else 0
    day: i64 = i64(buf[pos + 3]) if size >= 4 else 0
    if op == ops.DATE:
        _write_le(out, (year << 9) | (month << 5) | day, 3)
        return pos + size
    hour: i64 = i64(buf[pos + 4]) if size >= 7 else 0
    minute: i64 = i64(buf[pos + 5]) if size >= 7 else 0
    second: i64 = i64(buf[pos + 6]) if size >= 7 else 0
    micros: i64 = read_u32(buf, pos + 7) if size >= 11 else 0
    if op == ops.DATETIME:
        packed: i64 = (((year * 13 + month) << 5 | day) << 17) | (hour << 12)
        _write_be(out, (packed | (minute << 6) | second) + _DATETIME_OFFSET, 5)
    elif year == 0:
        _write_be(out, 0, 4)
    else:
        days = days_from_civil(year, month, day)
        _write_be(out, days * _SECONDS_A_DAY + hour * 3600 + minute * 60 + second, 4)
    _write_fraction(out, micros, column.second_digits)
    return pos + size


def _write_fraction(out: BytesWriter, micros: i64, digits: i64) -> None:
    if digits == 0:
        return
    if digits <= 2:
        _write_be(out, micros // 10_000, 1)
    elif digits <= 4:
        _write_be(out, micros // 100, 2)
    else:
        _write_be(out, micros, 3)


def _write_time(out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64, size: i64) -> None:
    clock: i64 = 0
    micros: i64 = 0
    if size >= 8:
        hours: i64 = read_u32(buf, pos + 1) * 24 + i64(buf[pos + 5])
        clock = (hours << 12) | (i64(buf[pos + 6]) << 6) | i64(buf[pos + 7])
    if size >= 12:
        micros = read_u32(buf, pos + 8)
    digits = column.second_digits
    width: i64 = 0
    fraction: i64 = 0
    if digits > 4:
        width, fraction = 3, micros
    elif digits > 2:
        width, fraction = 2, micros // 100
    elif digits > 0:
        width, fraction = 1, micros // 10_000
    bits: i64 = 8 * width
    # The offset is added before the shift: mypyc gives a shifted constant 32 bits only.
    if size >= 8 and buf[pos]:
        value: i64 = ((_TIME_OFFSET - clock) << bits) - fraction
    else:
        value = ((_TIME_OFFSET + clock) << bits) + fraction
    _write_be(out, value, 3 + width)


def _digits(text: bytes, begin: i64, end: i64) -> i64:
    value: i64 = 0
    for i in range(begin, end):
        digit: i64 = i64(text[i]) - 48
        if digit < 0 or digit > 9:
            raise ValueError("a DECIMAL contains a character that is not a digit")
        value = value * 10 + digit
    return value


def _write_decimal(out: BytesWriter, column: ColumnPlan, text: bytes) -> None:
    """Write a DECIMAL from its text as the server packs it: nine digits in four bytes."""
    negative = text[:1] == b"-"
    whole, _, fraction = text[1 if negative else 0 :].partition(b".")
    whole = whole.lstrip(b"0").rjust(column.whole_digits, b"0")
    if len(whole) != column.whole_digits or len(fraction) != column.fraction_digits:
        raise ValueError(
            f"a DECIMAL({column.whole_digits + column.fraction_digits},{column.fraction_digits}) "
            f"has {len(whole)} digits before and {len(fraction)} after the point"
        )
    raw = BytesWriter()
    head: i64 = len(whole) % _GROUP_DIGITS
    if head:
        _write_be(raw, _digits(whole, 0, head), (head + 1) >> 1)
    for at in range(head, len(whole), _GROUP_DIGITS):
        _write_be(raw, _digits(whole, at, at + _GROUP_DIGITS), 4)
    full: i64 = len(fraction) - len(fraction) % _GROUP_DIGITS
    for at in range(0, full, _GROUP_DIGITS):
        _write_be(raw, _digits(fraction, at, at + _GROUP_DIGITS), 4)
    tail: i64 = len(fraction) - full
    if tail:
        _write_be(raw, _digits(fraction, full, len(fraction)), (tail + 1) >> 1)
    packed = raw.getvalue()
    for i in range(len(packed)):
        byte: i64 = i64(packed[i])
        if negative:
            byte ^= 0xFF
        if i == 0:
            byte ^= 0x80
        out.append(u8(byte & 0xFF))


class RowPackets:
    """Takes the packets of a result's rows and gathers row images until a piece is full."""

    def __init__(self, columns: list[ColumnPlan]) -> None:
        self._columns: list[ColumnPlan] = columns
        self._out: BytesWriter = BytesWriter()
        self._parts: list[bytes] = []  # of a row that is longer than a packet
        self.rows: i64 = 0  # in this piece
        self.bytes_read: i64 = 0  # of all pieces
        self.last_row: bytes = b""
        self.end: bytes = b""  # the packet behind the last row

    def take(self, buffer: bytes, pos: i64, rows_max: i64, bytes_max: i64) -> int:
        """Take whole packets from `pos` on until the piece is full; return where the next begins.

        The piece is full if `is_full`, and the result complete if `end` is set.
        """
        size: i64 = len(buffer)
        last_begin: i64 = -1
        last_end: i64 = 0
        while pos + 4 <= size and self.rows < rows_max and len(self._out) < bytes_max:
            length = read_u24(buffer, pos)
            begin: i64 = pos + 4
            stop: i64 = begin + length
            if stop > size:
                break
            pos = stop
            if length == _PACKET_FULL or self._parts:
                self._parts.append(buffer[begin:stop])
                if length < _PACKET_FULL:
                    self.last_row = b"".join(self._parts)
                    last_begin = -1
                    self._parts = []
                    self._row(self.last_row, 0, len(self.last_row))
            elif length == 0 or i64(buffer[begin]) != 0:
                self.end = buffer[begin:stop]
                break
            else:
                last_begin = begin
                last_end = stop
                self._row(buffer, begin, stop)
        if last_begin >= 0:
            self.last_row = buffer[last_begin:last_end]
        return pos

    def _row(self, buf: bytes, begin: i64, stop: i64) -> None:
        end = write_row_image(self._out, self._columns, buf, begin)
        if end != stop:
            raise ValueError(f"a row of {stop - begin} bytes was parsed as {end - begin} bytes")
        self.rows += 1
        self.bytes_read += stop - begin

    def is_full(self, rows_max: i64, bytes_max: i64) -> bool:
        """Whether the piece has to be taken now."""
        return self.rows >= rows_max or len(self._out) >= bytes_max

    def take_piece(self) -> bytes:
        """Return the images, and begin the next piece."""
        images = self._out.getvalue()
        self._out = BytesWriter()
        self.rows = 0
        return images
