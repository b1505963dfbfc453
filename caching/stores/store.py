"""What a cache needs of its store: `Store` for clients, `FloorStore` for the invalidator.

A *node* keeps or loses its data together and has positions of its own: a group of buckets on
Redis, a server on memcached. All calls go to the primary of a node, and a node that does not
answer is not replaced by another one: StoreUnreachable. A write that finds no memory: StoreFull.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from caching.errors import CacheFindings, StoreError, StoreUnreachable
from caching.protocol import CacheLayout, Floor, apply_change
from caching.steps import Steps
from credentials.secret import Secret
from event_token import ClockUncertainty, EventToken

# How long a client waits for a store: a database read takes about as long.
TIMEOUT_MS: Final = 50
# The invalidator waits for its store rather than leave a server alone.
FLOORS_TIMEOUT_MS: Final = 5_000
# How long a server that failed is not asked, so that not every call waits for its timeout.
OPEN_S: Final = 1.0
# A compare-and-set that lost has seen another one win; more rounds than processes write to one
# bucket at once.
ROUNDS_MAX: Final = 1_000

CLAIM_BYTE: Final = 0x43
CLAIM_NONCE_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a store is used. `is_async`: for asyncio; `stale_ok_s`: see `CacheOptions`.

    A server that does not answer for `timeout_ms` is left alone for `open_s` seconds. `password`:
    read at each connection; None for the one of the URL. `clock_uncertainty`: see `_Nodes`.
    """

    is_async: bool = False
    timeout_ms: int = TIMEOUT_MS
    open_s: float = OPEN_S
    stale_ok_s: int = 0
    password: Secret | None = None
    clock_uncertainty: ClockUncertainty = ClockUncertainty()  # noqa: RUF009 - frozen


# The invalidator asks again at once.
FLOORS_OPTIONS: Final = StoreOptions(timeout_ms=FLOORS_TIMEOUT_MS, open_s=0)


class KeyState(NamedTuple):
    """A bucket's floor and a key's slot as they were read together; None for a missing one.

    Decisions are made from `slot`. Only the store reads `version`, which identifies the contents
    of the slot (a placeholder, a CAS id).
    """

    floor: bytes | None
    slot: bytes | None
    version: bytes | None = None


class Announcement(NamedTuple):
    """A fill that is about to be prepared: the key's state as it was seen, and the lease."""

    key: str
    seen: KeyState
    lease_ms: int = 0


class EntryWrite(NamedTuple):
    """An entry to write if floor and slot are, byte for byte, as `expected`."""

    key: str
    expected: KeyState
    entry: bytes
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A change, by its token, of the rows that a cache key is made of."""

    key: str
    token: EventToken


@dataclass(frozen=True, slots=True)
class Invalidated:
    """The effects of an invalidation.

    `closed` are the buckets without a floor, where nothing is a hit until one is made; `repeats`
    counts the buckets that were decided on again, because somebody wrote to them meanwhile.
    """

    floors_raised: int = 0
    values_removed: int = 0
    repeats: int = 0
    closed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class FloorClaim:
    """The right to make floors: by bucket, the marker in the floor's place until it is made.

    Another process may have laid it there, and may be making the same floor: one of them does.
    """

    markers: Mapping[int, bytes]


class _Nodes:
    """The layout of a cache's keys, and the names of its nodes.

    `clock_uncertainty`: how far the clocks of the database's servers may be off, for all decisions
    about what is in the store.
    """

    layout: CacheLayout
    nodes: Sequence[str]
    clock_uncertainty: ClockUncertainty

    def node_of(self, bucket: int) -> str:
        """Return the node of a bucket; the buckets are spread over all nodes in turn."""
        return self.nodes[bucket % len(self.nodes)]


class Store(_Nodes, ABC):
    """A client's side of a store, for threads or for asyncio. Any number of them may share it.

    A call that changes several keys and raises may have been carried out in part. `is_async`:
    whether the steps are carried out by `run_steps_async`; None: by `run_steps` as well.
    """

    is_async: bool | None

    @abstractmethod
    def read(self, keys: Sequence[str]) -> Steps[list[KeyState]]:
        """Read floor and slot of each key, both of a key at once."""

    @abstractmethod
    def read_stale(self, key: str) -> Steps[KeyState]:
        """Read a key's floor, and in place of its slot the value that was last removed from it."""

    @abstractmethod
    def prepare(self, fills: Sequence[Announcement]) -> Steps[list[KeyState | None]]:
        """Announce fills before the database is read; return the states to fill against.

        With `lease_ms` above 0 a placeholder takes the slot if it still is as it was `seen`, and
        the floor is read after it is there; None if another client was faster. Memcached always
        needs the placeholder, and keeps it for as long as a fill may take. Without a lease the
        other stores return `seen`.
        """

    @abstractmethod
    def fill(self, writes: Sequence[EntryWrite]) -> Steps[list[bool]]:
        """Write entries; return which of them were written."""

    @abstractmethod
    def read_again(self, keys: Sequence[str]) -> Steps[list[KeyState | None]]:
        """Read what fills that lost may be checked against again; None where they may not."""

    @abstractmethod
    def release(self, prepared: Sequence[tuple[str, KeyState]]) -> Steps[None]:
        """Take the placeholders of fills that do not happen out of their keys' slots."""

    @abstractmethod
    def forget(self, keys: Sequence[str]) -> Steps[None]:
        """Delete the slots of these keys; floors stay as they are."""

    @abstractmethod
    def want_floors(self, buckets: Iterable[int]) -> Steps[None]:
        """Ask the invalidator to make the floors of these buckets, which are missing."""

    @abstractmethod
    def invalidate(self, changes: Iterable[KeyChange]) -> Steps[Invalidated]:
        """Raise floors by the changes, then remove the values that do not hold them."""

    @abstractmethod
    def positions(self, places: Sequence[tuple[str, str]]) -> Steps[list[bytes | None]]:
        """Read positions, each by its node and the key range of its invalidator."""

    @abstractmethod
    def check(self) -> Steps[CacheFindings]:
        """Ask the servers what a preflight has to know."""

    @abstractmethod
    def close(self) -> Steps[None]:
        """Close all connections."""


