"""Rows of a table with a filter rule.

First the values of a row are located in the event, then the WHERE is evaluated on the values that
it needs, then the wanted columns are written from there. Anything else is never decoded.
"""

from collections.abc import Callable

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64, u8

from event_token.errors import UsageError
from producers.decoder.errors import CorruptBinlog, NoKeyspaceId, UnsupportedEvent
from producers.decoder.rows.images import NO_VALUE, find_values
from producers.decoder.rows.record_writer import RecordWriter, write_keyspace_id
from producers.decoder.rows.value_writer import RowValueReader, read_whole_number, write_value
from producers.decoder.tables.plan import ColumnPlan, FilterPlan, KeyWatch, RowsPlan, TablePlan
from producers.decoder.tables.rows_plans import DELETE, INSERT, observe_rows, rows_header
from producers.decoder.values import operations as ops
from producers.decoder.values.wire import write_string


class FilteredRows:
    """Applies the filter plans of a stream's tables, one row event at a time."""

    def __init__(self, record: RecordWriter) -> None:
        self.left_out: i64 = 0  # rows of the stream that did not pass, in the open batch
        self._record: RecordWriter = record
        self._values: RowValueReader = RowValueReader()
        self._places: i64 = 0
        # Where each column's value of both images is in the event.
        self._before: vec[i64] = vec[i64]()
        self._after: vec[i64] = vec[i64]()

    def write(
        self,
        plan: FilterPlan,
        rows: RowsPlan,
        buf: bytes,
        pos: i64,
        end: i64,
        *,
        begin_records: Callable[[], None] | None,
    ) -> None:
        """Write the rows of a row event that pass; call `begin_records` before the first."""
        watch = plan.source.watch
        self._make_room(plan.source)
        while pos < end:
            pos = self._find(rows, buf, pos)
            if pos > end:
                raise CorruptBinlog("a row runs past the end of its event")
            if watch is not None:
                self._note(watch, plan.source, rows, buf)
            has_before = rows.has_before and self._passes(plan, rows.before, buf, self._before)
            has_after = rows.has_after and self._passes(plan, rows.after, buf, self._after)
            if not has_before and not has_after:
                self.left_out += 1
                continue
            if begin_records is not None:
                begin_records()
                begin_records = None
            self._write_record(plan, rows, buf, has_before, has_after)

    def write_copied(
        self,
        plan: FilterPlan,
        rows: RowsPlan,
        images: bytes,
        watch: KeyWatch,
        since_seq: i64,
    ) -> int:
        """Write the copied rows that pass, as an INSERT of each would be; return how many.

        Rows whose keys the watch has noted from `since_seq` on are left out.
        """
        pos: i64 = 0
        end: i64 = len(images)
        added: i64 = 0
        self._make_room(plan.source)
        while pos < end:
            pos = self._find(rows, images, pos)
            noted = i64(watch.touched.get(self._key(plan.source, images, self._after), -1))
            if noted < since_seq and self._passes(plan, rows.after, images, self._after):
                self._write_record(plan, rows, images, False, True)
                added += 1
        return added

    def _make_room(self, table: TablePlan) -> None:
        """Have a place for each column of the table."""
        if self._places < table.count:
            self._places = table.count
            self._before = vec[i64]([NO_VALUE] * int(table.count))
            self._after = vec[i64]([NO_VALUE] * int(table.count))

    def _find(self, rows: RowsPlan, buf: bytes, pos: i64) -> i64:
        """Find the values of the row at `pos`; return where it ends in the event."""
        if rows.has_before:
            pos = find_values(rows.before, rows.before_present, buf, pos, self._before)
        if rows.has_after:
            pos = find_values(rows.after, rows.after_present, buf, pos, self._after)
        return pos

    def _note(self, watch: KeyWatch, table: TablePlan, rows: RowsPlan, buf: bytes) -> None:
        """Note a change for the copy of the table, whether or not it passes."""
        seq = self._record.next_seq
        observe_rows(watch, table, rows, seq)
        if rows.has_before:
            watch.touch(self._key(table, buf, self._before), seq)
        if rows.has_after:
            watch.touch(self._key(table, buf, self._after), seq)

    def _key(self, table: TablePlan, buf: bytes, places: vec[i64]) -> bytes:
        """Return the record key of an image before any mask, as a watch notes it.

        The binlog's version of a table may have hidden columns, which pass through here, while the
        copy's has none: both note the same keys. A partial image, which stops the copy, may lack a
        part of it.
        """
        pieces: list[bytes] = [table.key_prefix]
        for index in table.primary_key:
            at: i64 = places[index]
            if at != NO_VALUE:
                pieces.append(self._values.encoded(table.columns[index], buf, at))
        return b"".join(pieces)

    def _passes(
        self,
        plan: FilterPlan,
        columns: list[ColumnPlan],
        buf: bytes,
        places: vec[i64],
    ) -> bool:
        """Evaluate the WHERE. UnsupportedEvent where the image lacks a column that it needs."""
        at: i64 = NO_VALUE
        for test in plan.ranges:
            at = places[test.column.index]
            if at == NO_VALUE:
                _require_null(plan.source, test.column, columns)
                return False
            value = read_whole_number(test.column, buf, at)
            if value < test.low or value > test.high:
                return False
        predicate = plan.predicate
        if predicate is None:
            return True
        values: list[object] = []
        for column in plan.predicate_columns:
            at = places[column.index]
            if at == NO_VALUE:
                _require_null(plan.source, column, columns)
                values.append(None)
            else:
                values.append(self._values.raw(column, buf, at))
        try:
            return predicate(*values)
        except UsageError as error:
            table = plan.source
            raise NoKeyspaceId(f"a row of {table.database}.{table.table}: {error}") from error

    def _write_record(
        self,
        plan: FilterPlan,
        rows: RowsPlan,
        buf: bytes,
        has_before: bool,
        has_after: bool,
    ) -> None:
        """Write the record of a row, with the images that pass."""
        record = self._record
        out = record.open_row(plan.written, _written_rows(plan, rows, has_before, has_after))
        if rows.ids_at >= 0:
            ids = BytesWriter()
            has_id = has_before and rows.before_has_sharding
            self._write_id(ids, plan.source, buf, self._before, has_id)
            has_id = has_after and rows.after_has_sharding
            self._write_id(ids, plan.source, buf, self._after, has_id)
            record.keyspace_ids.give(ids.getvalue())
        if has_before:
            record.begin_image(0)
            self._write_image(plan, out, buf, self._before)
        else:
            out.append(u8(0))
        if has_after:
            record.begin_image(1)
            self._write_image(plan, out, buf, self._after)
        else:
            out.append(u8(0))
        record.close()

    def _write_id(
        self, out: BytesWriter, table: TablePlan, buf: bytes, places: vec[i64], has_id: bool
    ) -> None:
        """Write the keyspace id of an image; null where the record has none."""
        if not has_id:
            out.append(u8(0))
            return
        column = table.sharding_plan
        at: i64 = places[column.index]
        value = None if at == NO_VALUE else self._values.raw(column, buf, at)
        write_keyspace_id(out, table, value)

    def _write_image(
        self, plan: FilterPlan, out: BytesWriter, buf: bytes, places: vec[i64]
    ) -> None:
        """Write the wanted columns of an image, masked where the rule says so."""
        record = self._record
        for wanted in plan.columns:
            column = wanted.column
            begin: i64 = len(out) + 1
            at: i64 = places[wanted.source.index]
            if at == NO_VALUE:
                out.append(u8(0))
                continue
            mask = wanted.mask
            if mask is None:
                write_value(record.dates, out, column, buf, at)
            else:
                masked = mask(self._values.raw(wanted.source, buf, at))
                if masked is None:
                    out.append(u8(0))
                    continue
                out.append(u8(2))
                write_string(out, masked.encode() if isinstance(masked, str) else masked)
            if column.is_noted:
                record.note_value(column, begin, len(out))


