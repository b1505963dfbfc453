"""Writes one record at a time: its envelope, and around the row's images what belongs to them.

A transaction's last row is kept open until the transaction's end is known, so that its `last` flag
is right.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from producers.decoder.errors import RecordTooLarge
from producers.decoder.rows.invalid_dates import InvalidDates
from producers.decoder.rows.keyspace_ids import KeyspaceIds
from producers.decoder.rows.record_key import RecordKey
from producers.decoder.rows.record_output import RecordOutput
from producers.decoder.rows.transaction_stamp import TransactionStamp
from producers.decoder.tables.key_watch import KeyWatch
from producers.decoder.tables.plan import NO_IDS, ColumnPlan, RowsPlan, TablePlan
from producers.decoder.tables.rows_plans import observe_rows
from producers.decoder.values.wire import write_long, write_string

# A buffer that one large row has grown beyond this is released.
_BUFFER_BYTES_KEPT: Final = 1024 * 1024


class RecordWriter:
    """The open record and the parts that complete it."""

    def __init__(
        self,
        output: RecordOutput,
        stamp: TransactionStamp,
        next_seq: i64,
        record_bytes_max: i64,
    ) -> None:
        """`next_seq`: of the next record. `record_bytes_max`: of key and value together."""
        self.output: RecordOutput = output
        self.stamp: TransactionStamp = stamp
        self.next_seq: i64 = next_seq
        self.out: BytesWriter = BytesWriter()
        self.dates: InvalidDates = InvalidDates()
        self.key: RecordKey = RecordKey()
        self.keyspace_ids: KeyspaceIds = KeyspaceIds()
        self.watch: KeyWatch | None = None  # of the open row's table
        self._record_bytes_max: i64 = record_bytes_max
        self.row_index: i64 = 0
        self._table: TablePlan | None = None  # of the open row
        self._is_pending: bool = False  # a record waits for its `last` flag
        self._last_at: i64 = 0
        self._dates_at: i64 = 0

    def begin_transaction(self, timestamp_us: i64) -> None:
        """Begin a transaction's records; the stamp's bytes follow."""
        self.stamp.begin_transaction(timestamp_us, self.next_seq)
        self.row_index = 0

    def open_row(self, table: TablePlan, rows: RowsPlan) -> BytesWriter:
        """Begin a row's record. The caller writes both images and calls `close`."""
        if self._is_pending:
            self._flush(False)
        self._table = table
        self.key.begin(table.key_prefix, table.key_size)
        if rows.ids_at >= 0:
            self.keyspace_ids.begin(table, rows)
        else:
            self.keyspace_ids.at = NO_IDS
        self.watch = table.watch
        if self.watch is not None:
            observe_rows(self.watch, table, rows, self.next_seq)
        return self._open(table.prefix, rows.header)

    def add_statement(self, prefix: bytes, header: bytes, key: bytes, statement: bytes) -> None:
        """Add a record that holds a statement: DDL or JOURNAL."""
        if self._is_pending:
            self._flush(False)
        self._table = None
        self.key.begin(key, 0)
        self.keyspace_ids.at = NO_IDS
        write_string(self._open(prefix, header), statement)
        self.close()

    def _open(self, prefix: bytes, header: bytes) -> BytesWriter:
        out = self.out
        if len(out) > _BUFFER_BYTES_KEPT:
            out = self.out = BytesWriter()
        out.truncate(0)
        out.write(prefix)
        write_long(out, self.next_seq)
        out.write(self.stamp.encoded)
        write_long(out, self.row_index)
        self._last_at = len(out)
        out.append(u8(0))  # last
        out.write(header)
        self._dates_at = len(out)
        out.append(u8(0))  # no invalid date
        return out

    def begin_image(self, image: i64) -> None:
        """Begin a row image: 0 before, 1 after."""
        self.dates.image = image
        self.out.append(u8(2))

    def note_value(self, column: ColumnPlan, begin: i64, end: i64) -> None:
        """Note where a value of the primary key or of the sharding column is in the record."""
        if column.key_slot >= 0:
            self.key.note(column.key_slot, begin, end)
        if column.is_sharding:
            self.keyspace_ids.note(self.dates.image, begin)

    def image_key(self) -> bytes:
        """Return the key of the row image that was written last."""
        return self.key.of_image(self.out.getvalue(), self.dates.image, self.dates.notes)

    def touch(self, watch: KeyWatch) -> None:
        """Note the key of the row image that was written last."""
        watch.touch(self.image_key(), self.next_seq)

    def close(self) -> None:
        """Complete the record, except for its `last` flag."""
        if len(self.dates.notes) > 0:
            self._insert_dates()
        self._is_pending = True
        self.next_seq += 1
        self.row_index += 1

    def drop(self) -> None:
        """Drop the open row; the next one is written over it."""
        self.dates.notes = []

    def end_transaction(self) -> None:
        """Hand over the record that waits, as the transaction's last."""
        if self._is_pending:
            self._flush(True)

    def _insert_dates(self) -> None:
        """Insert the invalid dates into the envelope and, where a key needs them, into the key."""
        for note in self.dates.notes:
            if note.key_slot >= 0:
                self.key.note_date(note)
        dates = self.dates.encoded()
        self.dates.notes = []
        record = self.out.getvalue()
        self.out.truncate(self._dates_at)
        self.out.write(dates)
        self.out.write(record[self._dates_at :])
        self.key.shift(len(dates))
        self.keyspace_ids.shift(len(dates))

    def _flush(self, last: bool) -> None:
        out = self.out
        if last:
            out[self._last_at] = u8(1)
        value = out.getvalue()
        key = self.key.encoded(value)
        if self.keyspace_ids.at >= 0:
            at: i64 = self._last_at + 1 + self.keyspace_ids.at
            value = value[:at] + self.keyspace_ids.encoded(value) + value[at:]
        if len(value) + len(key) > self._record_bytes_max:
            table = self._table
            tables = () if table is None else ((table.database, table.table),)
            raise RecordTooLarge(self._too_large(len(value) + len(key)), tables)
        self.output.add(value, key, self.stamp.timestamp_ms)
        self._is_pending = False

    def _too_large(self, size: i64) -> str:
        table = self._table
        name = "a statement" if table is None else f"a change of {table.database}.{table.table}"
        return (
            f"{name} gives a record of {size} bytes, and Kafka takes at most "
            f"{self._record_bytes_max}. Nothing of its transaction is visible. Leave out the large "
            "column or truncate it by a filter rule, and start again; binlog_row_image=MINIMAL "
            "keeps it out of updates that do not change it"
        )