class FloorStore(_Nodes, ABC):
    """The invalidator's side of a store: one connection per server, one thread.

    Every call but `resume` raises Reconnected when it would use a connection to a node on which
    `resume` has not read the position (rule 11); nothing was written on that node then. A call on
    several nodes that raises may have been carried out on others: every call may be repeated.
    """

    @abstractmethod
    def resume(self, key_range: str) -> dict[str, bytes | None]:
        """Connect, and return the stored position of each node with a new connection.

        None: that node has no position (new, or flushed). Nodes whose connection is the one they
        were resumed on are left out.
        """

    @abstractmethod
    def publish(
        self, key_range: str, positions: Mapping[str, tuple[bytes | None, bytes]]
    ) -> dict[str, bytes | None]:
        """Replace positions by node, each `(seen, new)` if it still is as it was seen.

        Return the stored positions of the nodes where it was not.
        """

    @abstractmethod
    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """Raise floors by the changes, then remove the values that do not hold them.

        A floor that finds no memory is deleted instead: its bucket is closed.
        """

    @abstractmethod
    def wanted(self) -> list[int]:
        """Take the buckets whose floors clients found missing, of all nodes."""

    @abstractmethod
    def store_layout(self) -> None:
        """Store the layout where clients of any layout find it (`CacheLayout.layout_key`)."""

    @abstractmethod
    def lease(self, key_range: str, holder: bytes, lease_ms: int) -> bool:
        """Take or extend the lease of a key range, on the first node; False: another has it."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

    @abstractmethod
    def _stored_floors(self, buckets: Sequence[int]) -> list[bytes | None]:
        """Read the floors of buckets, in their order."""

    @abstractmethod
    def _replace(self, floors: Mapping[int, tuple[bytes | None, bytes | None]]) -> set[int]:
        """Replace floors by bucket, each `(seen, new)`, by compare-and-set; None: no floor.

        Return the buckets where it was not as seen. A floor over another one that finds no memory
        is deleted; then its bucket is returned, too, or StoreFull raised.
        """

    def change_floors(self, nodes: Iterable[str], change: Callable[[Floor], Floor]) -> int:
        """Replace every floor of the nodes; return how many changed.

        `change` may be called several times per floor. Missing floors stay missing.
        """
        names = set(nodes)
        waiting = [each for each in range(self.layout.buckets) if self.node_of(each) in names]
        changed = 0
        for _ in range(ROUNDS_MAX):
            changes: dict[int, tuple[bytes | None, bytes | None]] = {}
            for bucket, stored in zip(waiting, self._stored_floors(waiting), strict=True):
                if stored is not None:
                    floor = Floor.parse(stored)
                    # A claim goes: its maker may have asked for ends that lack the change.
                    new = None if floor is None else change(floor).to_bytes()
                    if new != stored:
                        changes[bucket] = stored, new
            lost = self._replace(changes)
            done = [new for bucket, (_, new) in changes.items() if bucket not in lost]
            changed += sum(new is not None for new in done)
            if not lost:
                return changed
            waiting = sorted(lost)
        raise StoreError(self.node_of(waiting[0]), f"floor {waiting[0]} changed {ROUNDS_MAX} times")

    def claim(self, buckets: Iterable[int]) -> FloorClaim:
        """Mark the floors of these buckets that are missing as being made.

        The end of each log is asked for after this: an invalidation that is applied meanwhile
        takes the mark away, so no floor is made below a change that was applied (rule 9). A mark
        that another process has made is shared, for that process may have died.
        """
        asked = list(buckets)
        stored = dict(zip(asked, self._stored_floors(asked), strict=True))
        missing = {bucket: found for bucket, found in stored.items() if Floor.parse(found) is None}
        shared = {bucket: found for bucket, found in missing.items() if found is not None}
        marker = bytes([CLAIM_BYTE]) + os.urandom(CLAIM_NONCE_BYTES)
        added = missing.keys() - shared.keys()
        lost = self._replace(dict.fromkeys(added, (None, marker)))
        return FloorClaim(shared | dict.fromkeys(added - lost, marker))

    def make_floors(self, claim: FloorClaim, floor: Callable[[], Floor]) -> int:
        """Make a floor, each by its own call, in every bucket still claimed; return how many."""
        made: dict[int, tuple[bytes | None, bytes | None]] = {
            bucket: (marker, floor().to_bytes()) for bucket, marker in claim.markers.items()
        }
        return len(made) - len(self._replace(made))


class Circuit:
    """The state of one server; `clock` gives seconds that never go backwards."""

    def __init__(
        self, server: str, open_s: float = OPEN_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin closed: the server is asked."""
        self.server = server
        self._open_s = open_s
        self._clock = clock
        self._open_until: float | None = None

    def check(self) -> None:
        """Raise StoreUnreachable while the circuit is open."""
        if self._open_until is not None and self._clock() < self._open_until:
            raise StoreUnreachable(
                self.server, f"cache server {self.server} is not asked: it failed a moment ago"
            )

    def failed(self, fault: Exception) -> StoreUnreachable:
        """Open the circuit; return the error to raise."""
        self._open_until = self._clock() + self._open_s
        return StoreUnreachable(self.server, f"cache server {self.server} does not answer: {fault}")


