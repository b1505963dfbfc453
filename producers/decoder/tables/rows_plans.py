"""Plans of row events: made from an event's column bitmaps, and cached in the table's plan."""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from producers.decoder.errors import CorruptBinlog, HiddenType, UnsupportedEvent
from producers.decoder.tables.plan import (
    ABSENT_COLUMN,
    NO_IDS,
    NO_KEY,
    ColumnPlan,
    KeyWatch,
    RowsPlan,
    TablePlan,
)
from producers.decoder.values.operations import ABSENT, BLOB, COMPRESSED
from producers.decoder.values.wire import is_at, packed_size, read_packed, take, write_string
from topics.records.envelope_table import OPS

INSERT: Final = OPS.index("INSERT")
UPDATE: Final = OPS.index("UPDATE")
DELETE: Final = OPS.index("DELETE")
READ: Final = OPS.index("READ")
# Kept per table. One that meets more computes some of them again.
ROWS_PLANS_MAX: Final = 20_000


def rows_plan_at(plan: TablePlan, op: i64, buf: bytes, pos: i64, end: i64) -> RowsPlan:
    """Return the plan of a row event whose column count and column bitmaps are at `pos`."""
    last = plan.last_rows_plan
    if last is None or plan.last_op != op or not is_at(buf, pos, end - pos, plan.last_bitmaps):
        return rows_plan(plan, op, take(buf, pos, end - pos))
    return last


def rows_plan(plan: TablePlan, op: i64, bitmaps: bytes) -> RowsPlan:
    """Return the plan of a row event. `bitmaps`: its column count and its column bitmaps."""
    key = (int(op), bitmaps)
    found = plan.rows_plans.get(key)
    if found is None:
        found = _make_rows_plan(plan, op, bitmaps)
        if len(plan.rows_plans) >= ROWS_PLANS_MAX:
            plan.rows_plans.clear()
        plan.rows_plans[key] = found
    plan.last_op = op
    plan.last_bitmaps = bitmaps
    plan.last_rows_plan = found
    return found


def _make_rows_plan(plan: TablePlan, op: i64, bitmaps: bytes) -> RowsPlan:
    count = read_packed(bitmaps, 0)
    if count != plan.count:
        raise CorruptBinlog(
            f"a row event of {count} columns for table {plan.database}.{plan.table}, "
            f"which has {plan.count}"
        )
    pos = packed_size(bitmaps, 0)
    size = (count + 7) // 8
    first = _without_padding(take(bitmaps, pos, size), count)
    second = _without_padding(take(bitmaps, pos + size, size), count) if op == UPDATE else b""
    before = first if op in (UPDATE, DELETE) else b""
    after = first if op in (INSERT, READ) else second
    if before and plan.may_generate:
        _refuse_generated(plan, before)
    if not any(before) and not any(after):
        raise UnsupportedEvent(
            f"a row of {plan.database}.{plan.table} without any column, as an INSERT of defaults "
            "alone is logged under binlog_row_image=MINIMAL; the binlog does not say how many rows "
            "there were: set binlog_row_image=FULL on the source"
        )
    header = rows_header(plan, op, before, after, plan.vindex is not None)
    rows = RowsPlan(
        header.header,
        image_columns(plan, before) if before else None,
        image_columns(plan, after) if after else None,
    )
    rows.ids_at = header.ids_at
    rows.op = op
    return rows


def _refuse_generated(plan: TablePlan, before: bytes) -> None:
    """Raise HiddenType where an image shows that a column was generated when it was logged.

    A MINIMAL image before a change has the key alone, a NOBLOB one may lack what is stored as BLOB,
    and others lack nothing else than generated columns.
    """
    lacking: list[str] = []
    has_more = False
    for i, column in enumerate(image_columns(plan, before)):
        own = plan.columns[i]
        if i in plan.hidden:
            continue
        if column.op != ABSENT:
            # The server has the end of a row version in the key, and readers do not.
            has_more = has_more or (own.key_slot == NO_KEY and i != plan.row_end)
        elif own.op not in (BLOB, COMPRESSED):
            lacking.append(own.name)
    if lacking and has_more:
        raise HiddenType(
            f"row images of table {plan.database}.{plan.table} lack {', '.join(lacking)}, as "
            f"MariaDB leaves out generated columns, and the server's catalog had no generated "
            f"columns of these names when it was asked. If the table has them now, it was altered "
            f"without a record in the binlog: start the producer again. Otherwise it was altered "
            f"or dropped since, and values of these rows are not in the binlog: exclude the table "
            f"by a filter rule until the log is past that change, and copy it then"
        )


def _without_padding(bitmap: bytes, count: int) -> bytes:
    """Clear the bits after the last column, which servers leave undefined."""
    bits = int.from_bytes(bitmap, "little") & ((1 << count) - 1)
    return bits.to_bytes(len(bitmap), "little")


def image_columns(plan: TablePlan, bitmap: bytes) -> list[ColumnPlan]:
    """Return the table's columns, ABSENT_COLUMN for those that the image lacks."""
    return [
        column if bitmap[i >> 3] >> (i & 7) & 1 else ABSENT_COLUMN
        for i, column in enumerate(plan.columns)
    ]


def rows_header(table: TablePlan, op: i64, before: bytes, after: bytes, has_ids: bool) -> RowsPlan:
    """Make the part of the envelope with table, op and columns; `before`, `after`: bitmaps."""
    out = BytesWriter()
    out.write(table.key_prefix)
    out.append(u8(op * 2))
    ids_at: i64 = NO_IDS
    if has_ids:
        ids_at = len(out)
    else:
        out.append(u8(0))  # no keyspace id before
        out.append(u8(0))  # none after
    write_string(out, before)
    write_string(out, after)
    rows = RowsPlan(out.getvalue(), None, None)
    rows.ids_at = ids_at
    return rows


def observe_rows(watch: KeyWatch, table: TablePlan, rows: RowsPlan, seq: i64) -> None:
    """Tell a watch which table version a row has, and whether its images are complete."""
    watch.seen_seq = seq
    if watch.body != table.body:
        watch.observe_version(table.body, table.shape())
    if (rows.has_before and _is_partial(table, rows.before, rows.before_present)) or (
        rows.has_after and _is_partial(table, rows.after, rows.after_present)
    ):
        watch.partial_seq = seq


def _is_partial(table: TablePlan, columns: list[ColumnPlan], present: i64) -> bool:
    """Tell whether an image lacks a column that readers see."""
    if present == table.count:
        return False
    return any(c.op == ABSENT and i not in table.hidden for i, c in enumerate(columns))