def _require_null(table: TablePlan, column: ColumnPlan, columns: list[ColumnPlan]) -> None:
    """Check that a column of the WHERE without a value is NULL, and not absent from the image."""
    if columns[column.index].op == ops.ABSENT:
        raise UnsupportedEvent(
            f"a row image of {table.database}.{table.table} lacks column {column.name}, which "
            f"the table's filter rule needs: set binlog_row_image=FULL on the source"
        )


def _written_rows(plan: FilterPlan, rows: RowsPlan, has_before: bool, has_after: bool) -> RowsPlan:
    """Return the record's header. An update of which one image passes is an INSERT or a DELETE."""
    key: i64 = (2 if has_before else 0) + (1 if has_after else 0)
    found = rows.filtered[key]
    if found is None:
        op: i64 = rows.op if has_after == rows.has_after else DELETE
        if rows.has_before and not has_before:
            op = INSERT
        before = _bits(plan, rows.before) if has_before else b""
        after = _bits(plan, rows.after) if has_after else b""
        found = rows_header(plan.written, op, before, after, rows.ids_at >= 0)
        rows.filtered[key] = found
    return found


def _bits(plan: FilterPlan, columns: list[ColumnPlan]) -> bytes:
    """Return the bitmap of the written columns that an image holds."""
    bits = bytearray((len(plan.columns) + 7) // 8)
    for i, wanted in enumerate(plan.columns):
        if columns[wanted.source.index].op != ops.ABSENT:
            bits[i >> 3] |= 1 << (i & 7)
    return bytes(bits)
