"""Arrow record batches of a subscriber's stream, typed by table version."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from event_token.errors import UsageError
from event_token.position import StreamPosition
from spark_consumers.decoding.output_columns import choose_columns
from spark_consumers.decoding.record_batches import BatchDecoder
from spark_consumers.decoding.seen_rows import as_seen
from spark_consumers.errors import HiddenValue
from topics.errors import CorruptRecord, ReaderClosed
from topics.records.record_reader import BROKEN
from topics.records.table_shape import TableShape, shape_of
from topics.records.vevent import EventType, VEvent
from topics.records.wire import WIRE_HEADER_BYTES
from topics.stream.subscriber import StreamSubscriber

# Beside the row images: what orders a row, and what NULL in an image may stand for.
BATCH_COLUMNS: Final = (
    *("op", "before", "after", "absent", "off_calendar"),
    *("shard", "seq", "timestamp_us"),
)
# Events taken at a time.
_TAKE_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of one table version in a batch, in the order of the stream.

    `rows` has the columns that were asked for; `before` and `after` are structs of `shape`.
    """

    database: str
    table: str
    shape: TableShape
    schema_id: int
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What a stream holds between two positions.

    `tables` has a record batch for each table version, `events` all that is no row: statements
    (DDL), marks of reshards, progress of copies, skips. All rows precede the last of `events`; only
    LAST_PK lets a batch go on. `position`: start here to continue. `ends_transaction`: False when
    a transaction was cut, because it is larger than a batch may be.
    """

    tables: tuple[TableRows, ...]
    events: tuple[VEvent, ...]
    position: StreamPosition
    ends_transaction: bool

    @property
    def rows(self) -> int:
        """The number of rows of all tables."""
        return sum(each.rows.num_rows for each in self.tables)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Where a batch ends: after rows, bytes of records, or milliseconds without an event."""

    rows_max: int
    bytes_max: int
    wait_ms: int

    def __post_init__(self) -> None:
        """Refuse what is not positive."""
        for name in ("rows_max", "bytes_max", "wait_ms"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} {value!r} is not a positive number")


@dataclass(slots=True)
class _Filling:
    """The events of the batch at hand, by the header of their records, which names a schema."""

    groups: dict[bytes, list[VEvent]] = field(default_factory=dict)
    others: list[VEvent] = field(default_factory=list)
    last: VEvent | None = None
    rows: int = 0
    size: int = 0


