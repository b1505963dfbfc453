"""Writes single values of a row image as Avro values, each after its null branch."""

from librt.strings import (
    BytesWriter,
    read_f32_le,
    read_f64_le,
    read_i16_le,
    read_i32_le,
    read_i64_le,
    write_f32_le,
    write_f64_le,
    write_i64_be,
)
from mypy_extensions import i64, u8

from producers.decoder.errors import UnsupportedColumn
from producers.decoder.tables.plan import ColumnPlan
from producers.decoder.values import operations as ops
from producers.decoder.values.charset import NotText, write_text
from producers.decoder.values.hidden_values import uncompress_value, write_hidden
from producers.decoder.values.json_documents import json_text
from producers.decoder.values.temporal import (
    INVALID_DATE,
    US_PER_SECOND,
    date_days,
    date_text,
    datetime_text,
    datetime_us,
    fraction_text,
    read_datetime,
    read_decimal,
    read_fraction,
    read_time_us,
    write_big_decimal,
    write_decimal,
)
from producers.decoder.values.wire import (
    copy,
    encode_string,
    read_be,
    read_le,
    read_raw,
    read_u16,
    read_u24,
    read_u32,
    take,
    write_long,
    write_string,
)


class NotedDate:
    """A date that does not exist. `image`: 0 before, 1 after; `text`: as the server prints it."""

    def __init__(self, image: i64, column: i64, key_slot: i64, text: str) -> None:
        self.image: i64 = image
        self.column: i64 = column
        self.key_slot: i64 = key_slot
        self.text: str = text


class InvalidDates:
    """Those of the open record."""

    def __init__(self) -> None:
        self.image: i64 = 0  # of the values that are written now
        self.notes: list[NotedDate] = []

    def note(self, column: ColumnPlan, text: str) -> None:
        """Note one that was written as null."""
        self.notes.append(NotedDate(self.image, column.index, column.key_slot, text))

    def take_text(self) -> str:
        """Return the text of the only one, "" for none, and forget it."""
        if len(self.notes) == 0:
            return ""
        text = self.notes[0].text
        self.notes = []
        return text

    def encoded(self) -> bytes:
        """Return the blocks of the envelope's field, without the zero that ends them."""
        out = BytesWriter()
        write_long(out, len(self.notes))
        for note in self.notes:
            write_long(out, note.image)
            write_long(out, note.column)
            out.write(encode_string(note.text))
        return out.getvalue()


def write_value(
    dates: InvalidDates, out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64
) -> i64:
    """Write one value that is not NULL, and note it where it is an invalid date; return its end."""
    op = column.op
    if op > ops.LENGTH_LAST:
        if ops.DATE <= op <= ops.TIMESTAMP:
            return _write_temporal(dates, out, column, buf, pos)
        return _write_other(out, column, buf, pos)
    out.append(u8(2))
    if op >= ops.LENGTH_FIRST:
        return _write_varchar(out, column, buf, pos)
    if op == ops.U64:
        out.append(u8(0))
        write_i64_be(out, read_i64_le(buf, pos))
    else:
        write_long(out, read_integer(op, buf, pos))
    return pos + column.size


def read_integer(op: i64, buf: bytes, pos: i64) -> i64:
    """Read an integer; one of eight bytes is signed."""
    if op == ops.I32:
        return i64(read_i32_le(buf, pos))
    if op == ops.I64:
        return read_i64_le(buf, pos)
    if op == ops.I8:
        return ((i64(buf[pos]) & 0xFF) ^ 0x80) - 0x80
    if op == ops.U8:
        return i64(buf[pos])
    if op == ops.I16:
        return i64(read_i16_le(buf, pos))
    if op == ops.U16:
        return read_u16(buf, pos)
    if op == ops.I24:
        return (read_u24(buf, pos) ^ 0x800000) - 0x800000
    if op == ops.U24:
        return read_u24(buf, pos)
    if op == ops.U32:
        return read_u32(buf, pos)
    raise ValueError(f"operation {op} reads no integer")


def read_length(buf: bytes, pos: i64, size: i64) -> i64:
    """Read a length of one to four bytes."""
    if size == 1:
        return i64(buf[pos])
    if size == 2:
        return read_u16(buf, pos)
    return read_le(buf, pos, size)


def _write_varchar(out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64) -> i64:
    """Write text or bytes, which follow their length."""
    size = read_length(buf, pos, column.size)
    pos += column.size
    if pos + size > len(buf):
        raise IndexError(f"a value of {size} bytes runs past the end of its event")
    if column.op == ops.FIXED_BINARY:
        if size > column.length:
            raise ValueError(f"{size} bytes in a BINARY({column.length})")
        write_long(out, column.length)
        copy(out, buf, pos, size)
        missing: i64 = column.length - size
        while missing > 0:
            out.append(u8(0))
            missing -= 1
    else:
        try:
            write_text(out, buf, pos, size, column.charset_kind, charset=column.charset)
        except NotText as error:
            raise _not_text(column, error) from error
    return pos + size


