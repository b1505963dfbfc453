"""What a watcher has still to look at, and what it has found. Pure: no store, no clock."""

import heapq
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Final

import xxhash

from caching.protocol import Hit, decide_hit, holds, lacks
from caching.stores.store import KeyChange, Pair

# An entry is looked at this long after a change of its rows was read: the shortest is what users
# notice, and whatever is still wrong after the longest stays wrong.
WITHIN_S: Final = (1, 60, 300)
# Looks that wait, of some 500 bytes each; a lower rate leaves nothing out.
LOOKS_MAX: Final = 100_000

_HASHES: Final = 2**64


class Verdict(Enum):
    """How an entry compares with a change of its rows on the primary."""

    ABSENT = "absent"  # no hit: the database is read
    AGREES = "agrees"
    STALE = "stale"
    UNKNOWN = "unknown"  # the tokens do not tell, as those of reads without a time after a reshard


def verdict(pair: Pair, change: KeyChange) -> Verdict:
    """Compare what clients would be given now with a change, by their tokens."""
    found = decide_hit(pair.floor, pair.slot)
    if not isinstance(found, Hit):
        return Verdict.ABSENT
    tokens = found.tokens
    if holds(tokens, change.token):
        return Verdict.AGREES
    return Verdict.STALE if lacks(tokens, change.token) else Verdict.UNKNOWN


def is_sampled(key: str, rate: float, salt: int) -> bool:
    """Tell whether a key belongs to the sample, which is the same for all of its changes."""
    return xxhash.xxh64_intdigest(key.encode(), salt) < rate * _HASHES


@dataclass(slots=True)
class Tally:
    """Looks at one age of changes, by what was found."""

    absent: int = 0
    agrees: int = 0
    stale: int = 0
    unknown: int = 0

    @property
    def share(self) -> float | None:
        """The share of the entries that agree, of those that can be told; None before the first."""
        entries = self.agrees + self.stale
        return self.agrees / entries if entries else None


@dataclass(frozen=True, slots=True, order=True)
class Look:
    """A look at a key's entry when a change of its rows is `within_s` seconds old."""

    due_s: float
    number: int
    within_s: float = field(compare=False)
    change: KeyChange = field(compare=False)


class Looks:
    """The looks that wait, the tallies of those that were taken, and how many had no room.

    A key has one look of each age at a time, and then one for the last change meanwhile: a row that
    changes all the time takes no more room than others, and its last change is never left out.
    """

    def __init__(self, within_s: tuple[float, ...] = WITHIN_S, looks_max: int = LOOKS_MAX) -> None:
        self.tallies = {each: Tally() for each in within_s}
        self.left_out = 0
        self._looks_max = looks_max
        self._waiting: list[Look] = []
        # By age and key, what waits, and the last change since then with the time it was read.
        self._keys: dict[tuple[float, str], tuple[KeyChange, float] | None] = {}
        self._numbers = count()

    def add(self, change: KeyChange, now_s: float) -> None:
        """Note a change that was read just now."""
        for within_s in self.tallies:
            if (within_s, change.key) in self._keys:
                self._keys[within_s, change.key] = change, now_s
            elif len(self._waiting) < self._looks_max:
                self._push(within_s, change, now_s)
            else:
                self.left_out += 1

    def wait_s(self, now_s: float) -> float | None:
        """Return the time until the next look, None if none waits."""
        return max(0.0, self._waiting[0].due_s - now_s) if self._waiting else None

    def take(self, now_s: float, looks_max: int) -> list[Look]:
        """Take looks that are due."""
        taken: list[Look] = []
        while self._waiting and self._waiting[0].due_s <= now_s and len(taken) < looks_max:
            look = heapq.heappop(self._waiting)
            taken.append(look)
            if later := self._keys.pop((look.within_s, look.change.key)):
                self._push(look.within_s, *later)
        return taken

    def note(self, look: Look, found: Verdict) -> None:
        """Count what was found."""
        tally = self.tallies[look.within_s]
        match found:
            case Verdict.ABSENT:
                tally.absent += 1
            case Verdict.AGREES:
                tally.agrees += 1
            case Verdict.STALE:
                tally.stale += 1
            case Verdict.UNKNOWN:
                tally.unknown += 1

    def forget(self, shard: str) -> None:
        """Drop the looks for changes of a shard: a failover may have lost them."""
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
        look = Look(read_s + within_s, next(self._numbers), within_s, change)
        heapq.heappush(self._waiting, look)
