"""PARTIAL_UPDATE_ROWS events, turned into plain update events with whole JSON documents."""

from typing import Final

from producers.decoder.errors import UnsupportedEvent
from producers.decoder.rows.images import value_size
from producers.decoder.tables.plan import ColumnPlan, TablePlan
from producers.decoder.tables.rows_plans import image_columns
from producers.decoder.values import operations as ops
from producers.decoder.values.json_diff import apply_diffs
from producers.decoder.values.wire import packed_size, read_packed, read_u16, read_u32, take

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
                "lacks the document: SET GLOBAL binlog_row_image=FULL, or "
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
