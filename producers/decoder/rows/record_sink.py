"""One record at a time: its envelope, its key, and handing it over to Kafka's client.

The last row of a transaction is held back until the transaction's end is known, so that its
`last` flag is true. A whole record waits for the next one, so that the batch's last can be told.
Parts that do not change within a transaction are encoded once.
"""

from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from event_token.errors import UsageError
from producers.decoder.errors import QueueStayedFull, RecordTooLarge, UnsupportedEvent
from producers.decoder.tables.key_watch import KeyWatch
from producers.decoder.tables.plan import NO_IDS, ColumnPlan, RowsPlan, TablePlan, see_rows
from producers.decoder.tables.sharding import Sharding
from producers.decoder.values.wire import copy, encode_string, write_long, write_string
from topics.progress.record import GRID_US

# How often a full queue is waited for. `on_full` waits some 0.1 s, so a broker has minutes.
QUEUE_FULL_TRIES_MAX: Final = 3000
# A writer that has grown beyond this for one large row is let go again.
_WRITER_KEPT_BYTES: Final = 1024 * 1024

_NOT_IN_IMAGE: Final = -1
_OFF_CALENDAR: Final = -2

Produce = Callable[[str, bytes, bytes, int, object, object, int], None]


def closed(
    _topic: str, _value: bytes, _key: bytes, _partition: int, _1: object, _2: object, _ms: int
) -> None:
    """Stands for `produce` after the end."""
    raise UsageError("this decoder is closed")


class OffCalendar:
    """A date that no calendar has. `image`: 0 before, 1 after."""

    def __init__(self, image: i64, column: i64, key_slot: i64, text: str) -> None:
        """Take where it stood and what the server would print."""
        self.image: i64 = image
        self.column: i64 = column
        self.key_slot: i64 = key_slot
        self.text: str = text


