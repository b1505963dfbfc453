"""Rows of a table with a filter rule: which of them are wanted, and what of each is written.

It is first found where the values of a row lie in the event; the WHERE is asked of those that it
needs; then the wanted columns are written from there. What is not wanted is never decoded.
"""

from collections.abc import Callable
from typing import Final, Protocol

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64, u8

from event_token.errors import UsageError
from producers.decoder.errors import CorruptBinlog, NoKeyspaceId, UnsupportedEvent
from producers.decoder.rows.raw_values import read_raw
from producers.decoder.rows.record_sink import RecordSink
from producers.decoder.rows.row_values import NO_VALUE, find_values, read_integer, write_value
from producers.decoder.tables import plan as ops
from producers.decoder.tables.key_watch import KeyWatch
from producers.decoder.tables.plan import ColumnPlan, RowsPlan, TablePlan, rows_header, see_rows
from producers.decoder.tables.sharding import write_keyspace_id
from producers.decoder.values.decimals import read_decimal
from producers.decoder.values.wire import encode_string, write_string
from topics.records.table_shape import OPS

_INSERT: Final = OPS.index("INSERT")
_DELETE: Final = OPS.index("DELETE")


class MaskedColumn:
    """A column that is written. `mask`: what replaces a raw value that is not NULL."""

    def __init__(
        self,
        source: ColumnPlan,
        column: ColumnPlan,
        mask: Callable[[object], str | bytes | None] | None,
    ) -> None:
        """`source`: the column of the table; `column`: the same in the record, and in the key."""
        self.source: ColumnPlan = source
        self.column: ColumnPlan = column
        self.mask: Callable[[object], str | bytes | None] | None = mask


class RangeTest:
    """A test of a whole number, as a WHERE joins them by AND: not NULL, and within bounds."""

    def __init__(self, column: ColumnPlan, low: i64, high: i64) -> None:
        """`low` and `high` pass."""
        self.column: ColumnPlan = column
        self.low: i64 = low
        self.high: i64 = high


class FilterRules(Protocol):
    """The rules of a stream."""

    def ddl_seen(self) -> None:
        """Tables may have changed. Raises where the rules do not fit them any more."""

    def leaves_out(self, database: str, table: str) -> bool:
        """Tell whether no row of the table is wanted."""

    def row_filter(self, table: TablePlan) -> "RowFilter | None":
        """What is done with the table's rows, None for nothing; RuleError when it cannot be."""


