"""Keyspace ids of rows, computed from the sharding column's values in the record.

The ids are in the envelope, before the values that they are computed from. So a record is written
without them, and they are inserted when it is complete.
"""

from typing import Final, cast

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from event_token.errors import UsageError
from producers.decoder.errors import NoKeyspaceId
from producers.decoder.tables.plan import NO_IDS, RowsPlan, TablePlan
from producers.decoder.values.raw_values import read_raw
from producers.decoder.values.wire import write_string
from topics.records.vevent import Value

_NO_IMAGE: Final = 0  # or one without the column
_IS_NULL: Final = -1


class KeyspaceIds:
    """Where the sharding column's values are in the open record, and the ids they give."""

    def __init__(self) -> None:
        """Begin without a record."""
        self.at: i64 = NO_IDS  # where the ids go, from the envelope's header on
        self._table: TablePlan | None = None
        self._before_at: i64 = _NO_IMAGE
        self._after_at: i64 = _NO_IMAGE
        self._given: bytes = b""

    def begin(self, table: TablePlan, rows: RowsPlan) -> None:
        """Begin a row whose table has a vindex. Until a value is noted, the column is NULL."""
        self.at = rows.ids_at
        self._table = table
        self._given = b""
        self._before_at = _IS_NULL if rows.before_has_sharding else _NO_IMAGE
        self._after_at = _IS_NULL if rows.after_has_sharding else _NO_IMAGE

    def note(self, image: i64, begin: i64) -> None:
        """Note where the value of an image begins; image 0 is before, 1 after."""
        if image == 0:
            self._before_at = begin
        else:
            self._after_at = begin

    def give(self, ids: bytes) -> None:
        """Set both ids, encoded: a filter's record need not hold the sharding column."""
        self._given = ids

    def shift(self, by: i64) -> None:
        """All values of the record have moved by that many bytes."""
        if self._before_at > 0:
            self._before_at += by
        if self._after_at > 0:
            self._after_at += by

    def encoded(self, record: bytes) -> bytes:
        """Return both fields of the envelope; null where no image has the column."""
        if self._given:
            return self._given
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
