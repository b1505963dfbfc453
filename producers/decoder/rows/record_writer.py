"""Writes one record at a time: its envelope, and around the row's images what belongs to them.

A transaction's last row is kept open until the transaction's end is known, so that its `last` flag
is right.
"""

from collections.abc import Callable
from typing import Final, cast

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from event_token.errors import UsageError
from producers.decoder.errors import NoKeyspaceId, QueueStayedFull, RecordTooLarge, UnsupportedEvent
from producers.decoder.rows.value_writer import InvalidDates, NotedDate
from producers.decoder.tables.plan import NO_IDS, ColumnPlan, KeyWatch, RowsPlan, TablePlan
from producers.decoder.tables.rows_plans import observe_rows
from producers.decoder.values.wire import copy, encode_string, read_raw, write_long, write_string
from topics.kafka.record_parts import MESSAGE_OVERHEAD_BYTES, cut_record
from topics.progress.record import GRID_US
from topics.records.envelope_table import encoded_additions
from topics.records.vevent import Value

_NOT_IN_IMAGE: Final = -1
_HAS_TEXT: Final = -2


class RecordKey:
    """Where the primary key's values are in the open record. Slot 0 is kept apart, for speed."""

    def __init__(self) -> None:
        self._size: i64 = 0
        self._prefix: bytes = b""
        self._begin: i64 = 0
        self._end: i64 = 0
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._texts: dict[int, bytes] = {}  # invalid dates, by slot
        self._out: BytesWriter = BytesWriter()

    def begin(self, prefix: bytes, size: i64) -> None:
        """Begin a record whose primary key has `size` columns."""
        self._prefix = prefix
        self._size = size
        if size:
            self._begin = _NOT_IN_IMAGE
            if size > 1:
                self._begins = [_NOT_IN_IMAGE] * size
                self._ends = [0] * size

    def note(self, slot: i64, begin: i64, end: i64) -> None:
        """Note where the value of a slot is. The later image's value replaces the earlier one's."""
        if slot == 0:
            self._begin = begin
            self._end = end
        else:
            self._begins[slot] = begin
            self._ends[slot] = end

    def begin_of(self, slot: i64) -> i64:
        """Return where a slot's value begins in the record; negative where it has none."""
        begin: i64 = self._begin if slot == 0 else self._begins[slot]
        return begin

    def _end_of(self, slot: i64) -> i64:
        end: i64 = self._end if slot == 0 else self._ends[slot]
        return end

    def note_date(self, note: NotedDate) -> None:
        """Use the text of an invalid date, unless the record has a value of the later image."""
        slot = note.key_slot
        begin = self.begin_of(slot)
        if note.image == 1 or not 0 <= begin < self._end_of(slot):
            self._texts[slot] = encode_string(note.text)
            self.note(slot, _HAS_TEXT, 0)

    def shift(self, by: i64) -> None:
        """All values of the record have moved by that many bytes."""
        for slot in range(self._size):
            begin = self.begin_of(slot)
            if begin >= 0:
                self.note(slot, begin + by, self._end_of(slot) + by)

    def encoded(self, record: bytes) -> bytes:
        """Return the key of a complete record."""
        if self._size == 0:
            return self._prefix
        if self._size == 1 and self._begin >= 0:
            out = self._out
            out.truncate(0)
            out.write(self._prefix)
            copy(out, record, self._begin, self._end - self._begin)
            return out.getvalue()
        pieces: list[bytes] = [self._prefix]
        for slot in range(self._size):
            begin = self.begin_of(slot)
            if begin == _HAS_TEXT:
                pieces.append(self._texts[slot])
            elif begin < 0:
                raise UnsupportedEvent(
                    "a row image lacks a column of the primary key, so its record would have no "
                    "key: set binlog_row_image=FULL on the source"
                )
            else:
                pieces.append(record[begin : self._end_of(slot)])
        return b"".join(pieces)

    def of_image(self, record: bytes, image: i64, dates: list[NotedDate]) -> bytes:
        """Return the key of the row image that was written last; a partial one may lack values."""
        pieces: list[bytes] = [self._prefix]
        for slot in range(self._size):
            begin = self.begin_of(slot)
            end = self._end_of(slot)
            if begin < end:
                pieces.append(record[begin:end])
                continue
            for note in dates:
                if note.key_slot == slot and note.image == image:
                    pieces.append(encode_string(note.text))  # noqa: PERF401 - compiled
        return b"".join(pieces)


