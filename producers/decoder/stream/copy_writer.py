"""Copied rows between the transactions of the stream: READ records and the notes after them."""

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from producers.decoder.events.statements import Redefined
from producers.decoder.rows.images import write_image
from producers.decoder.stream.event_reader import EventReader
from producers.decoder.stream.internal_tables import NO_ORIGIN
from producers.decoder.stream.transaction import Transaction
from producers.decoder.tables.plan import KeyWatch, TablePlan, TransactionEnds
from producers.decoder.tables.rows_plans import READ, rows_plan
from producers.decoder.values.wire import encode_packed, encode_string, write_string


class CopyWriter:
    """Writes copied rows into the stream of one decoder; only between transactions."""

    def __init__(self, events: EventReader) -> None:
        self._events: EventReader = events
        self._transaction: Transaction = events.transaction

    @property
    def ends(self) -> TransactionEnds:
        """Where transactions ended since the first table was watched."""
        return self._transaction.ends

    @property
    def is_ended(self) -> bool:
        """Whether a reshard has ended this log: its rows come from other shards now."""
        return self._events.internal.refuses_rows

    @property
    def next_seq(self) -> int:
        """Seq of the next record. Everything noted from here on has this seq or a later one."""
        return self._transaction.record.next_seq

    @property
    def position(self) -> str:
        """GTID set of everything that was read from the stream, committed to Kafka or not."""
        return self._transaction.position.text()

    @property
    def is_by_place(self) -> bool:
        """Whether windows count from places in the binlog: MariaDB."""
        return not self._transaction.position.is_mysql

    def floor_us(self) -> int:
        """Return a time that no later record is older than."""
        clock = self._transaction.clock
        clock.take_now()
        return clock.timestamp_us

    def watch(self, watch: KeyWatch) -> None:
        """Note from here on which rows of a table are logged, and where transactions end."""
        self._events.tables.watch(watch)
        self._transaction.ends.is_on = True

    def unwatch(self, watch: KeyWatch) -> None:
        """Stop noting them."""
        self._events.tables.unwatch(watch)
        if not self._events.tables.watches:
            self._transaction.ends.clear()

    def take_renamed(self) -> list[Redefined]:
        """Return, once, the tables that statements have renamed since this was called before.

        The first call returns nothing: from there on they are noted.
        """
        tables = self._events.tables
        tables.notes_renames = True
        renamed, tables.renamed = tables.renamed, []
        return renamed

    def copy_rows(self, table: TablePlan, images: bytes, watch: KeyWatch, since_seq: i64) -> int:
        """Begin a transaction of copied rows and add them as READ records; return how many.

        `images`: row images as a binlog has them, one after another. Rows whose keys the watch has
        noted from `since_seq` on are left out, and so are those that the table's filter rule
        leaves out. `end` must follow.
        """
        if len(table.prefix) == 0:
            self._events.tables.prepare(table)
        if table.is_left_out:
            raise ValueError(f"table {table.database}.{table.table} is left out by a filter rule")
        self._begin_records()
        count = int(table.count)
        present = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
        rows = rows_plan(table, READ, encode_packed(count) + present)
        plan = table.filter
        if plan is not None:
            return self._events.filtered_rows.write_copied(plan, rows, images, watch, since_seq)
        record = self._transaction.record
        check = len(watch.touched) > 0
        pos: i64 = 0
        end: i64 = len(images)
        added: i64 = 0
        while pos < end:
            out: BytesWriter = record.open_row(table, rows)
            out.append(u8(0))
            record.begin_image(1)
            pos = write_image(record, rows.after, rows.after_present, images, pos)
            if check and i64(watch.touched.get(record.image_key(), -1)) >= since_seq:
                record.drop()
                continue
            record.close()
            added += 1
        return added

    def _begin_records(self) -> None:
        """Begin a transaction that is none of the server's: no GTID, and the log's own time."""
        transaction = self._transaction
        record = transaction.record
        transaction.clock.take_now()
        time_us = transaction.clock.timestamp_us
        record.begin_transaction(time_us)
        transaction.write_stamp(NO_ORIGIN, time_us, has_gtid=False)

    def end(self, database: str, table: str, notes: list[tuple[str, str]]) -> None:
        """End the transaction with LAST_PK and COPY_COMPLETED records: (event type, text) each."""
        out = BytesWriter()
        write_string(out, database.encode("utf-8"))
        write_string(out, table.encode("utf-8"))
        out.write(b"\0" * 5)  # op NONE, no keyspace ids, no columns
        header = out.getvalue()
        key = encode_string(database) + encode_string(table)
        record = self._transaction.record
        for event_type, text in notes:
            prefix = self._events.tables.statement_prefix(event_type)
            record.add_statement(prefix, header, key, text.encode("utf-8"))
        record.end_transaction()
