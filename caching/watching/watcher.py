"""The watcher of a cache: reads shard logs, and looks at the entries of changed rows as clients do.

It shares nothing with the invalidator but the KeyMap, and writes nothing.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from caching.errors import StoreError
from caching.invalidating.effects import KeyChanges, effect_of
from caching.invalidating.positions import Published
from caching.invalidating.start import InvalidatorStart, StartAt, Stream, first_position
from caching.key_map import KeyMap
from caching.stores.store import Store
from caching.watching.checks import WITHIN_S, Look, Looks, Verdict, is_sampled, verdict
from event_token import Retry, StreamPosition, UsageError
from topics.errors import PositionTooOld
from topics.records.vevent import EventType, VEvent
from topics.stream.subscriber import StreamSubscriber

# Events, and looks, at a time.
EVENTS_MAX: Final = 500
# How often it tells how far it is, and how long it waits for events at most.
REPORT_S: Final = 1.0
# Between two tries while Kafka does not answer.
PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How much of a cache is watched.

    `rate`: the share of all keys, above 0 up to 1. `within_s`: the ages of changes, in seconds.
    `clock` gives monotonic seconds.
    """

    rate: float
    start: InvalidatorStart = StartAt.STORED
    within_s: tuple[float, ...] = WITHIN_S
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Check the rate."""
        if not 0 < self.rate <= 1:
            raise UsageError(f"--watch {self.rate}: it takes a share of all keys, such as 0.001")


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """One look at a watcher.

    `changes`: events read. `sampled`: changes of keys in the sample. `within`: by the age of a
    change in seconds, how many entries were found to agree with it, and the `share` of these.
    `left_out`: looks that were not taken. `behind_s`: the age of the oldest shard, `oldest_shard`,
    by this host's clock; what happened since then is not known to the watcher.
    """

    state: str
    changes: int
    sampled: int
    within: Mapping[str, Mapping[str, float | None]]
    left_out: int
    behind_s: float | None
    oldest_shard: str | None
    note: str = ""

    @property
    def looks(self) -> int:
        """How many looks were taken."""
        counted = ("absent", "agrees", "stale", "unknown")
        return sum(int(each[name] or 0) for each in self.within.values() for name in counted)


class Watcher:
    """Looks at the entries of sampled keys some time after their rows changed. One thread.

    `store` is a client's side of the cache. `report` gets a status every second, and whenever a
    stale entry is found (its `note`). Halts of the stream and of the KeyMap end `run`.
    """

    def __init__(
        self,
        stream: Stream,
        keys: KeyMap,
        store: Store,
        options: WatchOptions,
        report: Callable[[WatchStatus], None],
    ) -> None:
        """Connect to nothing yet."""
        self._stream = stream
        self._keys = keys
        self._store = store
        self._options = options
        self._report = report
        self._start = options.start
        # Another watcher looks at other keys.
        self._salt = secrets.randbits(64)
        self._looks = Looks(options.within_s)
        self._events: StreamSubscriber | None = None
        self._changes = 0
        self._sampled = 0
        self._due_s = options.clock()

    def run(self, stop: threading.Event) -> None:
        """Watch until `stop` is set."""
        try:
            while not stop.is_set():
                try:
                    self._step()
                except PositionTooOld as error:
                    self._close_events()
                    self._start = StartAt.LATEST
                    self._tell("running", f"{error}. The logs' ends follow")
                except Retry as error:
                    self._tell("waiting", str(error))
                    stop.wait(PAUSE_S)
        finally:
            self._close_events()
            self._store.close()

    def _step(self) -> None:
        if self._events is None:
            self._events = self._stream.open_events(self._first(), self._keys.tables)
        now_s = self._options.clock()
        due_s = self._looks.wait_s(now_s)
        wait_s = min(REPORT_S if due_s is None else due_s, max(0.0, self._due_s - now_s))
        self._note(self._events.take(EVENTS_MAX, wait_s))
        while looks := self._looks.take(self._options.clock(), EVENTS_MAX):
            self._take(looks)
        if self._options.clock() >= self._due_s:
            self._due_s = self._options.clock() + REPORT_S
            self._tell("running")

    def _first(self) -> StreamPosition:
        """Return where to begin: like an invalidator, of which one position is enough."""
        found = self._store.position(self._store.nodes[0], str(self._stream.key_range))
        published = Published.parse(found)
        stored = [] if published is None else [published.position]
        return first_position(self._stream, self._start, stored)

    def _note(self, events: Iterable[VEvent]) -> None:
        for event in events:
            self._changes += 1
            effect = effect_of(event, self._keys)
            if isinstance(effect, KeyChanges):
                for change in effect.changes:
                    if is_sampled(change.key, self._options.rate, self._salt):
                        self._sampled += 1
                        self._looks.add(change, self._options.clock())
            elif event.type is EventType.SKIP:
                self._looks.forget(event.shard)

    def _take(self, looks: list[Look]) -> None:
        try:
            pairs = self._store.read([look.change.key for look in looks])
        except StoreError as error:
            # Nobody can be given a stale value either.
            self._looks.left_out += len(looks)
            self._tell("waiting", str(error))
            return
        for look, pair in zip(looks, pairs, strict=True):
            found = verdict(pair, look.change)
            self._looks.note(look, found)
            if found is Verdict.STALE:
                token = look.change.token
                self._tell(
                    "running",
                    f"{look.change.key} is stale: {look.within_s:g} s after a change of shard "
                    f"{token.shard} ({token.position}) was read, its entry lacks it",
                )

    def _close_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()

    def _tell(self, state: str, note: str = "") -> None:
        read_us = None if self._events is None else self._events.read_us
        behind_s, oldest = self._stream.behind(read_us or {})
        within = {
            f"{age:g}": {**asdict(tally), "share": tally.share}
            for age, tally in self._looks.tallies.items()
        }
        self._report(
            WatchStatus(
                state=state,
                changes=self._changes,
                sampled=self._sampled,
                within=within,
                left_out=self._looks.left_out,
                behind_s=behind_s,
                oldest_shard=oldest,
                note=note,
            )
        )
