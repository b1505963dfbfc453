"""The watcher of a cache: reads shard logs, and checks the entries of changed rows as clients do.

It shares nothing with the invalidator but the KeyMap, and writes nothing.
"""

import heapq
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import count
from typing import Final

import xxhash

from caching.errors import StoreError
from caching.invalidating.effects import KeyChanges, effect_of
from caching.invalidating.log import (
    InvalidatorStart,
    LogStream,
    PublishedPosition,
    StartAt,
    first_position,
)
from caching.key_map import KeyMap
from caching.protocol import Hit, decide_hit, holds, lacks
from caching.steps import run_steps
from caching.stores.store import KeyChange, KeyState, Store
from event_token import ClockUncertainty, Retry, StreamPosition, UsageError
from topics.errors import PositionTooOld
from topics.records.vevent import EventType, VEvent
from topics.stream.subscriber import StreamSubscriber

# An entry is checked this long after a change of its rows was read: users notice an entry that is
# stale after the shortest time, and one that is still stale after the longest stays so.
WITHIN_S: Final = (1, 60, 300)
# Pending checks, of some 500 bytes each; a lower rate leaves nothing out.
CHECKS_MAX: Final = 100_000

_HASHES: Final = 2**64


class EntryState(Enum):
    """How an entry compares with a change of its rows on the primary."""

    ABSENT = "absent"  # no hit: the database is read
    AGREES = "agrees"
    STALE = "stale"
    UNKNOWN = "unknown"  # not ordered, like the tokens of reads without a time after a reshard


def compare_entry(state: KeyState, change: KeyChange, clock: ClockUncertainty) -> EntryState:
    """Compare what clients would be given now with a change, by their tokens."""
    found = decide_hit(state.floor, state.slot, clock)
    if not isinstance(found, Hit):
        return EntryState.ABSENT
    tokens = found.tokens
    if holds(tokens, change.token, clock):
        return EntryState.AGREES
    return EntryState.STALE if lacks(tokens, change.token, clock) else EntryState.UNKNOWN


def is_sampled(key: str, rate: float, salt: int) -> bool:
    """Return whether a key belongs to the sample, which is the same for all of its changes."""
    return xxhash.xxh64_intdigest(key.encode(), salt) < rate * _HASHES


@dataclass(slots=True)
class Tally:
    """The results of checks at one age of changes."""

    absent: int = 0
    agrees: int = 0
    stale: int = 0
    unknown: int = 0

    @property
    def share(self) -> float | None:
        """The share of the entries that agree; None before the first that can be compared."""
        entries = self.agrees + self.stale
        return self.agrees / entries if entries else None


@dataclass(frozen=True, slots=True, order=True)
class EntryCheck:
    """A check of a key's entry when a change of its rows is `within_s` seconds old."""

    due_s: float
    number: int
    within_s: float = field(compare=False)
    change: KeyChange = field(compare=False)


class PendingChecks:
    """Pending checks, the results of those that were made, and the number dropped for lack of room.

    A key has one check of each age at a time, and then one for the last change meanwhile: a row
    that changes all the time takes no more room than others, and its last change is never left out.
    """

    def __init__(
        self, within_s: tuple[float, ...] = WITHIN_S, checks_max: int = CHECKS_MAX
    ) -> None:
        self.tallies = {each: Tally() for each in within_s}
        self.left_out = 0
        self._checks_max = checks_max
        self._waiting: list[EntryCheck] = []
        # By age and key, what waits, and the last change since then with the time it was read.
        self._keys: dict[tuple[float, str], tuple[KeyChange, float] | None] = {}
        self._numbers = count()

    def add(self, change: KeyChange, now_s: float) -> None:
        """Note a change that was read just now."""
        for within_s in self.tallies:
            if (within_s, change.key) in self._keys:
                self._keys[within_s, change.key] = change, now_s
            elif len(self._waiting) < self._checks_max:
                self._push(within_s, change, now_s)
            else:
                self.left_out += 1

    def wait_s(self, now_s: float) -> float | None:
        """Return the time until the next check, None if none is pending."""
        return max(0.0, self._waiting[0].due_s - now_s) if self._waiting else None

    def take(self, now_s: float, checks_max: int) -> list[EntryCheck]:
        """Take checks that are due."""
        taken: list[EntryCheck] = []
        while self._waiting and self._waiting[0].due_s <= now_s and len(taken) < checks_max:
            check = heapq.heappop(self._waiting)
            taken.append(check)
            if later := self._keys.pop((check.within_s, check.change.key)):
                self._push(check.within_s, *later)
        return taken

    def note(self, check: EntryCheck, found: EntryState) -> None:
        """Count the result of a check."""
        tally = self.tallies[check.within_s]
        match found:
            case EntryState.ABSENT:
                tally.absent += 1
            case EntryState.AGREES:
                tally.agrees += 1
            case EntryState.STALE:
                tally.stale += 1
            case EntryState.UNKNOWN:
                tally.unknown += 1

    def forget(self, shard: str) -> None:
        """Drop the checks for changes of a shard: a failover may have lost them."""
        self._waiting = [each for each in self._waiting if each.change.token.shard != shard]
        heapq.heapify(self._waiting)
        before = self._keys
        self._keys = {(each.within_s, each.change.key): None for each in self._waiting}
        for place, later in before.items():
            if later is None or later[0].token.shard == shard:
                continue
            if place in self._keys:
                self._keys[place] = later
            else:
                self._push(place[0], *later)

    def _push(self, within_s: float, change: KeyChange, read_s: float) -> None:
        self._keys[within_s, change.key] = None
        check = EntryCheck(read_s + within_s, next(self._numbers), within_s, change)
        heapq.heappush(self._waiting, check)


