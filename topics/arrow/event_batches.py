"""Arrow record batches of a subscriber's stream, typed by table version."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from event_token.errors import UsageError
from event_token.position import StreamPosition
from topics.arrow.columns.record_groups import RecordGroup, RecordGroups
from topics.arrow.decoders import TableDecoder
from topics.arrow.output_columns import choose_columns
from topics.arrow.scoped_rows import cut_to_range
from topics.errors import ReaderClosed
from topics.records.event_decoder import LogRows
from topics.records.table_shape import TableShape
from topics.records.vevent import EventType, VEvent
from topics.stream.delivery import Taken, TakenRows
from topics.stream.subscriber import StreamSubscriber

# Beside the row images: what orders a row, and what NULL in an image may stand for.
BATCH_COLUMNS: Final = (
    *("op", "before", "after", "absent", "invalid_dates"),
    *("shard", "seq", "timestamp_us"),
)


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
    """Where a batch ends: after rows, bytes of records, or milliseconds after its first row.

    Inside a transaction, the latter is milliseconds without an event.
    """

    rows_max: int
    bytes_max: int
    wait_ms: int

    def __post_init__(self) -> None:
        """Refuse what is not positive."""
        for name in ("rows_max", "bytes_max", "wait_ms"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} {value!r} is not a positive number")


class _Filling:
    """The rows and events of the batch at hand, and what was taken after them."""

    def __init__(self, tables: frozenset[tuple[str, str]] | None) -> None:
        self._tables = tables
        self.rows = RecordGroups(self._is_wanted)
        self.others: list[VEvent] = []
        self.last: Taken | None = None  # what the batch ends with
        self.left: deque[Taken] = deque()

    def _is_wanted(self, run: LogRows, schema_id: int) -> bool:
        shape = run.shape_of(schema_id)
        return self._tables is None or (shape.database, shape.table) in self._tables

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in the batch yet."""
        return self.rows.rows == 0 and not self.others

    @property
    def ends_inside(self) -> bool:
        """Whether the batch would end inside a transaction."""
        return not self.is_empty and self.last is not None and not self.last.last

    @property
    def size(self) -> int:
        """Bytes of records in the batch."""
        return int(self.rows.size)

    def clear(self) -> None:
        """Begin the next batch, with what was taken after the last one."""
        self.rows.clear()
        self.others = []
        self.last = None

    def add_left(self) -> bool:
        """Add what was taken; return True, and keep the rest, when the batch is complete."""
        left = self.left
        while left and not self.rows.is_full:
            taken = left.popleft()
            if isinstance(taken, TakenRows):
                self._add_rows(taken)
            else:
                self._add_event(taken)
        return self.rows.is_full

    def _add_rows(self, taken: TakenRows) -> None:
        count, rows = 0, self.rows
        for run, begin, end in taken.stretches:
            count += rows.add(run, begin, end)
            if rows.is_full:
                break
        if count == taken.rows:
            self.last = taken
        elif count == 0:
            self.left.appendleft(taken)
        else:
            self.last, rest = taken.split(count)
            self.left.appendleft(rest)

    def _add_event(self, event: VEvent) -> None:
        rows, size = self.rows, len(event.record)
        if not rows.has_room(size):
            rows.is_full = True
            self.left.appendleft(event)
            return
        if event.type is EventType.ROW:
            rows.add_event(event)
        else:
            self.others.append(event)
            rows.size += size
            rows.is_full = event.type is not EventType.LAST_PK
        self.last = event


