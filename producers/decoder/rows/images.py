"""Row images: the values of one row before or after its change, with its null bits in front."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, u8

from producers.decoder.errors import UnsupportedEvent
from producers.decoder.rows.record_writer import RecordWriter
from producers.decoder.rows.value_writer import read_length, write_value
from producers.decoder.tables.plan import ColumnPlan, TablePlan
from producers.decoder.tables.rows_plans import image_columns
from producers.decoder.values import operations as ops
from producers.decoder.values.json_documents import apply_diffs
from producers.decoder.values.wire import packed_size, read_packed, read_u16, read_u32, take

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
    if op >= ops.JSON or ops.LENGTH_FIRST <= op <= ops.LENGTH_LAST:
        return column.size + read_length(buf, pos, column.size)
    return column.size


_PARTIAL_JSON: Final = 1
_DOCUMENT_LENGTH_BYTES: Final = 4


def complete_rows(body: bytes, table: TablePlan) -> bytes:
    """Return the body of the plain update event.

    UnsupportedEvent where an image before lacks a document that is changed.
    """
    pos = 8 + read_u16(body, 8)
    count = read_packed(body, pos)
    pos += packed_size(body, pos)
    size = (count + 7) // 8
    before_columns = image_columns(table, take(body, pos, size))
    after_columns = image_columns(table, take(body, pos + size, size))
    pos += 2 * size
    pieces = [body[:pos]]
    while pos < len(body):
        begin = pos
        pos, documents = _skip_image(body, pos, before_columns)
        pieces.append(body[begin:pos])
        options = read_packed(body, pos)
        pos += packed_size(body, pos)
        if options & ~_PARTIAL_JSON:
            raise UnsupportedEvent(f"a partial update with the unknown options {options}")
        partial = _no_columns(table)
        if options & _PARTIAL_JSON:
            pos, partial = _partial_columns(body, pos, table)
        pos, image = _complete_image(body, pos, after_columns, partial, documents)
        pieces.append(image)
    return b"".join(pieces)


def _no_columns(table: TablePlan) -> list[bool]:
    return [False] * len(table.columns)


def _partial_columns(body: bytes, pos: int, table: TablePlan) -> tuple[int, list[bool]]:
    """Read which of the table's JSON columns hold changes instead of documents."""
    is_partial = _no_columns(table)
    json_columns = [i for i, column in enumerate(table.columns) if column.op == ops.JSON]
    size = (len(json_columns) + 7) // 8
    bits = int.from_bytes(take(body, pos, size), "little")
    for place, index in enumerate(json_columns):
        is_partial[index] = bool(bits >> place & 1)
    return pos + size, is_partial


def _skip_image(
    body: bytes, pos: int, columns: list[ColumnPlan]
) -> tuple[int, dict[int, bytes | None]]:
    """Skip an image; return where it ends and its documents by column, None for NULL."""
    documents: dict[int, bytes | None] = {}
    nulls, pos = _nulls(body, pos, columns)
    for index, column in enumerate(columns):
        if column.op == ops.ABSENT:
            continue
        if nulls[index]:
            documents[index] = None
            continue
        size = int(value_size(column, body, pos))
        if column.op == ops.JSON:
            documents[index] = take(body, pos + column.size, size - column.size)
        pos += size
    return pos, documents


def _complete_image(
    body: bytes,
    pos: int,
    columns: list[ColumnPlan],
    partial: list[bool],
    documents: dict[int, bytes | None],
) -> tuple[int, bytes]:
    """Return where an image after ends, and the same image with whole documents."""
    begin = pos
    nulls, pos = _nulls(body, pos, columns)
    pieces = [body[begin:pos]]
    for index, column in enumerate(columns):
        if column.op == ops.ABSENT or nulls[index]:
            continue
        if not partial[index]:
            size = int(value_size(column, body, pos))
            pieces.append(take(body, pos, size))
            pos += size
            continue
        document = documents.get(index)
        if document is None:
            raise UnsupportedEvent(
                f"column {column.place!r}: part of a document was changed, and the image before "
                "lacks the document: set binlog_row_image=FULL, or "
                "binlog_row_value_options='', on the source"
            )
        size = read_u32(body, pos)
        pos += _DOCUMENT_LENGTH_BYTES
        whole = apply_diffs(document, take(body, pos, size))
        pos += size
        pieces.append(len(whole).to_bytes(column.size, "little"))
        pieces.append(whole)
    return pos, b"".join(pieces)


def _nulls(body: bytes, pos: int, columns: list[ColumnPlan]) -> tuple[list[bool], int]:
    """Read an image's null bits; absent columns have none."""
    present = [column.op != ops.ABSENT for column in columns]
    size = (sum(present) + 7) // 8
    bits = int.from_bytes(take(body, pos, size), "little")
    nulls: list[bool] = []
    for is_there in present:
        nulls.append(bool(is_there and bits & 1))
        bits >>= is_there
    return nulls, pos + size
