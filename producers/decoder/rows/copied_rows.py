"""Copied rows between the transactions of the stream: READ records and what stands behind them."""

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from producers.decoder.events.event_stream import EventReader
from producers.decoder.events.internal_tables import NO_ORIGIN
from producers.decoder.rows.row_values import write_image
from producers.decoder.tables.key_watch import KeyWatch, TransactionEnds
from producers.decoder.tables.plan import TablePlan
from producers.decoder.tables.table_versions import READ, rows_plan
from producers.decoder.values.wire import encode_packed, encode_string, write_long, write_string


class CopyWriter:
    """Writes copied rows into the stream of one decoder; only between transactions."""

    def __init__(self, events: EventReader) -> None:
        """Write where the events' records go."""
        self._events: EventReader = events

    @property
    def ends(self) -> TransactionEnds:
        """Where transactions ended since the first table was watched."""
        return self._events.tables.ends

    @property
    def is_ended(self) -> bool:
        """Whether a reshard has ended this log: its rows come from elsewhere now."""
        return self._events.internal.refuses_rows

    @property
    def next_seq(self) -> int:
        """Of the next record: all that is noted from here on has this seq or a later one."""
        return self._events.sink.next_seq

    @property
    def position(self) -> str:
        """GTID set of all that was taken from the stream, committed to Kafka or not."""
        return self._events.position()

    @property
    def is_by_place(self) -> bool:
        """Whether windows count from places in the binlog: MariaDB."""
        return not self._events.is_mysql

    def floor_us(self) -> int:
        """No later record is older."""
        self._events.clock.take_now()
        return self._events.clock.timestamp_us

    def watch(self, watch: KeyWatch) -> None:
        """Note from here on what is logged of a table, and where transactions end."""
        self._events.tables.watch(watch)
        self._events.tables.ends.is_on = True

    def unwatch(self, watch: KeyWatch) -> None:
        """End that."""
        self._events.tables.unwatch(watch)
        if not self._events.tables.watches:
            self._events.tables.ends.clear()

    def copy_rows(self, table: TablePlan, images: bytes, watch: KeyWatch, since_seq: i64) -> int:
        """Begin a transaction of copied rows and add them as READ; return how many.

        `images`: row images as a binlog has them, one after the other. Rows whose keys the watch
        has noted since `since_seq` are left out, and so is what the table's filter rule leaves out.
        `end` must follow.
        """
        events = self._events
        sink = events.sink
        if len(table.prefix) == 0:
            events.tables.prepare(table)
        if table.is_left_out:
            raise ValueError(f"table {table.database}.{table.table} is left out by a filter rule")
        events.clock.take_now()
        time_us = events.clock.timestamp_us
        # No transaction of the server: no GTID is added, and the time is the log's own.
        sink.begin_transaction(time_us)
        stamp = sink.begin_stamp()
        write_string(stamp, events.position().encode("ascii"))
        stamp.write(NO_ORIGIN)
        write_long(stamp, time_us)
        write_string(stamp, b"")
        sink.end_stamp()
        count = int(table.count)
        present = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
        rows = rows_plan(table, READ, encode_packed(count) + present)
        row_filter = table.row_filter
        if row_filter is not None:
            return row_filter.write_copied(sink, rows, images, watch, since_seq)
        check = len(watch.touched) > 0
        pos: i64 = 0
        end: i64 = len(images)
        added: i64 = 0
        while pos < end:
            out: BytesWriter = sink.open_row(table, rows)
            out.append(u8(0))
            sink.image = 1
            out.append(u8(2))
            pos = write_image(sink, rows.after, rows.after_present, images, pos)
            if check and i64(watch.touched.get(sink.image_key(), -1)) >= since_seq:
                sink.off_calendar = []  # the next row is written over this one
                continue
            sink.close()
            added += 1
        return added

    def end(self, database: str, table: str, notes: list[tuple[str, str]]) -> None:
        """End the transaction by LAST_PK and COPY_COMPLETED records: (event type, text) each."""
        out = BytesWriter()
        write_string(out, database.encode("utf-8"))
        write_string(out, table.encode("utf-8"))
        out.write(b"\0" * 5)  # op NONE, no keyspace ids, no columns
        header = out.getvalue()
        key = encode_string(database) + encode_string(table)
        events = self._events
        for event_type, text in notes:
            prefix = events.tables.statement_prefix(event_type)
            events.sink.add_statement(prefix, header, key, text.encode("utf-8"))
        events.sink.end_transaction()