class BucketSwap(NamedTuple):
    """A floor to write where `seen` is (None deletes), the slots that go, and those that stay.

    `kept` slots must still begin with these bytes, for they were checked to hold the changes.
    `raised` is the floor to write, parsed.
    """

    bucket: int
    seen: bytes
    floor: bytes | None
    removed: tuple[str, ...]
    kept: Mapping[str, bytes]
    raised: Floor | None = None


def by_bucket(layout: CacheLayout, changes: Iterable[KeyChange]) -> dict[int, list[KeyChange]]:
    """Group changes by the buckets of their keys, in their order."""
    grouped: dict[int, list[KeyChange]] = {}
    for change in changes:
        grouped.setdefault(layout.bucket(change.key), []).append(change)
    return grouped


def decide_swap(
    bucket: int,
    changes: Sequence[KeyChange],
    floor: bytes | None,
    slots: Mapping[str, bytes | None],
    clock: ClockUncertainty,
    present: Floor | None = None,
) -> BucketSwap | None:
    """Decide what the changes do to their bucket; None if it has neither a floor nor a claim.

    A slot that was absent is removed all the same: a fill that was checked against the floor as it
    was may arrive until the floor is raised. `present` is the floor, if it has been parsed before.
    """
    if floor is None:
        return None
    present = present or Floor.parse(floor)
    if present is None:  # a claim: the maker of this floor asked for the logs' ends before
        return BucketSwap(bucket, floor, None, tuple(slots), {})
    raised = present
    removed = {key: slot is None for key, slot in slots.items()}
    for change in changes:
        raised, is_removed = apply_change(raised, slots[change.key], change.token, clock)
        removed[change.key] |= is_removed
    kept = {key: slot for key, slot in slots.items() if slot is not None and not removed[key]}
    gone = tuple(key for key, is_gone in removed.items() if is_gone)
    written = floor if raised is present else raised.to_bytes()
    return BucketSwap(bucket, floor, written, gone, kept, raised)


@dataclass(frozen=True, slots=True)
class KnownFloor:
    """A floor with its stored form."""

    stored: bytes
    floor: Floor


class KnownFloors:
    """The floors that one invalidator wrote last, so that it need not read and parse them again.

    At most twice `size_max`, about 1 kB each. For one thread. A floor that another process has
    written meanwhile is out of date: its compare-and-set fails, and it is forgotten.
    """

    def __init__(self, size_max: int) -> None:
        """Know nothing; 0 keeps nothing."""
        self._size_max = size_max
        self._newer: dict[int, KnownFloor] = {}
        self._older: dict[int, KnownFloor] = {}

    def get(self, bucket: int) -> KnownFloor | None:
        """Return the floor of a bucket, None if it is not known."""
        return self._newer.get(bucket) or self._older.get(bucket)

    def note(self, bucket: int, known: KnownFloor) -> None:
        """Remember the floor that was written to a bucket."""
        if not self._size_max:
            return
        if len(self._newer) >= self._size_max:
            self._older, self._newer = self._newer, {}
        self._newer[bucket] = known

    def forget(self, bucket: int) -> None:
        """Have the floor of a bucket read again."""
        self._newer.pop(bucket, None)
        self._older.pop(bucket, None)