def _not_text(column: ColumnPlan, error: NotText) -> UnsupportedColumn:
    return UnsupportedColumn(
        f"column {column.place!r}: a value is not text: {error}. Fix the value, or list the "
        f"column in the setting text_as_bytes"
    )


def _write_temporal(
    dates: InvalidDates, out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64
) -> i64:
    """Write a DATE, TIME, DATETIME or TIMESTAMP; an invalid date is null, and noted."""
    op = column.op
    digits = column.second_digits
    text = ""
    value: i64 = 0
    if op == ops.DATE:
        packed = read_u24(buf, pos)
        value = date_days(packed)
        if value == INVALID_DATE:
            text = date_text(packed)
    elif op == ops.TIME:
        value = read_time_us(buf, pos, digits)
    elif op == ops.DATETIME:
        packed = read_datetime(buf, pos)
        fraction = read_fraction(buf, pos + 5, digits)
        value = datetime_us(packed, fraction)
        if value == INVALID_DATE:
            text = datetime_text(packed, fraction, digits)
    else:
        value = read_be(buf, pos, 4) * US_PER_SECOND + read_fraction(buf, pos + 4, digits)
        if value == 0:
            text = "0000-00-00 00:00:00" + fraction_text(0, digits)
    if text:
        out.append(u8(0))
        dates.note(column, text)
    else:
        out.append(u8(2))
        write_long(out, value)
    return pos + column.size


def _write_other(out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64) -> i64:
    """Write a value that is neither an integer nor text nor a time."""
    op = column.op
    out.append(u8(2))
    if op == ops.DECIMAL:
        write_decimal(out, buf, pos, column.whole_digits, column.fraction_digits)
    elif op == ops.BIG_DECIMAL:
        write_big_decimal(out, buf, pos, column.whole_digits, column.fraction_digits)
    elif op == ops.DOUBLE:
        write_f64_le(out, read_f64_le(buf, pos))
    elif op == ops.FLOAT:
        write_f32_le(out, read_f32_le(buf, pos))
    elif op == ops.ENUM:
        index = read_le(buf, pos, column.size)
        if index >= len(column.labels):
            raise ValueError(f"ENUM value {index} of {len(column.labels) - 1} labels")
        out.write(column.labels[index])
    elif op == ops.YEAR:
        year = i64(buf[pos])
        write_long(out, 1900 + year if year else 0)
    elif op == ops.BIT:
        write_long(out, _read_bits(buf, pos, column.size))
    elif op == ops.BIT64:
        out.append(u8(0))
        out.write(take(buf, pos, 8))
    elif op == ops.SET:
        _write_set(out, column, buf, pos)
    elif op == ops.JSON:
        size = read_le(buf, pos, column.size)
        pos += column.size
        write_string(out, json_text(take(buf, pos, size)).encode("utf-8"))
        return pos + size
    elif op == ops.COMPRESSED:
        return _write_compressed(out, column, buf, pos)
    elif op >= ops.UUID:
        size = i64(buf[pos])
        write_hidden(out, op, column.length, take(buf, pos + 1, size))
        return pos + 1 + size
    else:
        raise ValueError(f"no way to write operation {op}")
    return pos + column.size


def _write_compressed(out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64) -> i64:
    """Write the text or bytes of a COMPRESSED column of MariaDB."""
    size = read_le(buf, pos, column.size)
    pos += column.size
    plain = uncompress_value(take(buf, pos, size))
    try:
        write_text(out, plain, 0, len(plain), column.charset_kind, charset=column.charset)
    except NotText as error:
        raise _not_text(column, error) from error
    return pos + size


def _read_bits(buf: bytes, pos: i64, size: i64) -> i64:
    """Read BIT(1) to BIT(63): up to eight bytes, big-endian."""
    if size < 8:
        return read_be(buf, pos, size)
    value = (i64(buf[pos]) << 56) | read_be(buf, pos + 1, 7)
    if value < 0:
        raise ValueError("a BIT(57) to BIT(63) has its 64th bit set")
    return value


def _write_set(out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64) -> None:
    """Write the labels of a SET as an Avro array, in declaration order."""
    members: list[bytes] = []
    for byte in range(column.size):
        bits = i64(buf[pos + byte])
        for bit in range(8):
            if (bits >> bit) & 1:
                index: i64 = byte * 8 + bit
                if index >= len(column.labels):
                    raise ValueError(f"SET bit {index} of {len(column.labels)} labels")
                members.append(column.labels[index])
    if members:
        write_long(out, len(members))
        for label in members:
            out.write(label)
    out.append(u8(0))


class RowValueReader:
    """Reads values that are not NULL; `at`: where the value is in the event."""

    def __init__(self) -> None:
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