# Events, and checks, at a time.
EVENTS_MAX: Final = 500
# How often it reports its progress, and how long it waits for events at most.
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
            raise UsageError(f"--watch {self.rate}: give a share of all keys, such as 0.001")


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """The progress of a watcher.

    `changes`: events read. `sampled`: changes of keys in the sample. `within`: by the age of a
    change in seconds, how many entries were found to agree with it, and the `share` of these.
    `left_out`: checks that were not made. `behind_s`: the age of the oldest shard, `oldest_shard`,
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
    def checks(self) -> int:
        """The number of checks that were made."""
        counted = ("absent", "agrees", "stale", "unknown")
        return sum(int(each[name] or 0) for each in self.within.values() for name in counted)


class Watcher:
    """Checks the entries of sampled keys some time after their rows changed. One thread.

    `store` is a client's side of the cache. `report` gets a status every second, and whenever a
    stale entry is found (its `note`). Halts of the stream and of the KeyMap end `run`.
    """

    def __init__(
        self,
        stream: LogStream,
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
        # Another watcher checks other keys.
        self._salt = secrets.randbits(64)
        self._checks = PendingChecks(options.within_s)
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
                    self._report_state("running", f"{error}. The logs' ends follow")
                except Retry as error:
                    self._report_state("waiting", str(error))
                    stop.wait(PAUSE_S)
        finally:
            self._close_events()
            run_steps(self._store.close())

    def _step(self) -> None:
        if self._events is None:
            self._events = self._stream.open_events(self._first(), self._keys.tables)
        now_s = self._options.clock()
        due_s = self._checks.wait_s(now_s)
        wait_s = min(REPORT_S if due_s is None else due_s, max(0.0, self._due_s - now_s))
        self._note(self._events.take(EVENTS_MAX, wait_s))
        while due := self._checks.take(self._options.clock(), EVENTS_MAX):
            self._take(due)
        if self._options.clock() >= self._due_s:
            self._due_s = self._options.clock() + REPORT_S
            self._report_state("running")

    def _first(self) -> StreamPosition:
        """Return where to begin: like an invalidator, of which one position is enough."""
        place = self._store.nodes[0], str(self._stream.key_range)
        [found] = run_steps(self._store.positions([place]))
        published = PublishedPosition.parse(found)
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
                        self._checks.add(change, self._options.clock())
            elif event.type is EventType.SKIP:
                self._checks.forget(event.shard)

    def _take(self, due: list[EntryCheck]) -> None:
        try:
            states = run_steps(self._store.read([check.change.key for check in due]))
        except StoreError as error:
            # Nobody can be given a stale value either.
            self._checks.left_out += len(due)
            self._report_state("waiting", str(error))
            return
        for check, state in zip(due, states, strict=True):
            found = compare_entry(state, check.change, self._store.clock_uncertainty)
            self._checks.note(check, found)
            if found is EntryState.STALE:
                token = check.change.token
                self._report_state(
                    "running",
                    f"{check.change.key} is stale: {check.within_s:g} s after a change of shard "
                    f"{token.shard} ({token.position}) was read, its entry lacks it",
                )

    def _close_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()

    def _report_state(self, state: str, note: str = "") -> None:
        read_us = None if self._events is None else self._events.read_us
        behind_s, oldest = self._stream.behind(read_us or {})
        within = {
            f"{age:g}": {**asdict(tally), "share": tally.share}
            for age, tally in self._checks.tallies.items()
        }
        self._report(
            WatchStatus(
                state=state,
                changes=self._changes,
                sampled=self._sampled,
                within=within,
                left_out=self._checks.left_out,
                behind_s=behind_s,
                oldest_shard=oldest,
                note=note,
            )
        )