class RowFilter:
    """What is done with the rows of one table version."""

    def __init__(
        self,
        table: TablePlan,
        written: TablePlan,
        columns: list[MaskedColumn],
        *,
        ranges: list[RangeTest],
        predicate: Callable[..., bool] | None,
        predicate_columns: list[int],
    ) -> None:
        """`written`: the table as readers see it.

        A row is wanted where it passes all `ranges` and the predicate is True, which takes the raw
        values of `predicate_columns`.
        """
        self._table: TablePlan = table
        self.written: TablePlan = written
        self._columns: list[MaskedColumn] = columns
        self._ranges: list[RangeTest] = ranges
        self._predicate: Callable[..., bool] | None = predicate
        self._judged: list[ColumnPlan] = [table.columns[index] for index in predicate_columns]
        self._aside: RecordSink = RecordSink("", "", 0, 0, _produce_nothing)
        # Where each column's value of both images lies in the event.
        self._before: vec[i64] = vec[i64]([NO_VALUE] * int(table.count))
        self._after: vec[i64] = vec[i64]([NO_VALUE] * int(table.count))

    def write(
        self,
        sink: RecordSink,
        rows: RowsPlan,
        buf: bytes,
        pos: i64,
        end: i64,
        *,
        begin_records: Callable[[], None] | None,
    ) -> None:
        """Write the wanted rows of a row event; `begin_records` is called before the first."""
        watch = self._table.watch
        while pos < end:
            pos = self._find(rows, buf, pos)
            if pos > end:
                raise CorruptBinlog("a row passes the end of its event")
            if watch is not None:
                self._note(watch, rows, buf, sink.next_seq)
            has_before = rows.has_before and self._wants(rows.before, buf, self._before)
            has_after = rows.has_after and self._wants(rows.after, buf, self._after)
            if not has_before and not has_after:
                continue
            if begin_records is not None:
                begin_records()
                begin_records = None
            self._record(sink, rows, buf, has_before, has_after)

    def write_copied(
        self, sink: RecordSink, rows: RowsPlan, images: bytes, watch: KeyWatch, since_seq: i64
    ) -> int:
        """Write the wanted ones of copied rows, as the stream would write an insert of each.

        Rows whose keys the watch has noted since `since_seq` are left out. Return how many came.
        """
        pos: i64 = 0
        end: i64 = len(images)
        added: i64 = 0
        while pos < end:
            pos = self._find(rows, images, pos)
            noted = i64(watch.touched.get(self._key(images, self._after), -1))
            if noted < since_seq and self._wants(rows.after, images, self._after):
                self._record(sink, rows, images, False, True)
                added += 1
        return added

    def _find(self, rows: RowsPlan, buf: bytes, pos: i64) -> i64:
        """Find the values of the row at `pos`; return where it ends in the event."""
        if rows.has_before:
            pos = find_values(rows.before, rows.before_present, buf, pos, self._before)
        if rows.has_after:
            pos = find_values(rows.after, rows.after_present, buf, pos, self._after)
        return pos

    def _note(self, watch: KeyWatch, rows: RowsPlan, buf: bytes, seq: i64) -> None:
        """Note a change for the copy of the table, whether or not it is written."""
        see_rows(watch, self._table, rows, seq)
        if rows.has_before:
            watch.touch(self._key(buf, self._before), seq)
        if rows.has_after:
            watch.touch(self._key(buf, self._after), seq)

    def _key(self, buf: bytes, places: vec[i64]) -> bytes:
        """The primary key of an image, before any mask; only for a watch.

        A partial image, which stops the copy, may lack a part of it.
        """
        pieces: list[bytes] = []
        for index in self._table.primary_key:
            at: i64 = places[index]
            if at != NO_VALUE:
                text = self._put_aside(self._table.columns[index], buf, at)
                pieces.append(encode_string(text) if text else self._aside.out.getvalue()[1:])
        return b"".join(pieces)

    def _put_aside(self, column: ColumnPlan, buf: bytes, at: i64) -> str:
        """Write a value aside, behind its null branch.

        Return the text of a date off the calendar, "" for all else.
        """
        aside = self._aside
        aside.out.truncate(0)
        write_value(aside, aside.out, column, buf, at)
        if len(aside.off_calendar) == 0:
            return ""
        text = aside.off_calendar[0].text
        aside.off_calendar = []
        return text

    def _wants(self, columns: list[ColumnPlan], buf: bytes, places: vec[i64]) -> bool:
        """Judge an image. UnsupportedEvent where it lacks a column of the WHERE."""
        at: i64 = NO_VALUE
        for test in self._ranges:
            at = places[test.column.index]
            if at == NO_VALUE:
                self._require(test.column, columns)
                return False
            value = _whole_number(test.column, buf, at)
            if value < test.low or value > test.high:
                return False
        predicate = self._predicate
        if predicate is None:
            return True
        values: list[object] = []
        for column in self._judged:
            at = places[column.index]
            if at == NO_VALUE:
                self._require(column, columns)
                values.append(None)
            else:
                values.append(self._raw(column, buf, at))
        try:
            return predicate(*values)
        except UsageError as error:
            raise NoKeyspaceId(
                f"a row of {self._table.database}.{self._table.table}: {error}"
            ) from error

    def _require(self, column: ColumnPlan, columns: list[ColumnPlan]) -> None:
        """A column of the WHERE has no value: it must be NULL, not left out of the image."""
        if columns[column.index].op == ops.ABSENT:
            table = self._table
            raise UnsupportedEvent(
                f"a row image of {table.database}.{table.table} lacks column {column.name}, which "
                f"the table's filter rule needs: SET GLOBAL binlog_row_image=FULL on the source"
            )

    def _raw(self, column: ColumnPlan, buf: bytes, at: i64) -> object:
        """The raw value of a column; a date off the calendar is its text."""
        if column.op < ops.U64 or column.op == ops.DECIMAL:
            return int(_whole_number(column, buf, at))
        text = self._put_aside(column, buf, at)
        return text or read_raw(self._aside.out.getvalue(), 1, column.form)

    def _record(
        self, sink: RecordSink, rows: RowsPlan, buf: bytes, has_before: bool, has_after: bool
    ) -> None:
        """Write the record of a row, with the images that are wanted."""
        out = sink.open_row(self.written, self._written_rows(rows, has_before, has_after))
        if rows.ids_at >= 0:
            ids = BytesWriter()
            self._write_id(ids, buf, self._before, has_before and rows.before_has_sharding)
            self._write_id(ids, buf, self._after, has_after and rows.after_has_sharding)
            sink.set_keyspace_ids(ids.getvalue())
        if has_before:
            sink.image = 0
            self._write_image(sink, out, buf, self._before)
        else:
            out.append(u8(0))
        if has_after:
            sink.image = 1
            self._write_image(sink, out, buf, self._after)
        else:
            out.append(u8(0))
        sink.close()

    def _write_id(self, out: BytesWriter, buf: bytes, places: vec[i64], has_image: bool) -> None:
        """Write the keyspace id of an image; null where it is not written or lacks the column."""
        if not has_image:
            out.append(u8(0))
            return
        column = self._table.sharding_plan
        at: i64 = places[column.index]
        value = None if at == NO_VALUE else self._raw(column, buf, at)
        write_keyspace_id(out, self._table, value)

    def _write_image(
        self, sink: RecordSink, out: BytesWriter, buf: bytes, places: vec[i64]
    ) -> None:
        """Write the columns of an image that are wanted, masked where they are to be."""
        out.append(u8(2))
        for wanted in self._columns:
            column = wanted.column
            begin: i64 = len(out) + 1
            at: i64 = places[wanted.source.index]
            if at == NO_VALUE:
                out.append(u8(0))
                continue
            mask = wanted.mask
            if mask is None:
                write_value(sink, out, column, buf, at)
            else:
                masked = mask(self._raw(wanted.source, buf, at))
                if masked is None:
                    out.append(u8(0))
                    continue
                out.append(u8(2))
                write_string(out, masked.encode() if isinstance(masked, str) else masked)
            if column.is_noted:
                sink.note_value(column, begin, len(out))

    def _written_rows(self, rows: RowsPlan, has_before: bool, has_after: bool) -> RowsPlan:
        """The header of the record: an update that crosses the border comes or goes."""
        key: i64 = (2 if has_before else 0) + (1 if has_after else 0)
        found = rows.filtered[key]
        if found is None:
            op: i64 = rows.op if has_after == rows.has_after else _DELETE
            if rows.has_before and not has_before:
                op = _INSERT
            before = self._bits(rows.before) if has_before else b""
            after = self._bits(rows.after) if has_after else b""
            found = rows_header(self.written, op, before, after, rows.ids_at >= 0)
            rows.filtered[key] = found
        return found

    def _bits(self, columns: list[ColumnPlan]) -> bytes:
        """The bit map of the written columns that an image holds."""
        bits = bytearray((len(self._columns) + 7) // 8)
        for i, wanted in enumerate(self._columns):
            if columns[wanted.source.index].op != ops.ABSENT:
                bits[i >> 3] |= 1 << (i & 7)
        return bytes(bits)


def _whole_number(column: ColumnPlan, buf: bytes, at: i64) -> i64:
    """Read a whole number, or a DECIMAL as its unscaled value; 64 bits at the most."""
    if column.op == ops.DECIMAL:
        return read_decimal(buf, at, column.whole_digits, column.fraction_digits)
    return read_integer(column.op, buf, at)


def _produce_nothing(*_arguments: object) -> None:
    """What is aside is never produced."""
    raise ValueError("a record that was put aside was produced")
