"""Where an invalidator starts: at the stored positions, some seconds back, or at the logs' ends."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from caching.invalidating.positions import Ancestors, ancestors_of, earliest
from databases.internal_tables import JOURNAL
from event_token import ClockUncertainty, KeyRange, StreamPosition, UsageError
from topics.kafka.client import ClientConfig
from topics.reading.unmerged import Unmerged
from topics.records.schema_ids import SchemaIds
from topics.start.known_keyspace import known_topology
from topics.start.positions import resolve_start
from topics.start.start_forms import ParsedStart, StartWord
from topics.stream.subscriber import StreamSubscriber


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
        forms = "stored, latest or a number of seconds to go back"
        raise UsageError(f"--from {text!r}: it takes {forms}") from None


@dataclass(frozen=True, slots=True)
class Stream:
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
    stream: Stream, start: InvalidatorStart, stored: Sequence[StreamPosition]
) -> StreamPosition:
    """Return where to begin; PositionTooOld when the logs no longer reach back so far."""
    if start is StartAt.LATEST or (start is StartAt.STORED and not stored):
        return stream.place(StartWord.LATEST)
    if isinstance(start, StartAt):
        return earliest(stored, stream.ancestors())
    back = stream.place(stream.now_us() - start * 1_000_000)
    return earliest([back, *stored], stream.ancestors())
