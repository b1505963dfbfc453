"""Rows of a table with a filter rule: which of them are wanted, and what of each is written.

A row is first written aside, whole; then it is judged; then its wanted columns are copied into the
record. Only tables with a rule pay for that.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from event_token.errors import UsageError
from producers.decoder.errors import CorruptBinlog, NoKeyspaceId, UnsupportedEvent
from producers.decoder.key_watch import KeyWatch
from producers.decoder.plan import ABSENT, ColumnPlan, RowsPlan, TablePlan, rows_header, see_rows
from producers.decoder.raw_values import read_raw
from producers.decoder.records import OffCalendar, RecordSink
from producers.decoder.row_values import write_value
from producers.decoder.sharding import Sharding
from producers.decoder.wire import copy, encode_string, write_string
from topics.table_shape import OPS

_INSERT: Final = OPS.index("INSERT")
_DELETE: Final = OPS.index("DELETE")
_NOT_THERE: Final = -1
# Kept shapes of rows: a table has one or two, with MINIMAL images one for each set of columns.
_HEADERS_MAX: Final = 1_000


class MaskedColumn:
    """A column that is written. `mask`: what replaces a raw value that is not NULL."""

    def __init__(
        self,
        source: i64,
        column: ColumnPlan,
        mask: Callable[[object], str | bytes | None] | None,
    ) -> None:
        """`source`: its place in the table; `column`: its place in the record, and in the key."""
        self.source: i64 = source
        self.column: ColumnPlan = column
        self.mask: Callable[[object], str | bytes | None] | None = mask


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
        predicate: Callable[[Sequence[object]], bool | None] | None,
        predicate_columns: list[int],
    ) -> None:
        """`written`: the table as readers see it. A row is wanted where the predicate is True."""
        self._table: TablePlan = table
        self.written: TablePlan = written
        self._columns: list[MaskedColumn] = columns
        self._by_source: dict[int, MaskedColumn] = {int(c.source): c for c in columns}
        self._predicate: Callable[[Sequence[object]], bool | None] | None = predicate
        self._predicate_columns: list[int] = predicate_columns
        self._aside: RecordSink = RecordSink("", "", 0, 0, _produce_nothing)
        self._sharding: Sharding = Sharding()
        # Where each column of both images begins in what is aside, and where the last one ends.
        self._before: list[int] = [_NOT_THERE] * (int(table.count) + 1)
        self._after: list[int] = [_NOT_THERE] * (int(table.count) + 1)
        self._headers: dict[tuple[int, bytes, bytes], RowsPlan] = {}

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
            pos = self._put_aside(rows, buf, pos)
            if pos > end:
                raise CorruptBinlog("a row passes the end of its event")
            row = self._aside.out.getvalue()
            if watch is not None:
                self._note(watch, rows, row, sink.next_seq)
            has_before = rows.has_before and self._wants(row, self._before, 0)
            has_after = rows.has_after and self._wants(row, self._after, 1)
            if not has_before and not has_after:
                continue
            if begin_records is not None:
                begin_records()
                begin_records = None
            seen: i64 = rows.op if has_after == rows.has_after else _DELETE
            if rows.has_before and not has_before:
                seen = _INSERT
            self._record(sink, rows, row, seen, has_before=has_before, has_after=has_after)

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
            pos = self._put_aside(rows, images, pos)
            row = self._aside.out.getvalue()
            noted = i64(watch.touched.get(self._key(row, self._after, 1), -1))
            if noted < since_seq and self._wants(row, self._after, 1):
                self._record(sink, rows, row, rows.op, has_before=False, has_after=True)
                added += 1
        return added

    def _put_aside(self, rows: RowsPlan, buf: bytes, pos: i64) -> i64:
        """Write a row aside, whole; return where it ends in the event."""
        aside = self._aside
        aside.out.truncate(0)
        aside.off_calendar = []
        if rows.ids_at >= 0:
            self._sharding.begin(self._table, rows)
        if rows.has_before:
            aside.image = 0
            pos = self._read(rows.before, rows.before_present, buf, pos, self._before)
        if rows.has_after:
            aside.image = 1
            pos = self._read(rows.after, rows.after_present, buf, pos, self._after)
        return pos

    def _note(self, watch: KeyWatch, rows: RowsPlan, row: bytes, seq: i64) -> None:
        """Note a change for the copy of the table, whether or not it is written."""
        see_rows(watch, self._table, rows, seq)
        if rows.has_before:
            watch.touch(self._key(row, self._before, 0), seq)
        if rows.has_after:
            watch.touch(self._key(row, self._after, 1), seq)

    def _key(self, row: bytes, places: list[int], image: i64) -> bytes:
        """The primary key of an image, before any mask; only for a watch."""
        pieces: list[bytes] = []
        for index in self._table.primary_key:
            at: i64 = places[index]
            if at < 0:
                continue  # a partial image, which stops the copy
            if row[at] != 0:
                pieces.append(row[at + 1 : self._end(places, index)])
                continue
            for note in self._aside.off_calendar:
                if note.image == image and note.column == index:
                    pieces.append(encode_string(note.text))  # noqa: PERF401 - compiled
        return b"".join(pieces)

    def _read(
        self, columns: list[ColumnPlan], present: i64, buf: bytes, pos: i64, places: list[int]
    ) -> i64:
        """Write an image aside; return where it ends in the event."""
        aside = self._aside
        out = aside.out
        null_at: i64 = pos
        pos += (present + 7) >> 3
        mask: i64 = 1
        index: i64 = 0
        for column in columns:
            if column.op == ABSENT:
                places[index] = _NOT_THERE
            else:
                begin: i64 = len(out)
                places[index] = int(begin)
                if i64(buf[null_at]) & mask:
                    out.append(u8(0))
                else:
                    pos = write_value(aside, out, column, buf, pos)
                    if column.is_sharding:
                        self._sharding.note(aside.image, begin + 1)
                mask <<= 1
                if mask == 256:
                    mask = 1
                    null_at += 1
            index += 1
        places[index] = len(out)
        return pos

    def _end(self, places: list[int], index: i64) -> i64:
        """Where a column's value ends: where the next one that is there begins."""
        index += 1
        while places[index] < 0:
            index += 1
        return places[index]

    def _wants(self, row: bytes, places: list[int], image: i64) -> bool:
        """Judge an image. UnsupportedEvent where it lacks a column of the WHERE."""
        if self._predicate is None:
            return True
        values: list[object] = []
        for index in self._predicate_columns:
            if places[index] < 0:
                table = self._table
                raise UnsupportedEvent(
                    f"a row image of {table.database}.{table.table} lacks column "
                    f"{table.columns[index].name}, which the table's filter rule needs: "
                    f"SET GLOBAL binlog_row_image=FULL on the source"
                )
            values.append(self._raw(row, places, image, index))
        try:
            return self._predicate(values) is True
        except UsageError as error:
            raise NoKeyspaceId(
                f"a row of {self._table.database}.{self._table.table}: {error}"
            ) from error

    def _raw(self, row: bytes, places: list[int], image: i64, index: i64) -> object:
        """The raw value of a column; None is NULL, a date off the calendar is its text."""
        at: i64 = places[index]
        if row[at] == 0:
            for note in self._aside.off_calendar:
                if note.image == image and note.column == index:
                    return note.text
            return None
        return read_raw(row, at + 1, self._table.shape_columns[index].kind)

    def _record(
        self,
        sink: RecordSink,
        rows: RowsPlan,
        row: bytes,
        op: i64,
        *,
        has_before: bool,
        has_after: bool,
    ) -> None:
        """Write the record of a row that is wanted."""
        header = self._header(rows, op, has_before, has_after)
        out = sink.open_row(self.written, header)
        if rows.ids_at >= 0:
            if not has_before:
                self._sharding.leave_out(0)
            if not has_after:
                self._sharding.leave_out(1)
            sink.set_keyspace_ids(self._sharding.keyspace_ids(row))
        if has_before:
            sink.image = 0
            out.append(u8(2))
            self._copy(sink, out, row, self._before, 0)
        else:
            out.append(u8(0))
        if has_after:
            sink.image = 1
            out.append(u8(2))
            self._copy(sink, out, row, self._after, 1)
        else:
            out.append(u8(0))
        for note in self._aside.off_calendar:
            self._copy_note(sink, note, has_before, has_after)
        sink.close()

    def _copy(
        self, sink: RecordSink, out: BytesWriter, row: bytes, places: list[int], image: i64
    ) -> None:
        for wanted in self._columns:
            at: i64 = places[wanted.source]
            begin: i64 = len(out) + 1
            if at < 0:
                out.append(u8(0))
                continue
            if wanted.mask is None:
                copy(out, row, at, self._end(places, wanted.source) - at)
            else:
                value = self._raw(row, places, image, wanted.source)
                masked = None if value is None else wanted.mask(value)
                if masked is None:
                    out.append(u8(0))
                else:
                    out.append(u8(2))
                    write_string(out, masked.encode() if isinstance(masked, str) else masked)
            if wanted.column.is_noted and len(out) > begin:
                sink.note_value(wanted.column, begin, len(out))

    def _copy_note(
        self, sink: RecordSink, note: OffCalendar, has_before: bool, has_after: bool
    ) -> None:
        """Keep the text of a date off the calendar where its column is written as it is."""
        wanted = self._by_source.get(int(note.column))
        if wanted is None or wanted.mask is not None:
            return
        if has_before if note.image == 0 else has_after:
            sink.image = note.image
            sink.note_off_calendar(wanted.column.index, wanted.column.key_slot, note.text)

    def _header(self, rows: RowsPlan, op: i64, has_before: bool, has_after: bool) -> RowsPlan:
        before = self._bits(self._before) if has_before else b""
        after = self._bits(self._after) if has_after else b""
        key = (int(op), before, after)
        found = self._headers.get(key)
        if found is None:
            if len(self._headers) >= _HEADERS_MAX:
                self._headers.clear()
            found = rows_header(self.written, op, before, after, rows.ids_at >= 0)
            self._headers[key] = found
        return found

    def _bits(self, places: list[int]) -> bytes:
        """The bit map of the written columns that an image holds."""
        bits = bytearray((len(self._columns) + 7) // 8)
        for i, wanted in enumerate(self._columns):
            if places[wanted.source] >= 0:
                bits[i >> 3] |= 1 << (i & 7)
        return bytes(bits)


def _produce_nothing(*_arguments: object) -> None:
    """What is aside is never produced."""
    raise ValueError("a record that was put aside was produced")
