"""Keyspace ids of rows: where the sharding column's values stand, and what its vindex makes of it.

The ids stand in the envelope, before the values that they are made of: a record is written
without them, and they are put in when it is handed over.
"""

from dataclasses import dataclass
from typing import Final, cast

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from event_token.errors import UsageError
from producers.decoder.errors import NoKeyspaceId
from producers.decoder.rows.raw_values import read_raw
from producers.decoder.tables.plan import RowsPlan, TablePlan
from producers.decoder.values.wire import write_string
from topics.keyspace.vindexes import Vindex
from topics.records.vevent import Value

_NO_IMAGE: Final = 0  # or one without the column
_IS_NULL: Final = -1


@dataclass(frozen=True)
class ShardingColumn:
    """The column that a table is sharded by, and the vindex over it."""

    column: str
    vindex: Vindex


def set_vindex(plan: TablePlan, sharding: ShardingColumn | None) -> None:
    """Mark the sharding column of a table version. NoKeyspaceId when the vindex cannot take it."""
    if sharding is None:
        return
    name = sharding.column.lower()  # column names are the same in any case
    for column, shape_column in zip(plan.columns, plan.shape_columns, strict=True):
        if column.name.lower() == name:
            try:
                sharding.vindex.check_column(shape_column)
            except UsageError as error:
                raise NoKeyspaceId(f"table {plan.database}.{plan.table}: {error}") from error
            column.is_sharding = True
            column.is_noted = True
            plan.vindex = sharding.vindex
            plan.sharding = shape_column
            plan.sharding_plan = column
            return
    raise NoKeyspaceId(
        f"table {plan.database}.{plan.table} has no column {sharding.column}, which its vindex "
        f"{sharding.vindex.name} is declared over; it has {', '.join(c.name for c in plan.columns)}"
    )


class Sharding:
    """The places of the sharding column's values in the record at hand."""

    def __init__(self) -> None:
        """Begin without a record."""
        self._table: TablePlan | None = None
        self._before_at: i64 = _NO_IMAGE
        self._after_at: i64 = _NO_IMAGE

    def begin(self, table: TablePlan, rows: RowsPlan) -> None:
        """Begin a row: until a value is noted, the column is NULL where an image has it."""
        self._table = table
        self._before_at = _IS_NULL if rows.before_has_sharding else _NO_IMAGE
        self._after_at = _IS_NULL if rows.after_has_sharding else _NO_IMAGE

    def note(self, image: i64, begin: i64) -> None:
        """Say where the value stands in an image: 0 before, 1 after."""
        if image == 0:
            self._before_at = begin
        else:
            self._after_at = begin

    def move(self, by: i64) -> None:
        """All values were moved by that many bytes."""
        if self._before_at > 0:
            self._before_at += by
        if self._after_at > 0:
            self._after_at += by

    def keyspace_ids(self, record: bytes) -> bytes:
        """Return both fields of the envelope; null where there is no image with the column."""
        out = BytesWriter()
        self._write_id(out, record, self._before_at)
        self._write_id(out, record, self._after_at)
        return out.getvalue()

    def _write_id(self, out: BytesWriter, record: bytes, at: i64) -> None:
        table = self._table
        if at == _NO_IMAGE or table is None:
            out.append(u8(0))
        else:
            value = None if at == _IS_NULL else read_raw(record, at, table.sharding_plan.form)
            write_keyspace_id(out, table, value)


def write_keyspace_id(out: BytesWriter, table: TablePlan, value: object) -> None:
    """Write the envelope's field for a raw value of the sharding column, None for NULL."""
    vindex = table.vindex
    if vindex is None:
        out.append(u8(0))
        return
    try:
        keyspace_id = vindex.keyspace_id(cast("Value", value))
    except UsageError as error:
        raise NoKeyspaceId(
            f"a row of {table.database}.{table.table}, column {table.sharding.name}: {error}"
        ) from error
    out.append(u8(2))
    write_string(out, keyspace_id)
