"""Turns merged events into those that a subscriber receives, each with its position."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from event_token import KeyRange, ShardName, StreamPosition
from topics.errors import ProgressBroken
from topics.reading.key_filter import in_key_range
from topics.reading.merge import Stretch
from topics.reading.seen_before import SeenBefore
from topics.records.record_run import RecordRun
from topics.records.run_reader import Rows
from topics.records.vevent import VEvent
from topics.stream.places import Place, Ready, Taken, TakenRows, Trail


class Delivery:
    """Filters events by table and key range, marks late ones, and gives each its position.

    Shards that reach beyond `key_range` are filtered by keyspace id. `tables` are (database,
    table) pairs, None for all; events without a table (DDL) always pass. The last remaining
    event of a MySQL transaction has `last` set, even if later ones were filtered out.
    """

    def __init__(
        self,
        key_range: KeyRange,
        tables: frozenset[tuple[str, str]] | None,
        position: StreamPosition,
        unmarked: Mapping[str, SeenBefore] | None = None,
        *,
        rows_into: deque[Taken] | None = None,
    ) -> None:
        """Begin at a position: events older than its newest token are late.

        `unmarked`: shards to which the reader hopped without marks, and what it had seen by then.
        `rows_into`: where rows that were read for their records go, in stretches and of all tables;
        the same as `ready` of `run`. Where more than tables is left out, rows come as events.
        """
        self._rows_into = rows_into
        self._key_range = key_range
        self._unmarked = unmarked or {}
        self._tables = tables
        self.read_shards(position.shards)
        self._held: dict[str, VEvent] = {}  # by shard, until its transaction's next visible event
        self._trail: Trail | TakenRows = Trail(Place.of(position))
        tokens = (at.token for at in position.shards.values() if at.token is not None)
        self._newest_us = max((token.timestamp_us or 0 for token in tokens), default=0)

    def read_shards(self, shards: Iterable[str]) -> None:
        """Expect records of these shards from now on."""
        self._filters = {
            shard: self._key_range
            for shard in shards
            if not self._key_range.includes(ShardName.parse(shard).key_range)
        }
        self._passed = frozenset(shards) - self._filters.keys() - self._unmarked.keys()
        is_of_all_tables = self._tables is None or self._rows_into is not None
        self._passes_all = is_of_all_tables and self._passed == frozenset(shards)

    @property
    def place(self) -> Place:
        """The place after the last event made ready."""
        return self._trail.end()

    def run(self, stretches: Sequence[Stretch[Rows]], place: Place, ready: Ready) -> None:
        """Append what is to be delivered of rows in the merged order to `ready`.

        `place` is the end of the previous run. Its frontier is that at the start of the batch:
        events older than that are late. Appended events stay if this raises.
        """
        self._trail = trail = Trail(place)
        self._newest_us = max(self._newest_us, place.frontier_us)
        if not self._passes_whole(stretches):
            for event in _events_of(stretches):
                self._take(event, trail, ready)
        elif self._rows_into is not None:
            self._pass_records(stretches, self._rows_into)
        else:
            events = list(_events_of(stretches))
            trail.deliver(events)
            ready.extend(events)

    def _passes_whole(self, stretches: Sequence[Stretch[Rows]]) -> bool:
        """Tell whether all rows of a run are delivered as they are; the usual case."""
        if not self._passes_all or self._held or not stretches:
            return False
        rows, begin, _ = stretches[0]
        if self._is_any_late(_time_us(rows, begin)):
            return False
        rows, _, end = stretches[-1]
        self._newest_us = max(self._newest_us, _time_us(rows, end - 1))
        return True

    def _is_any_late(self, first_us: int) -> bool:
        """Tell whether a row of a run may be late: times of a run never decrease."""
        return first_us < self._newest_us

    def _pass_records(self, stretches: Sequence[Stretch[Rows]], into: deque[Taken]) -> None:
        for _, group in groupby(stretches, _is_of_records):
            place = self._trail.end()
            found = list(group)
            runs = [(rows, at, end) for rows, at, end in found if isinstance(rows, RecordRun)]
            if runs:
                self._trail = taken = TakenRows(runs, place)
                into.append(taken)
                continue
            self._trail = trail = Trail(place)
            for event in _events_of(found):
                if self._is_of_tables(event):
                    event.deliver(trail, trail.add(event))
                    into.append(event)

    def end_ranges(self, shards: Iterable[str]) -> None:
        """Raise ProgressBroken unless the ranges of these shards end with a transaction."""
        for held in (self._held[shard] for shard in shards if shard in self._held):
            raise ProgressBroken(
                f"shard {held.shard}, {held.gtid}: a batch ends inside this "
                f"transaction, at seq {held.seq}: its records do not have the same time",
            )

    def _take(self, read: VEvent, trail: Trail, ready: Ready) -> None:
        if self._tables is None and read.shard in self._passed:
            ready.append(self._delivered(read, trail))
            return
        event = self._visible(read)
        held = self._held.pop(read.shard, None)
        if held is not None:
            # The records of a shard's transaction are contiguous, so this one is of the same.
            if event is None and not read.last:
                self._held[read.shard] = held
                return
            ready.append(self._delivered(held if event else replace(held, last=True), trail))
        if event is not None:
            if event.last:
                ready.append(self._delivered(event, trail))
            else:
                self._held[read.shard] = event

    def _visible(self, event: VEvent) -> VEvent | None:
        if not self._is_of_tables(event):
            return None
        before = self._unmarked.get(event.shard)
        if before is not None:
            unseen = before.filtered(event)
            if unseen is None:
                return None
            event = unseen
        key_range = self._filters.get(event.shard)
        return event if key_range is None else in_key_range(event, key_range)

    def _is_of_tables(self, event: VEvent) -> bool:
        tables = self._tables
        return tables is None or not event.table or (event.database, event.table) in tables

    def _delivered(self, event: VEvent, trail: Trail) -> VEvent:
        late = self._is_late(event.timestamp_us)
        event.deliver(trail, trail.add(event), late=late)
        return event

    def _is_late(self, timestamp_us: int) -> bool:
        """Tell whether an event is older than one delivered before it."""
        if timestamp_us < self._newest_us:
            return True
        self._newest_us = timestamp_us
        return False


class UnmergedDelivery(Delivery):
    """The delivery of a stream that promises no order between shards: nothing is late."""

    def _is_late(self, timestamp_us: int) -> bool:  # noqa: ARG002 - the same for every time
        return False

    def _is_any_late(self, first_us: int) -> bool:  # noqa: ARG002 - as above
        return False


def _is_of_records(stretch: Stretch[Rows]) -> bool:
    return isinstance(stretch[0], RecordRun)


def _time_us(rows: Rows, at: int) -> int:
    return rows.times_us[at] if isinstance(rows, RecordRun) else rows[at].timestamp_us


def _events_of(stretches: Iterable[Stretch[Rows]]) -> Iterator[VEvent]:
    for rows, begin, end in stretches:
        yield from rows.events(begin, end) if isinstance(rows, RecordRun) else rows[begin:end]
