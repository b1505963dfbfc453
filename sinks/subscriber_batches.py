"""Arrow batches of a `Subscriber`'s stream, for sinks that run without Spark."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from event_token.errors import UsageError
from event_token.position import StreamPosition
from sinks.resume import PlannedBatch
from sinks.rule.task_changes import FollowedTables, TableChanges, changes_of
from topics.arrow.decoders import ArrowDecoder, TableDecoder
from topics.arrow.key_scope import KeyScope
from topics.arrow.output_columns import PRESENT_OP, SINK_COLUMNS, choose_columns
from topics.errors import ReaderClosed
from topics.records.vevent import Op, VEvent
from topics.stream.subscriber import StreamSubscriber

# The rest of a transaction is waited for in such steps once a batch is over.
_SHORT_S = 0.05
# Of the records of a batch: several copies of it are in memory while it is decoded and applied.
BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """The rows between two positions, with SINK_COLUMNS, in merged order."""

    rows: pa.Table
    begin: StreamPosition
    end: StreamPosition
    decoder: TableDecoder

    def planned(self, query_id: str, batch_id: int) -> PlannedBatch:
        """Return the batch under its number for a target."""
        return PlannedBatch(query_id, batch_id, self.begin, self.end)

    def changes(self, followed: FollowedTables | None = None) -> list[TableChanges]:
        """Return the last change of each key, per table; errors as those of `changes_of`."""
        return changes_of(self.rows, self.decoder, partitions=1, task=0, followed=followed)


class Batches:
    """Iterates over the batches of a subscriber's stream, until the subscriber is closed.

    A batch ends after `rows` events, after BYTES_MAX of their records, or when no event has come
    for `ms` milliseconds, and then with the transaction. With `lasts_ms` it ends after that time at
    the latest, also without any event: then it has no rows, and moves the position to where the
    stream is.

    An error of the subscriber loses nothing: after a Retry the iteration may continue. Not
    thread-safe.
    """

    def __init__(
        self,
        subscriber: StreamSubscriber,
        rows: int = 50_000,
        ms: int = 500,
        *,
        key_scope: KeyScope = KeyScope.KEYSPACE,
        lasts_ms: int | None = None,
    ) -> None:
        """Take a subscriber of which nobody else takes events. UsageError on bad limits.

        `key_scope`: as that of the target.
        """
        if rows < 1 or ms < 1 or (lasts_ms is not None and lasts_ms < 1):
            raise UsageError(f"rows={rows}, ms={ms}, lasts_ms={lasts_ms}: all must be positive")
        self._decoder = TableDecoder(subscriber.schema_text, key_scope)
        self._subscriber = subscriber
        self._rows = rows
        self._wait_s = ms / 1000
        self._lasts_s = math.inf if lasts_ms is None else lasts_ms / 1000
        output = replace(choose_columns(",".join((*SINK_COLUMNS, PRESENT_OP))), key_scope=key_scope)
        self._source = ArrowDecoder(output, subscriber.schema_text)
        self._events: list[VEvent] = []
        self._begin: StreamPosition | None = None

    def __iter__(self) -> Iterator[StreamBatch]:
        return self

    def __next__(self) -> StreamBatch:
        try:
            begin = self._begin or self._first_begin()
            self._fill()
        except ReaderClosed:
            raise StopIteration from None
        events, self._events = self._events, []
        end = events[-1].position if events else self._subscriber.position
        if end is None:
            raise UsageError("the subscriber's events have no position")
        self._begin = end
        return StreamBatch(self._table(events), begin, end, self._decoder)

    def _first_begin(self) -> StreamPosition:
        """Return where the stream begins: known at once, or with the first look at the logs."""
        while (begin := self._subscriber.position) is None:
            self._subscriber.take(0, self._wait_s)
        self._begin = begin
        return begin

    def _fill(self) -> None:
        """Take the events of the next batch; those of a fill that failed are kept."""
        events = self._events
        size = sum(len(event.record) for event in events)
        end_s = time.monotonic() + self._lasts_s
        while True:
            is_cut = bool(events) and not events[-1].last
            wanted = 1 if is_cut else self._rows - len(events)
            left_s = end_s - time.monotonic()
            if not is_cut and (wanted <= 0 or size >= BYTES_MAX or left_s <= 0):
                return
            taken = self._subscriber.take(wanted, min(self._wait_s, max(left_s, _SHORT_S)))
            events += taken
            size += sum(len(event.record) for event in taken)
            if not taken and events and not is_cut:
                return

    def _table(self, events: list[VEvent]) -> pa.Table:
        batch = self._source.decode([event.record for event in events], range(len(events)))
        columns = {name: batch[name] for name in batch.schema.names}
        ops = pa.array([event.op.value for event in events], pa.string())
        present = columns.pop(PRESENT_OP)
        is_ended = pc.fill_null(pc.not_equal(present, columns["op"]), False)
        ops = pc.if_else(is_ended, present, ops)
        # A key range sees one image, and so one key, of an UPDATE that crosses its border.
        is_cut = pc.not_equal(columns["op"], ops)
        old = pc.coalesce(columns["old_key_hash"], columns["key_hash"])
        is_gone = pc.and_(is_cut, pc.equal(ops, Op.DELETE.value))
        columns["key_hash"] = pc.if_else(is_gone, old, columns["key_hash"])
        columns["old_key_hash"] = pc.if_else(is_cut, None, columns["old_key_hash"])
        columns["op"] = ops
        columns["late"] = pa.array([event.late for event in events])
        columns["possible_duplicate"] = pa.array([event.possible_duplicate for event in events])
        is_history = pc.fill_null(pc.equal(present, Op.NONE.value), False)
        return pa.table(columns).filter(pc.invert(is_history))