class RecordSink:
    """Builds records and produces them; `messages` and the like count since the last batch."""

    def __init__(
        self, topic: str, shard: str, next_seq: i64, last_cell_us: i64, produce: Produce
    ) -> None:
        """`next_seq`: of the next record. `last_cell_us`: grid cell of the last one, or -1."""
        self.record_bytes_max: i64 = 0  # of key and value together; the owner sets it
        self._table: TablePlan | None = None  # of the open row
        self.out: BytesWriter = BytesWriter()
        self.topic: str = topic
        self.produce: Produce = produce
        self.on_full: Callable[[], None] | None = None
        self.delivery_callback: object = None
        self.next_seq: i64 = next_seq
        self.row_index: i64 = 0
        self.messages: i64 = 0
        self.bytes_produced: i64 = 0
        self.ticks: list[tuple[int, int]] = []
        self._shard: bytes = shard.encode("utf-8")
        self._grid_us: i64 = GRID_US
        self._last_cell_us: i64 = last_cell_us
        self._timestamp_us: i64 = -1
        self._timestamp_ms: i64 = 0
        self._stamp: BytesWriter = BytesWriter()
        self._transaction: bytes = b""
        self._pending: bool = False
        # The record before: it is produced when the next one is whole or the batch is taken.
        self._is_held: bool = False
        self._held_value: bytes = b""
        self._held_key: bytes = b""
        self._held_timestamp_ms: i64 = 0
        self._held_is_first: bool = False
        self._last_at: i64 = 0
        self._off_calendar_at: i64 = 0
        self.image: i64 = 0
        self.off_calendar: list[OffCalendar] = []
        # Where the primary key's values stand in the record; slot 0 apart from the others.
        self.key_begin: i64 = 0
        self.key_end: i64 = 0
        self.key_begins: list[int] = []
        self.key_ends: list[int] = []
        self._key_texts: dict[int, bytes] = {}
        self._key_size: i64 = 0
        self._key_prefix: bytes = b""
        self._key_out: BytesWriter = BytesWriter()
        self.sharding: Sharding = Sharding()
        self._ids_at: i64 = NO_IDS
        self.watch: KeyWatch | None = None  # of the open row's table
        self._ids: bytes = b""  # said by a filter; else they are made of the record

    def begin_transaction(self, timestamp_us: i64) -> None:
        """Begin a transaction's records; `begin_stamp` follows."""
        if timestamp_us != self._timestamp_us:
            self._timestamp_us = timestamp_us
            self._timestamp_ms = timestamp_us // 1000
            cell = timestamp_us - timestamp_us % self._grid_us
            if cell != self._last_cell_us:
                self._last_cell_us = cell
                self.ticks.append((cell, self.next_seq))
        self.row_index = 0

    def begin_stamp(self) -> BytesWriter:
        """Begin to encode what the records that follow share: token, commit time and GTID.

        The caller writes the position; the origin's null branch and, where there is one, the token
        of the source's transaction; the commit time; the GTID. `end_stamp` follows.
        """
        out = self._stamp
        out.truncate(0)
        write_long(out, self._timestamp_us)
        write_string(out, self._shard)
        return out

    def end_stamp(self) -> None:
        """The shared part is complete."""
        self._transaction = self._stamp.getvalue()

    def open_row(self, table: TablePlan, rows: RowsPlan) -> BytesWriter:
        """Begin a row's record; the caller writes both images and calls `close`."""
        if self._pending:
            self._flush(False)
        self._table = table
        self._key_size = table.key_size
        self._key_prefix = table.key_prefix
        self._ids_at = rows.ids_at
        self._ids = b""
        if rows.ids_at >= 0:
            self.sharding.begin(table, rows)
        self.watch = table.watch
        if self.watch is not None:
            see_rows(self.watch, table, rows, self.next_seq)
        if table.key_size:
            self.key_begin = _NOT_IN_IMAGE
            if table.key_size > 1:
                self._begin_composite_key()
        return self._open(table.prefix, rows.header)

    def _begin_composite_key(self) -> None:
        self.key_begins = [_NOT_IN_IMAGE] * self._key_size
        self.key_ends = [0] * self._key_size

    def add_statement(self, prefix: bytes, header: bytes, key: bytes, statement: bytes) -> None:
        """Add a record that holds a statement: DDL or JOURNAL."""
        if self._pending:
            self._flush(False)
        self._table = None
        self._key_size = 0
        self._key_prefix = key
        self._ids_at = NO_IDS
        write_string(self._open(prefix, header), statement)
        self.close()

    def _open(self, prefix: bytes, header: bytes) -> BytesWriter:
        out = self.out
        if len(out) > _WRITER_KEPT_BYTES:
            out = self.out = BytesWriter()
        out.truncate(0)
        out.write(prefix)
        write_long(out, self.next_seq)
        out.write(self._transaction)
        write_long(out, self.row_index)
        self._last_at = len(out)
        out.append(u8(0))  # last
        out.write(header)
        self._off_calendar_at = len(out)
        out.append(u8(0))  # no date off the calendar
        return out

    def note_off_calendar(self, column: i64, key_slot: i64, text: str) -> None:
        """Keep the text of a date that was written as null."""
        self.off_calendar.append(OffCalendar(self.image, column, key_slot, text))

    def close(self) -> None:
        """The record is complete, but for its `last` flag."""
        if len(self.off_calendar) > 0:
            self._insert_off_calendar()
        self._pending = True
        self.next_seq += 1
        self.row_index += 1

    def end_transaction(self) -> None:
        """Produce the record held back, as the transaction's last."""
        if self._pending:
            self._flush(True)

    def begin_batch(self) -> None:
        """Count from zero again."""
        self.messages = 0
        self.bytes_produced = 0
        self.ticks = []

    def _flush(self, last: bool) -> None:
        out = self.out
        if last:
            out[self._last_at] = u8(1)
        value = out.getvalue()
        if self._key_size == 0:
            key = self._key_prefix
        elif self._key_size == 1 and self.key_begin >= 0:
            key_out = self._key_out
            key_out.truncate(0)
            key_out.write(self._key_prefix)
            copy(key_out, value, self.key_begin, self.key_end - self.key_begin)
            key = key_out.getvalue()
        else:
            key = self._collect_key(value)
        if self._ids_at >= 0:
            at: i64 = self._last_at + 1 + self._ids_at
            ids = self._ids or self.sharding.keyspace_ids(value)
            value = value[:at] + ids + value[at:]
        if len(value) + len(key) > self.record_bytes_max:
            raise RecordTooLarge(self._too_large(len(value) + len(key)))
        if self._is_held:
            self._produce_held(self._held_is_first)
        self._is_held = True
        self._held_value = value
        self._held_key = key
        self._held_timestamp_ms = self._timestamp_ms
        self._held_is_first = self.messages == 0
        self._pending = False
        self.messages += 1
        self.bytes_produced += len(value) + len(key)

    def produce_rest(self) -> None:
        """Produce the batch's last record; its delivery report must agree with the first one's."""
        if self._is_held:
            self._produce_held(True)

    def _produce_held(self, is_reported: bool) -> None:
        # A report is a call into Python: only the batch's first and last record are worth it.
        callback = self.delivery_callback if is_reported else None
        value = self._held_value
        key = self._held_key
        self._is_held = False
        try:
            # Twice: with None in the fifth place the client drops the callback in the sixth.
            self.produce(self.topic, value, key, 0, callback, callback, self._held_timestamp_ms)
        except BufferError:
            self._produce_when_there_is_room(value, key, callback)

    def _produce_when_there_is_room(self, value: bytes, key: bytes, callback: object) -> None:
        on_full = self.on_full
        for _ in range(QUEUE_FULL_TRIES_MAX):
            if on_full is not None:
                on_full()
            try:
                self.produce(self.topic, value, key, 0, callback, callback, self._held_timestamp_ms)
            except BufferError:
                continue
            return
        raise QueueStayedFull(
            f"the Kafka client's queue stayed full over {QUEUE_FULL_TRIES_MAX} tries; "
            f"the broker takes no records"
        )

    def _too_large(self, size: i64) -> str:
        table = self._table
        name = "a statement" if table is None else f"a change of {table.database}.{table.table}"
        return (
            f"{name} makes a record of {size} bytes, and Kafka takes {self.record_bytes_max} at "
            "the most. Nothing of its transaction is visible. Leave the large column out or cut it "
            "by a filter rule, and start again; binlog_row_image=MINIMAL keeps it out of updates "
            "that leave it alone"
        )

    def _collect_key(self, value: bytes) -> bytes:
        """The key of a composite primary key, or of one with a date off the calendar."""
        pieces: list[bytes] = [self._key_prefix]
        for slot in range(self._key_size):
            begin: i64 = self.key_begin if slot == 0 else self.key_begins[slot]
            end: i64 = self.key_end if slot == 0 else self.key_ends[slot]
            if begin == _OFF_CALENDAR:
                pieces.append(self._key_texts[slot])
            elif begin < 0:
                raise UnsupportedEvent(
                    "a row image lacks a column of the primary key, so its record would have no "
                    "key: SET GLOBAL binlog_row_image=FULL on the source"
                )
            else:
                pieces.append(value[begin:end])
        return b"".join(pieces)

    def image_key(self) -> bytes:
        """The key of the row image that was written last, as a record's key has it."""
        value = self.out.getvalue()
        pieces: list[bytes] = [self._key_prefix]
        for slot in range(self._key_size):
            begin: i64 = self.key_begin if slot == 0 else self.key_begins[slot]
            end: i64 = self.key_end if slot == 0 else self.key_ends[slot]
            if begin < end:
                pieces.append(value[begin:end])
                continue
            for note in self.off_calendar:
                if note.key_slot == slot and note.image == self.image:
                    pieces.append(encode_string(note.text))  # noqa: PERF401 - compiled
        return b"".join(pieces)

    def touch(self, watch: KeyWatch) -> None:
        """Note the key of the row image that was written last."""
        watch.touch(self.image_key(), self.next_seq)

    def _insert_off_calendar(self) -> None:
        """Write the record again with the texts in its envelope; a key uses the text too."""
        notes = BytesWriter()
        write_long(notes, len(self.off_calendar))
        for note in self.off_calendar:
            write_long(notes, note.image)
            write_long(notes, note.column)
            text = BytesWriter()
            write_string(text, note.text.encode("utf-8"))
            notes.write(text.getvalue())
            if note.key_slot >= 0 and (note.image == 1 or not self._has_key_value(note.key_slot)):
                self._key_texts[note.key_slot] = text.getvalue()
                self._set_key_range(note.key_slot, _OFF_CALENDAR, 0)
        record = self.out.getvalue()
        self.out.truncate(self._off_calendar_at)
        self.out.write(notes.getvalue())
        self.out.write(record[self._off_calendar_at :])
        # All values moved by the length of the notes.
        moved: i64 = len(notes)
        for slot in range(self._key_size):
            begin: i64 = self.key_begin if slot == 0 else self.key_begins[slot]
            end: i64 = self.key_end if slot == 0 else self.key_ends[slot]
            if begin >= 0:
                self._set_key_range(slot, begin + moved, end + moved)
        self.sharding.move(moved)
        self.off_calendar = []

    def _has_key_value(self, slot: i64) -> bool:
        """Whether the record holds a value of the key's column: then one of the later image."""
        begin: i64 = self.key_begin if slot == 0 else self.key_begins[slot]
        end: i64 = self.key_end if slot == 0 else self.key_ends[slot]
        return 0 <= begin < end

    def _set_key_range(self, slot: i64, begin: i64, end: i64) -> None:
        if slot == 0:
            self.key_begin = begin
            self.key_end = end
        else:
            self.key_begins[slot] = begin
            self.key_ends[slot] = end

    def set_keyspace_ids(self, ids: bytes) -> None:
        """Say the ids of the row at hand: its record need not hold the sharding column."""
        self._ids = ids

    def note_value(self, column: ColumnPlan, begin: i64, end: i64) -> None:
        """Say where a value of the primary key, or of the sharding column, stands in the record."""
        if column.key_slot >= 0:
            self._set_key_range(column.key_slot, begin, end)
        if column.is_sharding:
            self.sharding.note(self.image, begin)
