"""A store in the process's own memory: a cache of one process, and the model of the others."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

from caching.errors import CacheFindings, Reconnected
from caching.protocol import CacheLayout, Placeholder
from caching.protocol.stored_forms import PLACEHOLDER_NONCE_BYTES, is_entry
from caching.steps import Steps, run_steps
from caching.stores.store import (
    Announcement,
    BucketSwap,
    EntryWrite,
    FloorStore,
    Invalidated,
    KeyChange,
    KeyState,
    Store,
    StoreOptions,
    by_bucket,
    decide_swap,
)
from event_token import ClockUncertainty

P = ParamSpec("P")
T = TypeVar("T")

# Values kept per node: a process that caches without end runs out of memory.
VALUES_MAX = 100_000


def at_once(function: Callable[P, T]) -> Callable[P, Steps[T]]:
    """Make steps of a function that never waits."""

    @wraps(function)
    def steps(*args: P.args, **kwargs: P.kwargs) -> Steps[T]:
        return function(*args, **kwargs)
        yield

    return steps


@dataclass
class MemoryNode:
    """One node. `connections` counts the connections to it: raise it to end the present ones."""

    floors: dict[int, bytes] = field(default_factory=dict)
    slots: dict[str, bytes] = field(default_factory=dict)
    expiries: dict[str, float] = field(default_factory=dict)
    positions: dict[str, bytes] = field(default_factory=dict)
    leases: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)
    connections: int = 1

    def flush(self) -> None:
        """Lose everything, on open connections."""
        for each in (self.floors, self.slots, self.expiries, self.positions, self.leases):
            each.clear()
        self.wanted.clear()

    def slot(self, key: str, now: float) -> bytes | None:
        """Return the contents of a slot at a time in seconds."""
        if self.expiries.get(key, now) < now:
            self.drop(key)
        return self.slots.get(key)

    def put(self, key: str, stored: bytes, expires_at: float, values_max: int) -> None:
        """Write a slot; the oldest one goes if there are too many."""
        self.drop(key)
        while len(self.slots) >= values_max:
            self.drop(next(iter(self.slots)))
        self.slots[key] = stored
        self.expiries[key] = expires_at

    def drop(self, key: str) -> bool:
        """Delete a slot; return whether it was there."""
        self.expiries.pop(key, None)
        return self.slots.pop(key, None) is not None


class MemoryStore(Store):
    """A `Store` of one process, for threads and for asyncio. `memory` has the nodes' data."""

    def __init__(
        self,
        layout: CacheLayout,
        *,
        nodes: Sequence[str] = ("memory",),
        values_max: int = VALUES_MAX,
        stale_ok_s: int = 0,
        clock: Callable[[], float] = time.monotonic,
        clock_uncertainty: ClockUncertainty = ClockUncertainty(),  # noqa: B008 - frozen
    ) -> None:
        """Start empty. Buckets are spread over the nodes in turn; `clock` gives seconds."""
        self.clock_uncertainty = clock_uncertainty
        self.layout = layout
        self.nodes = tuple(nodes)
        self.is_async = None
        self.memory = {node: MemoryNode() for node in nodes}
        self.lock = RLock()
        self.clock = clock
        self._values_max = values_max
        self._stale_ok_s = stale_ok_s

    def node(self, bucket: int) -> MemoryNode:
        """Return the data of a bucket's node."""
        return self.memory[self.node_of(bucket)]

    @at_once
    def read(self, keys: Sequence[str]) -> list[KeyState]:
        """See `Store.read`."""
        with self.lock:
            return [self._state(key) for key in keys]

    @at_once
    def read_stale(self, key: str) -> KeyState:
        """See `Store.read_stale`."""
        bucket = self.layout.bucket(key)
        node = self.node(bucket)
        with self.lock:
            return KeyState(node.floors.get(bucket), node.slot(_stale(key), self.clock()))

    @at_once
    def prepare(self, fills: Sequence[Announcement]) -> list[KeyState | None]:
        """See `Store.prepare`."""
        prepared: list[KeyState | None] = []
        with self.lock:
            for key, seen, lease_ms in fills:
                present = self._state(key)
                if not lease_ms:
                    prepared.append(seen)
                elif present.slot != seen.slot:
                    prepared.append(None)
                else:
                    placeholder = Placeholder(os.urandom(PLACEHOLDER_NONCE_BYTES)).to_bytes()
                    self._put(key, placeholder, lease_ms)
                    prepared.append(KeyState(present.floor, seen.slot, placeholder))
        return prepared

    @at_once
    def fill(self, writes: Sequence[EntryWrite]) -> list[bool]:
        """See `Store.fill`."""
        written = []
        with self.lock:
            for key, expected, entry, ttl_ms in writes:
                slot = expected.version or expected.slot
                written.append(self._state(key)[:2] == (expected.floor, slot))
                if written[-1]:
                    self._put(key, entry, ttl_ms)
        return written

    def read_again(self, keys: Sequence[str]) -> Steps[list[KeyState | None]]:
        """See `Store.read_again`."""
        return [*(yield from self.read(keys))]

    @at_once
    def release(self, prepared: Sequence[tuple[str, KeyState]]) -> None:
        """See `Store.release`."""
        with self.lock:
            for key, state in prepared:
                if state.version is not None and self._state(key).slot == state.version:
                    self.node(self.layout.bucket(key)).drop(key)

    @at_once
    def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        with self.lock:
            for key in keys:
                node = self.node(self.layout.bucket(key))
                node.drop(key)
                node.drop(_stale(key))

    @at_once
    def want_floors(self, buckets: Iterable[int]) -> None:
        """See `Store.want_floors`."""
        with self.lock:
            for bucket in buckets:
                self.node(bucket).wanted.add(bucket)

    @at_once
    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """See `Store.invalidate`."""
        raised, removed, closed = 0, 0, set()
        with self.lock:
            for bucket, touching in by_bucket(self.layout, changes).items():
                floor = self.node(bucket).floors.get(bucket)
                slots = {each.key: self._state(each.key).slot for each in touching}
                swap = decide_swap(bucket, touching, floor, slots, self.clock_uncertainty)
                if swap is None or swap.floor is None:
                    closed.add(bucket)
                if swap is not None:
                    raised += swap.floor not in (None, floor)
                    removed += self._swap(swap)
        return Invalidated(raised, removed, 0, frozenset(closed))

    @at_once
    def positions(self, places: Sequence[tuple[str, str]]) -> list[bytes | None]:
        """See `Store.positions`."""
        return [self.memory[node].positions.get(key_range) for node, key_range in places]

    @at_once
    def check(self) -> CacheFindings:
        """Return that its own invalidator has its layout."""
        return CacheFindings(layout=self.layout.text)

    @at_once
    def close(self) -> None:
        """Keep everything: there are no connections."""

    def _swap(self, swap: BucketSwap) -> int:
        node = self.node(swap.bucket)
        if swap.floor is None:
            del node.floors[swap.bucket]
        else:
            node.floors[swap.bucket] = swap.floor
        for key in swap.removed if self._stale_ok_s else ():
            slot = self._state(key).slot
            if slot is not None and is_entry(slot):
                expires_at = self.clock() + self._stale_ok_s
                node.put(_stale(key), slot, expires_at, self._values_max)
        return sum(node.drop(key) for key in swap.removed)

    def _state(self, key: str) -> KeyState:
        bucket = self.layout.bucket(key)
        node = self.node(bucket)
        return KeyState(node.floors.get(bucket), node.slot(key, self.clock()))

    def _put(self, key: str, stored: bytes, ttl_ms: int) -> None:
        node = self.node(self.layout.bucket(key))
        node.put(key, stored, self.clock() + ttl_ms / 1000, self._values_max)


