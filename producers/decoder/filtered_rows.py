"""Rows of a table with a filter rule: which of them are wanted, and what of each is written.

A row is first written aside, whole; then it is judged; then its wanted columns are copied into the
record. Only tables with a rule pay for that.
"""

from collections.abc import Callable
from typing import Final, Protocol

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64, u8

from event_token.errors import UsageError
from producers.decoder.errors import CorruptBinlog, NoKeyspaceId, UnsupportedEvent
from producers.decoder.key_watch import KeyWatch
from producers.decoder.plan import ABSENT, ColumnPlan, RowsPlan, TablePlan, rows_header, see_rows
from producers.decoder.raw_values import raw_form, read_raw
from producers.decoder.records import OffCalendar, RecordSink
from producers.decoder.row_values import write_value
from producers.decoder.sharding import Sharding
from producers.decoder.wire import copy, encode_string, write_string
from topics.table_shape import OPS

_INSERT: Final = OPS.index("INSERT")
_DELETE: Final = OPS.index("DELETE")


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


class _Run:
    """Written columns that lie side by side in the table and are not masked, or a masked one."""

    def __init__(self, first: MaskedColumn) -> None:
        """Begin with the first column, which `add` takes too."""
        self.first: MaskedColumn = first
        self.end: i64 = first.source  # the place behind the last one
        self.noted: list[MaskedColumn] = []

    def takes(self, column: MaskedColumn) -> bool:
        """Tell whether the column lies right behind and is copied as these are."""
        return self.first.mask is None and column.source == self.end

    def add(self, column: MaskedColumn) -> None:
        """Put a column behind the others."""
        self.end = column.source + 1
        if column.column.is_noted:
            self.noted.append(column)


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
        predicate: Callable[..., bool] | None,
        predicate_columns: list[int],
    ) -> None:
        """`written`: the table as readers see it. A row is wanted where the predicate is True.

        It takes the raw values of `predicate_columns`.
        """
        self._table: TablePlan = table
        self.written: TablePlan = written
        self._columns: list[MaskedColumn] = columns
        self._runs: list[_Run] = _runs(columns)
        self._by_source: dict[int, MaskedColumn] = {int(c.source): c for c in columns}
        self._predicate: Callable[..., bool] | None = predicate
        self._predicate_columns: list[int] = predicate_columns
        self._forms: list[int] = [raw_form(column.kind) for column in table.shape_columns]
        self._aside: RecordSink = RecordSink("", "", 0, 0, _produce_nothing)
        self._sharding: Sharding = Sharding()
        # Where each column of both images begins in what is aside, and where the last one ends.
        self._before: vec[i64] = vec[i64]([0] * (int(table.count) + 1))
        self._after: vec[i64] = vec[i64]([0] * (int(table.count) + 1))

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
            has_before = rows.has_before and self._wants(row, rows.before, self._before, 0)
            has_after = rows.has_after and self._wants(row, rows.after, self._after, 1)
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
            if noted < since_seq and self._wants(row, rows.after, self._after, 1):
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

    def _key(self, row: bytes, places: vec[i64], image: i64) -> bytes:
        """The primary key of an image, before any mask; only for a watch."""
        pieces: list[bytes] = []
        for index in self._table.primary_key:
            at: i64 = places[index]
            if i64(row[at]) != 0:
                pieces.append(row[at + 1 : places[index + 1]])
                continue
            # Nothing of a partial image, which stops the copy.
            for note in self._aside.off_calendar:
                if note.image == image and note.column == index:
                    pieces.append(encode_string(note.text))  # noqa: PERF401 - compiled
        return b"".join(pieces)

    def _read(
        self, columns: list[ColumnPlan], present: i64, buf: bytes, pos: i64, places: vec[i64]
    ) -> i64:
        """Write an image aside as a record has it; return where it ends in the event."""
        aside = self._aside
        out = aside.out
        null_at: i64 = pos
        pos += (present + 7) >> 3
        mask: i64 = 1
        index: i64 = 0
        for column in columns:
            begin: i64 = len(out)
            places[index] = begin
            index += 1
            if column.op == ABSENT:
                out.append(u8(0))
                continue
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
        places[index] = len(out)
        return pos

    def _wants(self, row: bytes, columns: list[ColumnPlan], places: vec[i64], image: i64) -> bool:
        """Judge an image. UnsupportedEvent where it lacks a column of the WHERE."""
        predicate = self._predicate
        if predicate is None:
            return True
        values: list[object] = []
        for index in self._predicate_columns:
            if columns[index].op == ABSENT:
                table = self._table
                raise UnsupportedEvent(
                    f"a row image of {table.database}.{table.table} lacks column "
                    f"{table.columns[index].name}, which the table's filter rule needs: "
                    f"SET GLOBAL binlog_row_image=FULL on the source"
                )
            values.append(self._raw(row, places, image, index))
        try:
            return predicate(*values)
        except UsageError as error:
            raise NoKeyspaceId(
                f"a row of {self._table.database}.{self._table.table}: {error}"
            ) from error

    def _raw(self, row: bytes, places: vec[i64], image: i64, index: i64) -> object:
        """The raw value of a column; None is NULL, a date off the calendar is its text."""
        at: i64 = places[index]
        if i64(row[at]) == 0:
            for note in self._aside.off_calendar:
                if note.image == image and note.column == index:
                    return note.text
            return None
        return read_raw(row, at + 1, self._forms[index])

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
        self, sink: RecordSink, out: BytesWriter, row: bytes, places: vec[i64], image: i64
    ) -> None:
        """Copy an image's written columns, at once those that lie side by side unmasked."""
        for run in self._runs:
            begin: i64 = len(out)
            at: i64 = places[run.first.source]
            mask = run.first.mask
            if mask is None:
                copy(out, row, at, places[run.end] - at)
                for wanted in run.noted:
                    source = wanted.source
                    if i64(row[places[source]]) != 0:
                        moved: i64 = begin - at
                        end: i64 = places[source + 1] + moved
                        sink.note_value(wanted.column, places[source] + moved + 1, end)
                continue
            value = self._raw(row, places, image, run.first.source)
            masked = None if value is None else mask(value)
            if masked is None:
                out.append(u8(0))
                continue
            out.append(u8(2))
            write_string(out, masked.encode() if isinstance(masked, str) else masked)
            if run.first.column.is_noted:
                sink.note_value(run.first.column, begin + 1, len(out))

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
        key = int(op) * 4 + (2 if has_before else 0) + (1 if has_after else 0)
        found = rows.filtered.get(key)
        if found is None:
            before = self._bits(rows.before) if has_before else b""
            after = self._bits(rows.after) if has_after else b""
            found = rows_header(self.written, op, before, after, rows.ids_at >= 0)
            rows.filtered[key] = found
        return found

    def _bits(self, columns: list[ColumnPlan]) -> bytes:
        """The bit map of the written columns that an image holds."""
        bits = bytearray((len(self._columns) + 7) // 8)
        for i, wanted in enumerate(self._columns):
            if columns[wanted.source].op != ABSENT:
                bits[i >> 3] |= 1 << (i & 7)
        return bytes(bits)


def _runs(columns: list[MaskedColumn]) -> list[_Run]:
    """The written columns by what is copied at once."""
    runs: list[_Run] = []
    for column in columns:
        run = runs[-1] if runs else None
        if run is None or column.mask is not None or not run.takes(column):
            run = _Run(column)
            runs.append(run)
        run.add(column)
    return runs


def _produce_nothing(*_arguments: object) -> None:
    """What is aside is never produced."""
    raise ValueError("a record that was put aside was produced")