class EventBatches:
    """Iterates over the batches of a subscriber's stream.

    It ends when the subscriber is closed, or idle for `idle_timeout_s`. An error of the subscriber
    loses nothing: after a Retry the iteration may continue. Not thread-safe.
    """

    def __init__(
        self,
        subscriber: StreamSubscriber,
        columns: Iterable[str] | None,
        limits: BatchLimits,
        idle_timeout_s: float | None,
    ) -> None:
        """Take a subscriber of which nobody else takes events. UsageError on unknown columns."""
        if isinstance(columns, str):
            raise UsageError(f"columns {columns!r}: pass a list of names")
        self._asked = ",".join(BATCH_COLUMNS if columns is None else columns)
        # A part of a shard may hold one side of an UPDATE: then its op tells which.
        self._is_cut = str(subscriber.key_range) != "-"
        self._decoded = self._asked + (",op,key,old_key" if self._is_cut else "")
        if "key_hash" in self._asked:
            raise UsageError("columns key_hash and old_key_hash are for sinks: ask for key")
        if "." not in self._asked:
            choose_columns(self._asked)
        self._subscriber = subscriber
        self._limits = limits
        self._idle_timeout_s = idle_timeout_s
        self._versions: dict[bytes, _Version | None] = {}
        self._left: list[VEvent] = []  # taken, but of the next batch
        self._filling = _Filling()
        self._is_filled = False

    def __iter__(self) -> Iterator[EventBatch]:
        return self

    def __next__(self) -> EventBatch:
        try:
            if not self._is_filled:
                self._fill()
        except ReaderClosed:
            raise StopIteration from None
        filled = self._filling
        last = filled.last
        position = None if last is None else last.position
        if last is None or position is None:
            raise StopIteration
        self._is_filled = True  # should decoding fail, the same batch is next
        tables = [self._table_rows(header, events) for header, events in filled.groups.items()]
        self._filling, self._is_filled = _Filling(), False
        return EventBatch(tuple(tables), tuple(filled.others), position, last.last)

    def _fill(self) -> None:
        """Take the events of the next batch; those of a fill that failed are kept."""
        wait_s, idle_s = self._limits.wait_ms / 1000, 0.0
        while True:
            taken, self._left = self._left, []
            if not taken:
                is_empty = self._filling.last is None
                taken = self._subscriber.take_records(_TAKE_MAX, wait_s, is_handled=is_empty)
                if taken:
                    idle_s = 0.0
                elif not is_empty:
                    return
                else:
                    idle_s += wait_s
                    if self._idle_timeout_s is not None and idle_s >= self._idle_timeout_s:
                        return
            if self._add(taken):
                return

    def _add(self, events: list[VEvent]) -> bool:
        """Add events; return True, and keep the others, when the batch is complete."""
        filling, limits = self._filling, self._limits
        rows, size, groups = filling.rows, filling.size, filling.groups
        end_rows, end_size = (limits.rows_max + 1) // 2, (limits.bytes_max + 1) // 2
        used, is_end = 0, False
        for event in events:
            record = event.record
            more = size + len(record)
            if rows >= limits.rows_max or (more > limits.bytes_max and size > 0):
                is_end = True
                break
            group = groups.get(record[:WIRE_HEADER_BYTES])
            if group is None:
                group = self._group(event)
            group.append(event)
            used += 1
            size = more
            if group is filling.others:
                is_end = event.type is not EventType.LAST_PK
            else:
                rows += 1
                is_end = (rows >= end_rows or size >= end_size) and event.last
            if is_end:
                break
        filling.rows, filling.size = rows, size
        if used:
            filling.last = events[used - 1]
        self._left = events[used:]
        return is_end

    def _group(self, event: VEvent) -> list[VEvent]:
        """Return the list for an event that is the first of its schema, or no row."""
        header = event.record[:WIRE_HEADER_BYTES]
        if self._version(header) is None:
            return self._filling.others
        return self._filling.groups.setdefault(header, [])

    def _version(self, header: bytes) -> "_Version | None":
        """Return the table version of records with a header; None: they are no rows."""
        if header not in self._versions:
            schema_id = int.from_bytes(header, "big")
            shape = shape_of(json.loads(self._subscriber.schema_text(schema_id)))
            self._versions[header] = None if shape is None else self._new(shape, schema_id)
        return self._versions[header]

    def _new(self, shape: TableShape, schema_id: int) -> "_Version":
        output = choose_columns(self._decoded, shape, schema_id)
        decoder = BatchDecoder(output, self._subscriber.schema_text, shard=None)
        names = choose_columns(self._asked, shape, schema_id).names
        return _Version(shape, schema_id, names, decoder)

    def _table_rows(self, header: bytes, events: list[VEvent]) -> TableRows:
        version = self._version(header)
        if version is None:
            raise UsageError("statements have no table")
        try:
            rows = version.decode(events, is_cut=self._is_cut)
        except BaseException:
            del self._versions[header]  # its columns may hold half a row
            raise
        shape = version.shape
        return TableRows(shape.database, shape.table, shape, version.schema_id, rows)


@dataclass(frozen=True, slots=True)
class _Version:
    """A table version, the columns that were asked for, and the decoder of its records."""

    shape: TableShape
    schema_id: int
    names: tuple[str, ...]
    decoder: BatchDecoder

    def decode(self, events: list[VEvent], *, is_cut: bool) -> pa.RecordBatch:
        """Return the rows of events. CorruptRecord, HiddenValue."""
        records = [event.record for event in events]
        try:
            rows = self.decoder.decode(records, range(len(records)))
        except HiddenValue as error:
            raise HiddenValue(f"{self._place(events)}: {error}") from error
        except BROKEN as error:
            raise CorruptRecord(
                f"{self._place(events)}: the record cannot be read: {error}"
            ) from error
        columns = {name: rows[name] for name in rows.schema.names}
        for name in ("late", "possible_duplicate"):
            if name in columns:
                columns[name] = pa.array([getattr(event, name) for event in events])
        rows = pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)
        if is_cut:
            rows = as_seen(rows, pa.array([event.op.value for event in events], pa.string()))
        return rows.select(list(self.names))

    def _place(self, events: list[VEvent]) -> str:
        event = events[int(self.decoder.loop.offset)]
        table = f"{self.shape.database}.{self.shape.table}"
        return f"{table}, shard {event.shard}, offset {event.offset}"
