"""Turns merged events into those that a subscriber receives, each with its position."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from event_token import EventToken, KeyRange, ShardName, ShardPosition, StreamPosition
from topics.errors import ProgressBroken
from topics.reading.key_filter import in_key_range
from topics.reading.seen_before import SeenBefore
from topics.records.run_reader import Step, deliver_records, deliver_run, token_of_record
from topics.records.vevent import TokenText, VEvent


class _At(NamedTuple):
    """A place in one shard log: like ShardPosition, but with an unparsed token.

    Bytes are a record with the token.
    """

    offset: int
    seq: int
    token: TokenText | EventToken | bytes | None

    def position(self) -> ShardPosition:
        """Return the place with its token."""
        token = token_of_record(self.token) if isinstance(self.token, bytes) else self.token
        return ShardPosition(
            self.offset, self.seq, token.token if isinstance(token, TokenText) else token
        )


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
        self._base = base
        self._steps: list[Step] = []

    def add(self, event: VEvent) -> int:
        """Append a delivered event; return its count, for `after`."""
        token = event.token_text if event.last else None
        self._steps.append((event.shard, event.offset + 1, event.seq, token))
        return len(self._steps)

    def deliver(self, events: list[VEvent], *, for_records: bool) -> None:
        """Give the events of a whole run, which were just read, their places."""
        give = deliver_records if for_records else deliver_run
        give(events, self, self._steps)

    def after(self, count: int) -> Place:
        """Return the place after the first `count` events."""
        ends: dict[str, Step] = {}
        tokens: dict[str, TokenText | bytes] = {}
        for step in islice(self._steps, count):
            ends[step[0]] = step
            if step[3] is not None:
                tokens[step[0]] = step[3]
        shards = dict(self._base.shards)
        for shard, (_, offset, seq, _) in ends.items():
            shards[shard] = _At(offset, seq, tokens.get(shard) or shards[shard].token)
        return Place(self._base.epoch, self._base.frontier_us, shards)

    def position_after(self, count: int) -> StreamPosition:
        """Return the position after the first `count` events."""
        return self.after(count).position()

    def end(self) -> Place:
        """Return the place after the whole run."""
        return self.after(len(self._steps))


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
        for_records: bool = False,
    ) -> None:
        """Begin at a position: events older than its newest token are late.

        `unmarked`: shards to which the reader hopped without marks, and what it had seen by then.
        `for_records`: as of `RunReader`.
        """
        self._for_records = for_records
        self._key_range = key_range
        self._unmarked = unmarked or {}
        self._tables = tables
        self.read_shards(position.shards)
        self._held: dict[str, VEvent] = {}  # by shard, until its transaction's next visible event
        self._trail = Trail(Place.of(position))
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
        self._passes_all = self._tables is None and self._passed == frozenset(shards)

    @property
    def place(self) -> Place:
        """The place after the last event made ready."""
        return self._trail.end()

    def run(self, events: list[VEvent], place: Place, ready: deque[VEvent]) -> None:
        """Append what is to be delivered of a run of events to `ready`.

        `place` is the end of the previous run. Its frontier is that at the start of the batch:
        events older than that are late. Appended events stay if this raises.
        """
        self._trail = Trail(place)
        self._newest_us = max(self._newest_us, place.frontier_us)
        if self._passes_whole(events):
            self._trail.deliver(events, for_records=self._for_records)
            ready.extend(events)
            return
        for event in events:
            self._take(event, ready)

    def _passes_whole(self, events: Sequence[VEvent]) -> bool:
        """Tell whether all events of a run are delivered as they are; the usual case."""
        if not self._passes_all or not events or self._is_any_late(events):
            return False
        self._newest_us = max(self._newest_us, events[-1].timestamp_us)
        return True

    def _is_any_late(self, events: Sequence[VEvent]) -> bool:
        """Tell whether an event of a run may be late: times of a run never decrease."""
        return events[0].timestamp_us < self._newest_us

    def end_ranges(self, shards: Iterable[str]) -> None:
        """Raise ProgressBroken unless the ranges of these shards end with a transaction."""
        for held in (self._held[shard] for shard in shards if shard in self._held):
            raise ProgressBroken(
                f"shard {held.shard}, {held.gtid}: a batch ends inside this "
                f"transaction, at seq {held.seq}: its records do not have the same time",
            )

    def _take(self, read: VEvent, ready: deque[VEvent]) -> None:
        if self._tables is None and read.shard in self._passed:
            ready.append(self._delivered(read))
            return
        event = self._visible(read)
        held = self._held.pop(read.shard, None)
        if held is not None:
            # The records of a shard's transaction are contiguous, so this one is of the same.
            if event is None and not read.last:
                self._held[read.shard] = held
                return
            ready.append(self._delivered(held if event else replace(held, last=True)))
        if event is not None:
            if event.last:
                ready.append(self._delivered(event))
            else:
                self._held[read.shard] = event

    def _visible(self, event: VEvent) -> VEvent | None:
        tables = self._tables
        if tables is not None and event.table and (event.database, event.table) not in tables:
            return None
        before = self._unmarked.get(event.shard)
        if before is not None:
            unseen = before.filtered(event)
            if unseen is None:
                return None
            event = unseen
        key_range = self._filters.get(event.shard)
        return event if key_range is None else in_key_range(event, key_range)

    def _delivered(self, event: VEvent) -> VEvent:
        late = self._is_late(event.timestamp_us)
        count = self._trail.add(event)
        event.deliver(self._trail, count, late=late)
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

    def _is_any_late(self, events: Sequence[VEvent]) -> bool:  # noqa: ARG002 - as above
        return False
