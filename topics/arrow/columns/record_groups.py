"""The rows of a batch, by table version, until the batch is full. Typed for mypyc."""

from collections.abc import Callable
from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from topics.records.event_decoder import LogRows
from topics.records.vevent import VEvent

_NO_SCHEMA: Final = -1


class RecordGroup:
    """The records of one table version, in the order of the stream, and their offsets.

    `events`: by index, those that came as events, which may be marked or cut by a key range.
    """

    def __init__(self) -> None:
        """Begin without records."""
        self.records: list[bytes] = []
        self.offsets: list[int] = []
        self.events: dict[int, VEvent] = {}


class RecordGroups:
    """Collects records of rows, those of each schema id in order.

    A batch is full at the end of the first transaction with which it has half of its limits, and
    before a row that would take it beyond one.
    """

    def __init__(self, is_wanted: Callable[[LogRows, int], bool]) -> None:
        """`is_wanted` returns whether rows of a run with a schema id are of tables asked for."""
        self._is_wanted: Callable[[LogRows, int], bool] = is_wanted
        self._wanted: dict[int, bool] = {}
        self.groups: dict[int, RecordGroup] = {}
        self.rows: i64 = 0
        self.size: i64 = 0  # bytes of all records
        self.is_full: bool = False
        self.rows_max: i64 = 0
        self.bytes_max: i64 = 0

    def limit(self, rows_max: int, bytes_max: int) -> None:
        """Set where the next batches end."""
        self.rows_max = rows_max
        self.bytes_max = bytes_max

    def clear(self) -> None:
        """Begin the next batch."""
        self.groups = {}
        self.rows = 0
        self.size = 0
        self.is_full = False

    def has_room(self, more: i64) -> bool:
        """Return whether a record of `more` bytes fits; the first one always does."""
        return self.rows < self.rows_max and (self.size == 0 or self.size + more <= self.bytes_max)

    def add(self, run: LogRows, begin: i64, end: i64) -> int:
        """Add rows `begin` to `end` of a run until the batch is full; return how many it took."""
        records = run.records
        ends = run.ends
        at = begin
        schema_id: i64 = _NO_SCHEMA
        group: RecordGroup | None = None
        while at < end and not self.is_full:
            record = records[at]
            found: i64 = i64(read_i32_be(record, 1))
            if found != schema_id:
                group = self._group(run, int(found))
                schema_id = found
            if group is not None:
                more: i64 = len(record)
                if not self.has_room(more):
                    self.is_full = True
                    break
                group.records.append(record)
                group.offsets.append(run.offsets[at])
                self.rows += 1
                self.size += more
            if ends[at]:
                self.end_transaction()
            at += 1
        return int(at - begin)

    def add_event(self, event: VEvent) -> None:
        """Add a row that was read as an event; the caller has made sure of its room."""
        schema_id = int(read_i32_be(event.record, 1))
        group = self.groups.get(schema_id)
        if group is None:
            group = self.groups[schema_id] = RecordGroup()
        group.events[len(group.records)] = event
        group.records.append(event.record)
        group.offsets.append(event.offset)
        self.rows += 1
        self.size += len(event.record)
        if event.last:
            self.end_transaction()

    def end_transaction(self) -> None:
        """Fill up the batch if it has half of what it may hold."""
        if 2 * self.rows >= self.rows_max or 2 * self.size >= self.bytes_max:
            self.is_full = True

    def _group(self, run: LogRows, schema_id: int) -> RecordGroup | None:
        """Return the records with a schema id; None where they are of tables not asked for."""
        group = self.groups.get(schema_id)
        if group is None:
            if schema_id not in self._wanted:
                self._wanted[schema_id] = self._is_wanted(run, schema_id)
            if self._wanted[schema_id]:
                group = self.groups[schema_id] = RecordGroup()
        return group
