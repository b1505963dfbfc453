"""Places in a merged stream: positions that are built on demand, as few of them are used."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from event_token import EventToken, ShardPosition, StreamPosition
from topics.reading.merge import Stretch
from topics.records.record_run import NO_ROW, RecordRun
from topics.records.run_reader import Step, deliver_run, token_of_record
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

    def deliver(self, events: list[VEvent]) -> None:
        """Give the events of a whole run, which were just read, their places."""
        deliver_run(events, self, self._steps)

    def after(self, count: int) -> Place:
        """Return the place after the first `count` events."""
        ends: dict[str, Step] = {}
        tokens: dict[str, TokenText] = {}
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


class TakenRows:
    """Successive rows of a merged stream that were read for their records; none of them is late.

    Each has a place, which is built on demand.
    """

    __slots__ = ("_base", "rows", "stretches")

    def __init__(self, stretches: Sequence[Stretch[RecordRun]], base: Place) -> None:
        """Take rows in the order of the stream; `base` is the place before the first."""
        self.stretches = stretches
        self.rows = sum([end - begin for _, begin, end in stretches])
        self._base = base

    def after(self, count: int) -> Place:
        """Return the place after the first `count` rows."""
        ends: dict[str, tuple[RecordRun, int]] = {}
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

    def position_source(self) -> StreamPosition:
        """Return the position after all rows, as that of an event does."""
        return self.position

    def split(self, count: int) -> "tuple[TakenRows, TakenRows]":
        """Return the first `count` rows, and those that follow; there are some of both."""
        first = TakenRows(cut_stretches(self.stretches, 0, count), self._base)
        rest = cut_stretches(self.stretches, count, self.rows)
        return first, TakenRows(rest, first.end())


# What a reader of records takes: rows, and one by one what is no row or not delivered as it is.
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
    stretches: Iterable[Stretch[RecordRun]], first: int, end: int
) -> list[Stretch[RecordRun]]:
    """Return rows `first` to `end` of stretches."""
    found: list[Stretch[RecordRun]] = []
    passed = 0
    for run, begin, last in stretches:
        if passed >= end:
            break
        from_row, to_row = max(begin, begin + first - passed), min(last, begin + end - passed)
        if from_row < to_row:
            found.append((run, from_row, to_row))
        passed += last - begin
    return found