class EventBatches:
    """Iterates over the batches of a subscriber's stream.

    It ends when the subscriber is closed, or idle for `idle_timeout_s`. An error of the subscriber
    loses nothing: after a Retry the iteration may continue, also in another one that was made
    `after` this one. Not thread-safe.
    """

    def __init__(
        self,
        subscriber: StreamSubscriber,
        columns: Iterable[str] | None,
        limits: BatchLimits,
        idle_timeout_s: float | None,
        after: "EventBatches | None" = None,
    ) -> None:
        """Take a subscriber of which nobody else takes events. UsageError on unknown columns."""
        if isinstance(columns, str):
            raise UsageError(f"columns {columns!r}: pass a list of names")
        self._asked = ",".join(BATCH_COLUMNS if columns is None else columns)
        # A part of a shard may hold one side of an UPDATE: then its op says which.
        self._is_cut = str(subscriber.key_range) != "-"
        if "key_hash" in self._asked:
            raise UsageError("columns key_hash and old_key_hash are for sinks: ask for key")
        if "." not in self._asked:
            choose_columns(self._asked)
        self._subscriber = subscriber
        self._limits = limits
        self._idle_timeout_s = idle_timeout_s
        more = ("op", "key", "old_key") if self._is_cut else ()
        self._decoder = TableDecoder(subscriber.schema_text, more=more, columns=(self._asked,))
        self._filling: _Filling = _Filling(subscriber.tables)
        if after is not None:
            self._filling = after._filling  # noqa: SLF001 - of the same class

    def __iter__(self) -> Iterator[EventBatch]:
        return self

    def __next__(self) -> EventBatch:
        filling = self._filling
        filling.rows.limit(self._limits.rows_max, self._limits.bytes_max)
        try:
            self._fill(filling)
        except ReaderClosed:
            raise StopIteration from None
        last = filling.last
        if last is None or filling.is_empty:
            raise StopIteration
        filling.rows.is_full = True  # should decoding fail, the same batch is next
        tables = [
            self._table_rows(schema_id, group)
            for schema_id, group in filling.rows.groups.items()
            if group.records
        ]
        position, others = last.position, tuple(filling.others)
        if position is None:
            raise UsageError("the subscriber's events have no position")
        filling.clear()
        self._subscriber.give(last, is_all=not filling.left)
        return EventBatch(tuple(tables), others, position, last.last)

    def _fill(self, filling: _Filling) -> None:
        """Take what belongs to the next batch; that of a fill that failed is kept."""
        wait_s, since_s, has_looked = self._limits.wait_ms / 1000, time.monotonic(), False
        while True:
            was_empty, has_come = filling.is_empty, bool(filling.left)
            if filling.add_left():
                return
            is_empty, now_s = filling.is_empty, time.monotonic()
            # Rows that trickle must not hold back those before them. Only for the end of a
            # transaction, which rows of other tables may be, a batch waits while any come.
            if (was_empty and not is_empty) or (has_come and filling.ends_inside):
                since_s = now_s
            limit_s = self._idle_timeout_s if is_empty else wait_s
            left_s = wait_s if limit_s is None else min(wait_s, since_s + limit_s - now_s)
            if has_looked and left_s <= 0:
                return
            left_s = max(left_s, 0.0)
            filling.left += self._subscriber.take_records(left_s, is_handled=is_empty)
            # Beyond that time the stream was being opened, or its brokers did not answer.
            since_s += max(0.0, time.monotonic() - now_s - left_s)
            has_looked = True

    def _table_rows(self, schema_id: int, group: RecordGroup) -> TableRows:
        rows = self._decoder.decode(schema_id, group.records, offsets=group.offsets)
        if group.events:
            rows = _with_marks(rows, group.events, is_cut=self._is_cut)
        shape = self._decoder.shape(schema_id)
        names = choose_columns(self._asked, shape, schema_id).names
        return TableRows(shape.database, shape.table, shape, schema_id, rows.select(list(names)))


def _with_marks(
    rows: pa.RecordBatch, events: Mapping[int, VEvent], *, is_cut: bool
) -> pa.RecordBatch:
    """Return rows with what the stream says of those that came as events."""
    columns = {name: rows[name] for name in rows.schema.names}
    for name in ("late", "possible_duplicate"):
        if name in columns:
            marks = [at in events and getattr(events[at], name) for at in range(rows.num_rows)]
            columns[name] = pa.array(marks, pa.bool_())
    rows = pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)
    if not is_cut:
        return rows
    ops = rows["op"].to_pylist()
    for at, event in events.items():
        ops[at] = event.op.value
    return cut_to_range(rows, pa.array(ops, pa.string()))
