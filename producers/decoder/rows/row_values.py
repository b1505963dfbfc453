"""A row image: the server's values to Avro values, each behind its null branch."""

from typing import Final

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
from librt.vecs import vec
from mypy_extensions import i64, u8

from producers.decoder.events.mariadb_compression import uncompress_value
from producers.decoder.rows.record_sink import RecordSink
from producers.decoder.tables import plan as ops
from producers.decoder.tables.plan import ColumnPlan
from producers.decoder.values.charset import write_text
from producers.decoder.values.decimals import write_big_decimal, write_decimal
from producers.decoder.values.hidden_values import write_hidden
from producers.decoder.values.json_binary import json_text
from producers.decoder.values.temporal import (
    OFF_CALENDAR,
    US_A_SECOND,
    date_days,
    date_text,
    datetime_text,
    datetime_us,
    fraction_text,
    read_datetime,
    read_fraction,
    read_time_us,
)
from producers.decoder.values.wire import (
    copy,
    read_be,
    read_le,
    read_u16,
    read_u24,
    read_u32,
    take,
    write_long,
    write_string,
)

# Where a row image has no value of a column.
NO_VALUE: Final = -1


def write_image(
    sink: RecordSink, columns: list[ColumnPlan], present: i64, buf: bytes, pos: i64
) -> i64:
    """Write one row image that begins at `pos` with its null bits; return where it ends."""
    out = sink.out
    null_at: i64 = pos
    pos += (present + 7) >> 3
    mask: i64 = 256
    nulls: i64 = 0
    for column in columns:
        if column.op == ops.ABSENT:
            out.append(u8(0))
            continue
        if mask == 256:
            nulls = i64(buf[null_at])
            null_at += 1
            mask = 1
        if nulls & mask:
            out.append(u8(0))
        elif not column.is_noted:
            pos = write_value(sink, out, column, buf, pos)
        else:
            begin: i64 = len(out) + 1
            pos = write_value(sink, out, column, buf, pos)
            sink.note_value(column, begin, len(out))
        mask <<= 1
    if sink.watch is not None:
        sink.touch(sink.watch)
    return pos


def find_values(
    columns: list[ColumnPlan], present: i64, buf: bytes, pos: i64, places: vec[i64]
) -> i64:
    """Say where each value of the row image at `pos` begins, and return where the image ends.

    `places`: one for each column; NO_VALUE for NULL and for a column that the image lacks.
    """
    null_at: i64 = pos
    pos += (present + 7) >> 3
    mask: i64 = 256
    nulls: i64 = 0
    for index, column in enumerate(columns):
        at: i64 = NO_VALUE
        if column.op != ops.ABSENT:
            if mask == 256:
                nulls = i64(buf[null_at])
                null_at += 1
                mask = 1
            if nulls & mask == 0:
                at = pos
                pos += value_size(column, buf, pos)
            mask <<= 1
        places[index] = at
    return pos


def value_size(column: ColumnPlan, buf: bytes, pos: i64) -> i64:
    """Bytes that the value at `pos` takes, its length included."""
    op = column.op
    if op >= ops.JSON or ops.VARCHAR <= op <= ops.FIXED_BINARY:
        return column.size + _read_length(buf, pos, column.size)
    return column.size


def _read_length(buf: bytes, pos: i64, size: i64) -> i64:
    """Read the one to four bytes of a length."""
    if size == 1:
        return i64(buf[pos])
    if size == 2:
        return read_u16(buf, pos)
    return read_le(buf, pos, size)


def write_value(
    sink: RecordSink, out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64
) -> i64:
    """Write one value that is not NULL; return where it ends."""
    op = column.op
    if op >= ops.DECIMAL:
        if ops.DATE <= op <= ops.TIMESTAMP:
            return _write_temporal(sink, out, column, buf, pos)
        return _write_other(out, column, buf, pos)
    out.append(u8(2))
    if op >= ops.VARCHAR:
        return _write_varchar(out, column, buf, pos)
    if op == ops.U64:
        out.append(u8(0))
        write_i64_be(out, read_i64_le(buf, pos))
    else:
        write_long(out, read_integer(op, buf, pos))
    return pos + column.size


def read_integer(op: i64, buf: bytes, pos: i64) -> i64:
    """Read a whole number; one of eight bytes is signed."""
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
    raise ValueError(f"operation {op} reads no whole number")


def _write_varchar(out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64) -> i64:
    """Write text or bytes that stand behind their length."""
    size = _read_length(buf, pos, column.size)
    pos += column.size
    if pos + size > len(buf):
        raise IndexError(f"a value of {size} bytes passes the end of its event")
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
        write_text(out, buf, pos, size, column)
    return pos + size


def _write_temporal(
    sink: RecordSink, out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64
) -> i64:
    """Write a DATE, TIME, DATETIME or TIMESTAMP; null, and its text aside, off the calendar."""
    op = column.op
    digits = column.second_digits
    text = ""
    value: i64 = 0
    if op == ops.DATE:
        packed = read_u24(buf, pos)
        value = date_days(packed)
        if value == OFF_CALENDAR:
            text = date_text(packed)
    elif op == ops.TIME:
        value = read_time_us(buf, pos, digits)
    elif op == ops.DATETIME:
        packed = read_datetime(buf, pos)
        fraction = read_fraction(buf, pos + 5, digits)
        value = datetime_us(packed, fraction)
        if value == OFF_CALENDAR:
            text = datetime_text(packed, fraction, digits)
    else:
        value = read_be(buf, pos, 4) * US_A_SECOND + read_fraction(buf, pos + 4, digits)
        if value == 0:
            text = "0000-00-00 00:00:00" + fraction_text(0, digits)
    if text:
        out.append(u8(0))
        sink.note_off_calendar(column.index, column.key_slot, text)
    else:
        out.append(u8(2))
        write_long(out, value)
    return pos + column.size


def _write_other(out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64) -> i64:
    """Write a value of a type that is not a number, text or time."""
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
        write_hidden(out, column, buf, pos + 1, size)
        return pos + 1 + size
    else:
        raise ValueError(f"no way to write operation {op}")
    return pos + column.size


def _write_compressed(out: BytesWriter, column: ColumnPlan, buf: bytes, pos: i64) -> i64:
    """Write the text or bytes of a COMPRESSED column of MariaDB."""
    size = read_le(buf, pos, column.size)
    pos += column.size
    plain = uncompress_value(take(buf, pos, size))
    write_text(out, plain, 0, len(plain), column)
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
    """Write the labels of a SET as an Avro array, in the order of the declaration."""
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
