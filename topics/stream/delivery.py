"""Turns merged events into those that a subscriber receives, each with its position.

Positions are built on demand, because few of them are used.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol, Self

from event_token import EventToken, KeyRange, ShardName, ShardPosition, StreamPosition
from topics.errors import ProgressBroken
from topics.reading.merge import Stretch
from topics.reading.row_filters import ReadBeforeHop, in_key_range
from topics.records.event_decoder import NO_ROW, LogRows, Step, deliver_run, token_of_record
from topics.records.vevent import TokenText, VEvent


class _At:
    """A place in one shard log: like ShardPosition, but with an unparsed token.

    Bytes are a record with the token.
    """

    __slots__ = ("_position", "offset", "seq", "token")

    def __init__(self, offset: int, seq: int, token: TokenText | EventToken | bytes | None) -> None:
        self.offset = offset
        self.seq = seq
        self.token = token
        self._position: ShardPosition | None = None

    def position(self) -> ShardPosition:
        """Return the place with its token, always the same object: many positions share it."""
        if self._position is None:
            token = self.token
            token = token_of_record(token) if isinstance(token, bytes) else token
            self._position = ShardPosition(
                self.offset, self.seq, token.token if isinstance(token, TokenText) else token
            )
        return self._position


@dataclass(frozen=True, slots=True)
class Place:
    """A stream position that is built on demand: every event has one, but few are used."""

    epoch: int
    frontier_us: int
    shards: Mapping[str, _At]

    @classmethod
    def of(cls, position: StreamPosition) -> "Place":
        """Return the place of a position."""
        shards = {s: _At(at.offset, at.seq, at.token) for s, at in position.shards.items()}
        return cls(position.epoch, position.frontier_us, shards)

    def position(self) -> StreamPosition:
        """Build the position."""
        return StreamPosition(
            self.epoch,
            self.frontier_us,
            {shard: at.position() for shard, at in self.shards.items()},
        )

    def settled_at(self, epoch: int, frontier_us: int) -> "Place":
        """Return the same place in the logs, with this epoch and frontier."""
        return Place(epoch, frontier_us, self.shards)

    def past(self, shard: str, offset: int, seq: int) -> "Place":
        """Return the place with a shard moved to the end of what was read of it."""
        at = _At(offset, seq, self.shards[shard].token)
        return Place(self.epoch, self.frontier_us, {**self.shards, shard: at})

    def moved_to(self, position: StreamPosition) -> "Place":
        """Return the place of a position without tokens, with the last tokens known here."""
        shards = {}
        for shard, at in position.shards.items():
            before = self.shards.get(shard)
            token = at.token or (before.token if before else None)
            shards[shard] = _At(at.offset, at.seq, token)
        return Place(position.epoch, position.frontier_us, shards)


class Trail:
    """The places after each event of a short run, built on demand.

    Events keep their trail alive, so runs are short.
    """

    def __init__(self, base: Place) -> None:
        """Begin before the first event of the run."""
        # The place that was asked for last, and after how many events it is: the next one is near.
        self._last = (0, base)
        self._base = base
        self._steps: list[Step] = []

    def add(self, event: VEvent) -> int:
        """Append a delivered event; return its count, for `after`."""
        token = event.token_text if event.last else None
        self._steps.append((event.shard, event.offset + 1, event.seq, token))
        return len(self._steps)

    def deliver(self, events: list[VEvent]) -> None:
        """Give the events of a whole run, which were just read, their places."""
        deliver_run(events, self, self._steps)

    def after(self, count: int) -> Place:
        """Return the place after the first `count` events."""
        begin, place = self._last  # at once: places are asked for from any thread
        if begin > count:
            begin, place = 0, self._base
        ends: dict[str, Step] = {}
        tokens: dict[str, TokenText] = {}
        for step in self._steps[begin:count]:
            ends[step[0]] = step
            if step[3] is not None:
                tokens[step[0]] = step[3]
        shards = dict(place.shards)
        for shard, (_, offset, seq, _) in ends.items():
            shards[shard] = _At(offset, seq, tokens.get(shard) or shards[shard].token)
        place = Place(place.epoch, place.frontier_us, shards)
        self._last = (count, place)
        return place

    def position_after(self, count: int) -> StreamPosition:
        """Return the position after the first `count` events."""
        return self.after(count).position()

    def end(self) -> Place:
        """Return the place after the whole run."""
        return self.after(len(self._steps))


class TakenRows:
    """Successive rows of a merged stream that were read for their records; none of them is late.

    Each has a place, which is built on demand.
    """

    __slots__ = ("_base", "rows", "stretches")

    def __init__(self, stretches: Sequence[Stretch[LogRows]], base: Place) -> None:
        """Take rows in the order of the stream; `base` is the place before the first."""
        self.stretches = stretches
        self.rows = sum([end - begin for _, begin, end in stretches])
        self._base = base

    def after(self, count: int) -> Place:
        """Return the place after the first `count` rows."""
        ends: dict[str, tuple[LogRows, int]] = {}
        tokens: dict[str, bytes] = {}
        for run, begin, end in cut_stretches(self.stretches, 0, count):
            ends[run.shard] = (run, end - 1)
            last = run.last_end(begin, end)
            if last != NO_ROW:
                tokens[run.shard] = run.records[last]
        shards = dict(self._base.shards)
        for shard, (run, at) in ends.items():
            token = tokens.get(shard) or shards[shard].token
            shards[shard] = _At(run.offsets[at] + 1, run.first_seq + at, token)
        return Place(self._base.epoch, self._base.frontier_us, shards)

    def end(self) -> Place:
        """Return the place after all rows."""
        return self.after(self.rows)

    @property
    def last(self) -> bool:
        """Whether the last row ends its transaction."""
        run, _, end = self.stretches[-1]
        return run.ends[end - 1]

    @property
    def position(self) -> StreamPosition:
        """The position after all rows."""
        return self.end().position()

    @property
    def place(self) -> tuple[Self, int]:
        """The run and the number of its rows, as those of an event."""
        return self, self.rows

    def position_after(self, count: int) -> StreamPosition:
        """Return the position after the first `count` rows."""
        return self.after(count).position()

    def split(self, count: int) -> "tuple[TakenRows, TakenRows]":
        """Return the first `count` rows, and those that follow; there are some of both."""
        first = TakenRows(cut_stretches(self.stretches, 0, count), self._base)
        rest = cut_stretches(self.stretches, count, self.rows)
        return first, TakenRows(rest, first.end())


# What a reader of records takes: stretches of rows, and single events that are not plain rows.
Taken = TakenRows | VEvent


class Ready(Protocol):
    """Where events are put that are ready for the caller; a deque of them or of more."""

    def append(self, event: VEvent, /) -> None:
        """Add an event."""

    def extend(self, events: Iterable[VEvent], /) -> None:
        """Add events, in order."""

    def __len__(self) -> int:
        """Return how many are ready."""


def cut_stretches(
    stretches: Iterable[Stretch[LogRows]], first: int, end: int
) -> list[Stretch[LogRows]]:
    """Return rows `first` to `end` of stretches."""
    found: list[Stretch[LogRows]] = []
    passed = 0
    for run, begin, last in stretches:
        if passed >= end:
            break
        from_row, to_row = max(begin, begin + first - passed), min(last, begin + end - passed)
        if from_row < to_row:
            found.append((run, from_row, to_row))
        passed += last - begin
    return found


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
        unmarked: Mapping[str, ReadBeforeHop] | None = None,
        *,
        rows_into: deque[Taken] | None = None,
        marks_late: bool = True,
    ) -> None:
        """Begin at a position: events older than its newest token are late.

        `unmarked`: shards to which the reader hopped without marks, and what it had seen by then.
        `rows_into`: where rows that were read for their records go, in stretches and of all tables;
        the same as `ready` of `run`. Where more than tables is left out, rows come as events.
        `marks_late`: False for a stream that promises no order between shards.
        """
        self._marks_late = marks_late
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
    def takes_records(self) -> bool:
        """Whether rows are to be read for their records."""
        return self._rows_into is not None

    @property
    def place(self) -> Place:
        """The place after the last event made ready."""
        return self._trail.end()

    def run(self, stretches: Sequence[Stretch[LogRows]], place: Place, ready: Ready) -> None:
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

    def _passes_whole(self, stretches: Sequence[Stretch[LogRows]]) -> bool:
        """Return whether all rows of a run are delivered as they are; the usual case."""
        if not self._passes_all or self._held or not stretches:
            return False
        rows, begin, _ = stretches[0]
        if self._is_any_late(rows.times_us[begin]):
            return False
        rows, _, end = stretches[-1]
        self._newest_us = max(self._newest_us, rows.times_us[end - 1])
        return True

    def _is_any_late(self, first_us: int) -> bool:
        """Return whether a row of a run may be late: times of a run never decrease."""
        return self._marks_late and first_us < self._newest_us

    def _pass_records(self, stretches: Sequence[Stretch[LogRows]], into: deque[Taken]) -> None:
        for are_records, group in groupby(stretches, lambda stretch: stretch[0].are_records):
            place = self._trail.end()
            found = list(group)
            if are_records:
                self._trail = taken = TakenRows(found, place)
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
        """Return whether an event is older than one delivered before it."""
        if timestamp_us < self._newest_us:
            return self._marks_late
        self._newest_us = timestamp_us
        return False


def _events_of(stretches: Iterable[Stretch[LogRows]]) -> Iterator[VEvent]:
    for rows, begin, end in stretches:
        yield from rows.events(begin, end)
