"""The logs of an invalidator: their ends, where it starts, and the positions that it publishes.

A position is a place in each of several logs, so of two positions neither may be further. A shard
that was resharded is compared by descent: a reader of a target has read its sources to their END.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from caching.protocol.freshness import joined
from databases.internal_tables import JOURNAL
from event_token import (
    ClockUncertainty,
    EventToken,
    Flavor,
    KeyRange,
    ShardName,
    StreamPosition,
    UsageError,
    parse_gtid_set,
)
from topics.errors import StartNotReached
from topics.kafka.client import ClientConfig
from topics.kafka.lookups import Lookup, Lookups, bounds, last_between
from topics.keyspace.topology import ReshardState, ShardState, Topology
from topics.named_readers import ReaderKind, ReaderReporter
from topics.progress.history import ProgressHistory
from topics.reading.planner import Unmerged
from topics.records.envelope import read_envelope
from topics.records.table_shape import SchemaIds
from topics.start.positions import known_topology, resolve_start
from topics.start.start_forms import ParsedStart, StartWord
from topics.stream.subscriber import StreamSubscriber
from topics.stream.target_marks import TargetMarks

POSITION_BYTE = 0x53
_COUNT_BYTES = 8
_HEAD_BYTES = 1 + _COUNT_BYTES

# By shard, the shards that it was made of, however long ago.
Ancestors = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class PublishedPosition:
    """A published position; `count` goes up with every publication, also of the same place."""

    count: int
    position: StreamPosition

    def to_bytes(self) -> bytes:
        """Return the stored form: 0x53, count (8 bytes), the position's string."""
        count = self.count.to_bytes(_COUNT_BYTES, "little")
        return bytes([POSITION_BYTE]) + count + self.position.to_string().encode()

    @classmethod
    def parse(cls, stored: bytes | None) -> "PublishedPosition | None":
        """Read the stored form; None for none and for bytes of another layout."""
        if stored is None or len(stored) <= _HEAD_BYTES or stored[0] != POSITION_BYTE:
            return None
        try:
            position = StreamPosition.from_string(stored[_HEAD_BYTES:].decode())
        except (UsageError, UnicodeDecodeError):
            return None
        return cls(int.from_bytes(stored[1:_HEAD_BYTES], "little"), position)


def ancestors_of(topology: Topology) -> dict[str, frozenset[str]]:
    """Return the shards that each target of a reshard comes from, directly or not."""
    found: dict[str, frozenset[str]] = {}
    for reshard in topology.reshards:  # in the order in which they were made
        sources = frozenset(reshard.sources)
        older = frozenset(a for source in sources for a in found.get(source, ()))
        for target in reshard.targets:
            found[target] = found.get(target, frozenset()) | sources | older
    return found


def reaches(position: StreamPosition, other: StreamPosition, ancestors: Ancestors) -> bool:
    """Return whether everything before `other` is before `position`, too."""
    return all(_is_read(position, shard, at.seq, ancestors) for shard, at in other.shards.items())


def is_older(stored: PublishedPosition | None, seen: PublishedPosition | None) -> bool:
    """Return whether a node holds a publication from before the one that was last seen there."""
    return stored is not None and seen is not None and stored.count < seen.count


def _is_read(position: StreamPosition, shard: str, seq: int, ancestors: Ancestors) -> bool:
    if shard in position.shards:
        return position.shards[shard].seq >= seq
    key_range = ShardName.parse(shard).key_range
    over = [s for s in position.shards if ShardName.parse(s).key_range.overlaps(key_range)]
    return bool(over) and all(shard in ancestors.get(each, ()) for each in over)


def earliest(positions: Iterable[StreamPosition], ancestors: Ancestors) -> StreamPosition:
    """Return the place from which nothing after any of the positions is left out."""
    given = list(positions)
    shards = {shard for position in given for shard in position.shards}
    ended = {s for s in shards if any(other in ancestors.get(s, ()) for other in shards)}
    places = {
        shard: min(
            (each.shards[shard] for each in given if shard in each.shards), key=lambda at: at.seq
        )
        for shard in shards - ended
    }
    return StreamPosition(
        min(each.epoch for each in given), min(each.frontier_us for each in given), places
    )


class StartAt(Enum):
    """Starts that are not a number of seconds."""

    STORED = "stored"
    LATEST = "latest"


# The other form: as many seconds back, never later than a stored position.
InvalidatorStart = StartAt | int


def parse_invalidator_start(text: str) -> InvalidatorStart:
    """Return the start of `stored`, `latest` or a number of seconds; UsageError otherwise."""
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        return StartAt(text)
    except ValueError:
        raise UsageError(
            f"--from {text!r}: give stored, latest or a number of seconds to go back"
        ) from None