# How often a full queue is waited for. `on_full` waits about 0.1 s, so a broker has minutes.
QUEUE_FULL_TRIES_MAX: Final = 3000

Produce = Callable[..., None]


def _closed(*_record: object) -> None:
    """Replace `produce` after `close`."""
    raise UsageError("this decoder is closed")


class RecordOutput:
    """The way of records to one topic. `messages` and `bytes_produced` count the open batch.

    A record is one of `messages` also when it goes in parts.
    """

    def __init__(
        self, topic: str, produce: Produce, on_full: Callable[[], None], on_delivery: object
    ) -> None:
        """`on_delivery` is passed with the first and last record of a batch."""
        self.messages: i64 = 0
        self.bytes_produced: i64 = 0
        self.in_parts: list[tuple[int, int]] = []  # (seq, parts) of the open batch
        self._topic: str = topic
        self._produce: Produce = produce
        self._on_full: Callable[[], None] = on_full
        self._on_delivery: object = on_delivery
        self._is_held: bool = False
        self._value: bytes = b""
        self._key: bytes = b""
        self._timestamp_ms: i64 = 0
        self._is_first: bool = False

    def add(self, value: bytes, key: bytes, timestamp_ms: i64) -> None:
        """Take a complete record and produce the one before it."""
        if self._is_held:
            self._produce_held(self._is_first)
        self._is_held = True
        self._value = value
        self._key = key
        self._timestamp_ms = timestamp_ms
        self._is_first = self.messages == 0
        self.messages += 1
        self.bytes_produced += len(value) + len(key)

    def add_parts(
        self,
        seq: i64,
        key: bytes,
        timestamp_ms: i64,
        size: i64,
        parts: list[tuple[bytes, list[tuple[str, bytes]]]],
    ) -> None:
        """Produce a complete record of `size` bytes in parts, behind the one before it."""
        if self._is_held:
            self._produce_held(self._is_first)
        count: i64 = 0
        for value, headers in parts:
            count += 1  # noqa: SIM113 - enumerate() would not count in native integers
            # Any of these two may be the batch's first or last message.
            is_end = count == 1 or count == len(parts)
            callback = self._on_delivery if is_end else None
            try:
                self._produce(self._topic, value, key, 0, callback, callback, timestamp_ms, headers)
            except BufferError:
                self._wait_and_produce(value, key, callback, timestamp_ms, headers)
        self.in_parts.append((int(seq), len(parts)))
        self.messages += 1
        self.bytes_produced += size

    def produce_rest(self) -> None:
        """Produce the batch's last record."""
        if self._is_held:
            self._produce_held(True)

    def begin_batch(self) -> None:
        """Count from zero again."""
        self.messages = 0
        self.bytes_produced = 0
        self.in_parts = []

    def close(self) -> None:
        """Drop the reference so that a retained decoder cannot keep the Kafka client alive."""
        self._produce = _closed

    def _produce_held(self, is_reported: bool) -> None:
        # A report is a call into Python: only a batch's first and last record are worth it.
        callback = self._on_delivery if is_reported else None
        value = self._value
        key = self._key
        self._is_held = False
        try:
            # Passed twice: with None as the fifth argument the client ignores the sixth.
            self._produce(self._topic, value, key, 0, callback, callback, self._timestamp_ms)
        except BufferError:
            self._wait_and_produce(value, key, callback, self._timestamp_ms, [])

    def _wait_and_produce(
        self,
        value: bytes,
        key: bytes,
        callback: object,
        timestamp_ms: i64,
        headers: list[tuple[str, bytes]],
    ) -> None:
        for _ in range(QUEUE_FULL_TRIES_MAX):
            self._on_full()
            try:
                self._produce(self._topic, value, key, 0, callback, callback, timestamp_ms, headers)
            except BufferError:
                continue
            return
        raise QueueStayedFull(
            f"the Kafka client's queue stayed full for {QUEUE_FULL_TRIES_MAX} tries; "
            f"the broker accepts no records"
        )


_NO_IMAGE: Final = 0  # or one without the column
_IS_NULL: Final = -1


class KeyspaceIds:
    """Where the sharding column's values are in the open record, and the ids they give."""

    def __init__(self) -> None:
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


