"""Row images: the values of one row before or after its change, with its null bits in front."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, u8

from producers.decoder.rows.record_writer import RecordWriter
from producers.decoder.rows.value_writer import read_length, write_value
from producers.decoder.tables.plan import ColumnPlan
from producers.decoder.values import operations as ops

# Where a row image has no value of a column.
NO_VALUE: Final = -1


def write_image(
    record: RecordWriter, columns: list[ColumnPlan], present: i64, buf: bytes, pos: i64
) -> i64:
    """Write the row image that begins at `pos` with its null bits; return where it ends."""
    out = record.out
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
            pos = write_value(record.dates, out, column, buf, pos)
        else:
            begin: i64 = len(out) + 1
            pos = write_value(record.dates, out, column, buf, pos)
            record.note_value(column, begin, len(out))
        mask <<= 1
    if record.watch is not None:
        record.touch(record.watch)
    return pos


def find_values(
    columns: list[ColumnPlan], present: i64, buf: bytes, pos: i64, places: vec[i64]
) -> i64:
    """Set `places` to where each value of the row image at `pos` begins; return where it ends.

    One place per column; NO_VALUE for NULL and for a column that the image lacks.
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
    """Return the bytes of the value at `pos`, its length included."""
    op = column.op
    if op >= ops.JSON or ops.VARCHAR <= op <= ops.FIXED_BINARY:
        return column.size + read_length(buf, pos, column.size)
    return column.size