def _stale(key: str) -> str:
    """Return the slot of the value that was last removed."""
    return f"\0stale:{key}"


def open_client(_url: str, cache: str, buckets: int, options: StoreOptions) -> Store:
    """See `open_store`; there is no server to wait for."""
    return MemoryStore(
        CacheLayout(cache, buckets),
        stale_ok_s=options.stale_ok_s,
        clock_uncertainty=options.clock_uncertainty,
    )


class MemoryFloors(FloorStore):
    """A `FloorStore` over the data of a `MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        """Nothing is resumed yet."""
        self.layout = store.layout
        self.nodes = store.nodes
        self.clock_uncertainty = store.clock_uncertainty
        self._store = store
        self._resumed: dict[str, int] = {}

    def resume(self, key_range: str) -> dict[str, bytes | None]:
        """See `FloorStore.resume`."""
        found: dict[str, bytes | None] = {}
        with self._store.lock:
            for name, node in self._store.memory.items():
                if self._resumed.get(name) != node.connections:
                    self._resumed[name] = node.connections
                    found[name] = node.positions.get(key_range)
        return found

    def publish(
        self, key_range: str, positions: Mapping[str, tuple[bytes | None, bytes]]
    ) -> dict[str, bytes | None]:
        """See `FloorStore.publish`."""
        lost: dict[str, bytes | None] = {}
        with self._store.lock:
            for name, (seen, new) in positions.items():
                stored = self._node(name).positions.get(key_range)
                if stored == seen:
                    self._node(name).positions[key_range] = new
                else:
                    lost[name] = stored
        return lost

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """See `FloorStore.invalidate`."""
        wanted = list(changes)
        with self._store.lock:
            for bucket in by_bucket(self.layout, wanted):
                self._node(self.node_of(bucket))
            return run_steps(self._store.invalidate(wanted))

    def wanted(self) -> list[int]:
        """See `FloorStore.wanted`."""
        with self._store.lock:
            found = sorted({bucket for name in self.nodes for bucket in self._node(name).wanted})
            for node in self._store.memory.values():
                node.wanted.clear()
        return found

    def store_layout(self) -> None:
        """Store nothing: everybody who shares the memory has its layout."""

    def lease(self, key_range: str, holder: bytes, lease_ms: int) -> bool:
        """See `FloorStore.lease`."""
        with self._store.lock:
            now = self._store.clock()
            leases = self._node(self.nodes[0]).leases
            present, until = leases.get(key_range, (holder, now))
            if present != holder and until >= now:
                return False
            leases[key_range] = (holder, now + lease_ms / 1000)
            return True

    def close(self) -> None:
        """Keep everything: there are no connections."""

    def _stored_floors(self, buckets: Sequence[int]) -> list[bytes | None]:
        with self._store.lock:
            return [self._node(self.node_of(each)).floors.get(each) for each in buckets]

    def _replace(self, floors: Mapping[int, tuple[bytes | None, bytes | None]]) -> set[int]:
        lost = set()
        with self._store.lock:
            for bucket, (seen, new) in floors.items():
                present = self._node(self.node_of(bucket)).floors
                if present.get(bucket) != seen:
                    lost.add(bucket)
                elif new is None:
                    del present[bucket]
                else:
                    present[bucket] = new
        return lost

    def _node(self, name: str) -> MemoryNode:
        node = self._store.memory[name]
        if self._resumed.get(name) != node.connections:
            raise Reconnected(name)
        return node
