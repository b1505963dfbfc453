"""Turns merged records into the events that a subscriber sees, each with its position."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from event_token import KeyRange, ShardPosition, StreamPosition
from topics.codec import VEventCodec
from topics.reading.key_filter import in_key_range
from topics.reading.merge import RawRecord
from topics.vevent import TokenText, VEvent


class _Step(NamedTuple):
    """One delivered event: how it moves its shard."""

    shard: str
    next_offset: int
    seq: int
    token: TokenText | None  # None inside a MySQL transaction: that of the one before stays


class Trail:
    """The positions after each event of a short run, made only for those that are asked for.

    Events keep their trail alive, so a run is kept short.
    """

    def __init__(self, base: StreamPosition) -> None:
        """Begin where nothing of the run has been delivered."""
        self._base = base
        self._steps: list[_Step] = []

    def add(self, step: _Step) -> int:
        """Append a delivered event; the number is what `after` wants."""
        self._steps.append(step)
        return len(self._steps)

    def after(self, count: int) -> StreamPosition:
        """Where a reader goes on after the first `count` events."""
        moved: dict[str, _Step] = {}
        tokens: dict[str, TokenText] = {}
        for step in self._steps[:count]:
            moved[step.shard] = step
            if step.token is not None:
                tokens[step.shard] = step.token
        shards = dict(self._base.shards)
        for shard, step in moved.items():
            token = tokens[shard].token if shard in tokens else shards[shard].token
            shards[shard] = ShardPosition(step.next_offset, step.seq, token)
        return StreamPosition(self._base.epoch, self._base.frontier_us, shards)

    def end(self) -> StreamPosition:
        """Where a reader goes on after all events of the run."""
        return self.after(len(self._steps))


class Delivery:
    """Decodes records, leaves out what was not asked for, and marks what is late.

    `filters` holds the key range for the shards of which only a part is wanted. `tables` are
    (database, table) pairs, None for all; events without a table (DDL) pass always. The last
    event that is left of a MySQL transaction has `last` set, whatever was left out behind it.
    """

    def __init__(
        self,
        codec: VEventCodec,
        filters: Mapping[str, KeyRange],
        tables: frozenset[tuple[str, str]] | None,
        position: StreamPosition,
    ) -> None:
        """Begin at a position: what is older than the newest token in it comes late."""
        self._codec = codec
        self._filters = filters
        self._tables = tables
        self._held: VEvent | None = None
        self._trail = Trail(position)
        tokens = (at.token for at in position.shards.values() if at.token is not None)
        self._newest_us = max((token.timestamp_us or 0 for token in tokens), default=0)

    @property
    def position(self) -> StreamPosition:
        """Where a reader goes on after the last event that was made ready."""
        return self._trail.end()

    def run(
        self, records: Iterable[RawRecord], position: StreamPosition, ready: deque[VEvent]
    ) -> None:
        """Append the events of some records to `ready`.

        `position` is where the run before ended. Its frontier is the one that the batch began
        with: records older than that are late. What was appended stays when this raises.
        """
        self._trail = Trail(position)
        self._newest_us = max(self._newest_us, position.frontier_us)
        for record in records:
            self._take(record, ready)

    def _take(self, record: RawRecord, ready: deque[VEvent]) -> None:
        decoded = self._codec.decode(record.value, record.shard, record.offset)
        if self._tables is None and record.shard not in self._filters:
            ready.append(self._delivered(decoded))
            return
        event = self._visible(decoded)
        held, self._held = self._held, None
        if held is not None:
            # The records of a transaction stand together, so this one is of the same.
            if event is None and not record.last:
                self._held = held
                return
            ready.append(self._delivered(held if event else replace(held, last=True)))
        if event is not None:
            if event.last:
                ready.append(self._delivered(event))
            else:
                self._held = event

    def _visible(self, event: VEvent) -> VEvent | None:
        tables = self._tables
        if tables is not None and event.table and (event.database, event.table) not in tables:
            return None
        key_range = self._filters.get(event.shard)
        return event if key_range is None else in_key_range(event, key_range)

    def _delivered(self, event: VEvent) -> VEvent:
        timestamp_us = event.timestamp_us
        late = timestamp_us < self._newest_us
        if not late:
            self._newest_us = timestamp_us
        token = event.token_text if event.last else None
        count = self._trail.add(_Step(event.shard, event.offset + 1, event.seq, token))
        return event.delivered(partial(self._trail.after, count), late=late)
