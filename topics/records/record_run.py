"""Rows of one shard log for readers of their records: lists rather than an object for each row.

Typed for mypyc, and correct uncompiled too.
"""

from collections.abc import Callable
from typing import Any, Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from topics.records.record_reader import RecordReader
from topics.records.table_shape import TableShape
from topics.records.vevent import EventFields, VEvent

# No row of a stretch ends a transaction.
NO_ROW: Final = -1


def schema_id_in(record: bytes) -> int:
    """Return the schema id of a record whose header has been checked."""
    return int(read_i32_be(record, 1))


class RecordRun:
    """Successive rows of one shard log, whose envelopes have been read.

    The lists have an entry for each row; `ends`: whether it ends its transaction. Seqs are
    consecutive.
    """

    def __init__(
        self,
        shard: str,
        first_seq: int,
        reader_of: Callable[[int, str, int], RecordReader],
    ) -> None:
        """Begin without rows; `reader_of` is that of `RunReader`, and knows the rows' schemas."""
        self.shard: str = shard
        self.first_seq: int = first_seq
        self.records: list[bytes] = []
        self.offsets: list[int] = []
        self.times_us: list[int] = []
        self.ends: list[bool] = []
        self._reader_of: Callable[[int, str, int], RecordReader] = reader_of

    def shape_of(self, schema_id: int) -> TableShape:
        """Return the table version of a schema that a row of this run has."""
        shape = self._reader_of(schema_id, self.shard, self.offsets[0]).shape
        if shape is None:
            raise ValueError(f"schema {schema_id} is not one of rows")
        return shape

    def last_end(self, begin: i64, end: i64) -> i64:
        """Return the last of rows `begin` to `end` that ends its transaction, or NO_ROW."""
        at = end - 1
        while at >= begin:
            if self.ends[at]:
                return at
            at -= 1
        return NO_ROW

    def events(self, begin: int, end: int) -> list[VEvent]:
        """Return rows as events, of which all but the record is read when it is asked for."""
        return [self._event(at) for at in range(begin, end)]

    def _event(self, at: int) -> VEvent:
        record = self.records[at]
        event: Any = EventFields()
        event.seq = self.first_seq + at
        event.last = self.ends[at]
        event.shard = self.shard
        event.offset = self.offsets[at]
        event.late = False
        event.possible_duplicate = False
        event.record = record
        reader = self._reader_of(schema_id_in(record), self.shard, self.offsets[at])
        event.read_fields = reader.whole_of
        event.__class__ = VEvent
        found: VEvent = event
        return found