@dataclass(frozen=True, slots=True)
class LogStream:
    """The stream of an invalidator: which logs, and what resolves places in them."""

    keyspace: str
    key_range: KeyRange
    config: ClientConfig
    schema_ids: SchemaIds
    clock: ClockUncertainty
    now_us: Callable[[], int] = lambda: time.time_ns() // 1_000

    def place(self, start: ParsedStart) -> StreamPosition:
        """Return the position of a start; errors as `resolve_start`.

        A log that was begun later than the start is read from its beginning: what was committed
        before is in no log, and nothing but TTLs ends what a cache has of it.
        """
        return resolve_start(
            start,
            config=self.config,
            topology=known_topology(self.config, self.keyspace),
            key_range=self.key_range,
            schema_ids=self.schema_ids,
            clock=self.clock,
            at_end_if_behind=True,
            may_begin_later=True,
        )

    def open_events(
        self, begin: StreamPosition, tables: Iterable[tuple[str, str]]
    ) -> StreamSubscriber:
        """Return the events of tables, and all marks, from a position on; shard by shard."""
        return StreamSubscriber(
            self.keyspace,
            str(self.key_range),
            begin,
            config=self.config,
            mode=Unmerged(),
            # The marks always have to pass.
            tables=[*(".".join(name) for name in sorted(tables)), JOURNAL],
            clock=self.clock,
        )

    def reporter(self, name: str) -> ReaderReporter:
        """Return what reports positions under a name, as every named reader does; UsageError."""
        return ReaderReporter(self.config, self.keyspace, name, self.key_range, ReaderKind.CACHE)

    def behind(self, read_us: Mapping[str, int]) -> tuple[float | None, str | None]:
        """Return the age in seconds of the shard that is read least far, and its name."""
        known = {shard: us for shard, us in read_us.items() if us}
        if not known:
            return None, None
        oldest = min(known, key=lambda shard: known[shard])
        return max(0.0, (self.now_us() - known[oldest]) / 1_000_000), oldest

    def ancestors(self) -> Ancestors:
        """Return the descent of all shards, as it is known now."""
        return ancestors_of(known_topology(self.config, self.keyspace))


def first_position(
    stream: LogStream, start: InvalidatorStart, stored: Sequence[StreamPosition]
) -> StreamPosition:
    """Return where to begin; PositionTooOld when the logs no longer reach back so far."""
    if start is StartAt.LATEST or (start is StartAt.STORED and not stored):
        return stream.place(StartWord.LATEST)
    if isinstance(start, StartAt):
        return earliest(stored, stream.ancestors())
    back = stream.place(stream.now_us() - start * 1_000_000)
    return earliest([back, *stored], stream.ancestors())


def log_ends(
    config: ClientConfig, keyspace: str, schema_ids: SchemaIds, read: Iterable[str]
) -> Mapping[str, EventToken]:
    """Return a token per shard that is not older than any change that anybody can have applied.

    All shards that serve, those of `read` (of the caller's position), and the targets of a reshard
    that have begun while the topology does not say so yet: without their BEGIN, readers that are
    left on the sources could still fill. StartNotReached (Retry) for a shard without progress, and
    Retry when Kafka does not answer.
    """
    topology = known_topology(config, keyspace)
    retired = {entry.name for entry in topology.shards if entry.state is ShardState.RETIRED}
    shards = {entry.name for entry in topology.serving()} | (set(read) - retired)
    shards |= _begun(config, topology, schema_ids)
    with Lookups(config) as lookups:
        found = lookups.results(
            {s: _end(ProgressHistory(keyspace, s, schema_ids)) for s in sorted(shards)}
        )
    ends: dict[str, EventToken] = {}
    for end in found.values():
        ends = joined(ends, end)
    return ends


def _begun(config: ClientConfig, topology: Topology, schema_ids: SchemaIds) -> set[str]:
    """Return the targets whose logs hold BEGIN, of reshards that are decided and not switched."""
    begun: set[str] = set()
    for reshard in topology.reshards:
        if reshard.state == ReshardState.RUNNING.value and reshard.decision is not None:
            marks = TargetMarks(config, topology.keyspace, reshard.reshard_id, schema_ids)
            found = marks.look(reshard.targets)
            begun |= {shard for shard, mark in found.items() if mark.begins(shard)}
    return begun


def _end(history: ProgressHistory) -> Lookup[EventToken]:
    """Return the token of a log's end: its last position, at the time of its last record.

    The head may lie beyond END, and then a target's BEGIN would not be newer.
    """
    topics = history.topics
    newest = yield from history.last()
    if newest is None:
        raise StartNotReached(
            f"shard {topics.shard}: its log has no progress yet, so floors cannot be made. Is its "
            f"producer running?"
        )
    progress = newest.progress
    start, end = yield from bounds(topics.log)
    last = yield from last_between(topics.log, start, end)
    time_us = progress.head_us
    if last is not None:
        time_us = read_envelope(last.value or b"", topics.log, last.offset)[2]
    position = parse_gtid_set(progress.position, Flavor(progress.flavor))
    return EventToken(time_us, topics.shard, position)