class TransactionStamp:
    """The shared bytes, Kafka's timestamp, and the ticks of the cells that records begin."""

    def __init__(self, shard: str, last_cell_us: i64) -> None:
        """`last_cell_us`: start of the grid cell of the log's last record, -1 for none."""
        self.encoded: bytes = b""
        self.timestamp_ms: i64 = 0
        self.ticks: list[tuple[int, int]] = []
        self._shard: bytes = shard.encode("utf-8")
        self._grid_us: i64 = GRID_US
        self._last_cell_us: i64 = last_cell_us
        self._timestamp_us: i64 = -1
        self._out: BytesWriter = BytesWriter()

    def begin_transaction(self, timestamp_us: i64, next_seq: i64) -> None:
        """Set the time of the records from `next_seq` on."""
        if timestamp_us != self._timestamp_us:
            self._timestamp_us = timestamp_us
            self.timestamp_ms = timestamp_us // 1000
            cell = timestamp_us - timestamp_us % self._grid_us
            if cell != self._last_cell_us:
                self._last_cell_us = cell
                self.ticks.append((cell, next_seq))

    def begin(self) -> BytesWriter:
        """Begin to encode the shared bytes; only `Transaction.write_stamp` writes the rest."""
        out = self._out
        out.truncate(0)
        write_long(out, self._timestamp_us)
        write_string(out, self._shard)
        return out

    def end(self) -> None:
        """The shared bytes are complete."""
        self.encoded = self._out.getvalue()


# Of a key that a message shows: it is read on one line.
_KEY_CHARS_MAX: Final = 100
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
        message_bytes_max: i64 = 0,
    ) -> None:
        """`next_seq`: of the next record. `record_bytes_max`: of key and value together.

        `message_bytes_max`: what is larger goes in parts that fit; 0: nothing does.
        """
        self.output: RecordOutput = output
        self.stamp: TransactionStamp = stamp
        self.next_seq: i64 = next_seq
        self.out: BytesWriter = BytesWriter()
        self.dates: InvalidDates = InvalidDates()
        self.key: RecordKey = RecordKey()
        self.keyspace_ids: KeyspaceIds = KeyspaceIds()
        self.watch: KeyWatch | None = None  # of the open row's table
        self._record_bytes_max: i64 = record_bytes_max
        self._message_bytes_max: i64 = message_bytes_max
        # Of key and value of a record that goes as it is.
        self._whole_bytes_max: i64 = record_bytes_max
        if message_bytes_max > 0:
            self._whole_bytes_max = min(
                record_bytes_max, message_bytes_max - MESSAGE_OVERHEAD_BYTES
            )
        self.row_index: i64 = 0
        self._table: TablePlan | None = None  # of the open row
        self._is_pending: bool = False  # a record waits for its `last` flag
        self._last_at: i64 = 0
        self._dates_at: i64 = 0
        # Fields that later versions have added to the envelope, at their defaults.
        self._added: bytes = encoded_additions()
        self._has_added: bool = len(self._added) > 0

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
        if self._has_added:
            out.write(self._added)
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
        if len(value) + len(key) > self._whole_bytes_max:
            self._add_large(value, key)
        else:
            self.output.add(value, key, self.stamp.timestamp_ms)
        self._is_pending = False

    def _add_large(self, value: bytes, key: bytes) -> None:
        """Hand over a record that does not fit into one message. RecordTooLarge if none may."""
        size = len(value) + len(key)
        if size > self._record_bytes_max:
            table = self._table
            tables = () if table is None else ((table.database, table.table),)
            raise RecordTooLarge(self._too_large(size), tables)
        # The record's seq: `close` has counted it.
        self.output.add_parts(
            self.next_seq - 1,
            key,
            self.stamp.timestamp_ms,
            size,
            cut_record(value, len(key), int(self._message_bytes_max)),
        )

    def _shown_key(self, table: TablePlan) -> str:
        """Return the primary key of the row that was written last, for messages."""
        record = self.out.getvalue()
        shown: list[str] = []
        for index in table.primary_key:
            column = table.columns[index]
            at = self.key.begin_of(column.key_slot)
            if at >= 0:
                shown.append(f"{column.name}={read_raw(record, at, column.form)!r}")
        return ", ".join(shown)[:_KEY_CHARS_MAX] or "without a primary key"

    def _too_large(self, size: i64) -> str:
        table = self._table
        name = "a statement"
        if table is not None:
            name = f"a change of {table.database}.{table.table} ({self._shown_key(table)})"
        return (
            f"{name} gives a record of {size} bytes, and at most {self._record_bytes_max} are "
            "written. Nothing of its transaction is visible. Raise [reader] record_bytes_max for "
            "the producer and all readers; or leave out the large column or truncate it by a "
            "filter rule, and start again; binlog_row_image=MINIMAL keeps it out of updates that "
            "do not change it"
        )
