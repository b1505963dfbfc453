"""A store in the process's own memory: a cache of one process, and what others are tested by."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from caching.findings import Findings
from caching.protocol import Layout, Placeholder
from caching.protocol.entry import PLACEHOLDER_NONCE_BYTES, is_entry
from caching.stores.store import Invalidated, KeyChange, Pair
from caching.stores.swaps import Swap, by_bucket, decide_swap

# Values kept per node: a process that caches without end runs out of memory.
VALUES_MAX = 100_000


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
        """Return what a slot holds at a time in seconds."""
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
        """Delete a slot; tell whether it was there."""
        self.expiries.pop(key, None)
        return self.slots.pop(key, None) is not None


class MemoryStore:
    """A `Store` of one process, or of several threads. `memory` names the nodes' data."""

    def __init__(
        self,
        layout: Layout,
        *,
        nodes: Sequence[str] = ("memory",),
        values_max: int = VALUES_MAX,
        stale_ok_s: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty. Buckets are spread over the nodes in turn; `clock` gives seconds."""
        self.layout = layout
        self.nodes: Sequence[str] = tuple(nodes)
        self.memory = {node: MemoryNode() for node in nodes}
        self.lock = RLock()
        self.clock = clock
        self._values_max = values_max
        self._stale_ok_s = stale_ok_s

    def node_of(self, bucket: int) -> str:
        """Return the node of a bucket."""
        return self.nodes[bucket % len(self.nodes)]

    def node(self, bucket: int) -> MemoryNode:
        """Return the data of a bucket's node."""
        return self.memory[self.node_of(bucket)]

    def read(self, keys: Sequence[str]) -> list[Pair]:
        """Read floor and slot of each key, both of a key at once."""
        with self.lock:
            return [self._pair(key) for key in keys]

    def read_stale(self, key: str) -> Pair:
        """Read a key's floor, and the value that was last removed."""
        bucket = self.layout.bucket(key)
        node = self.node(bucket)
        with self.lock:
            return Pair(node.floors.get(bucket), node.slot(_stale(key), self.clock()))

    def prepare(self, key: str, seen: Pair, lease_ms: int) -> Pair | None:
        """Put a placeholder into the slot if it is as it was seen; without a lease, nothing."""
        if not lease_ms:
            return seen
        placeholder = Placeholder(os.urandom(PLACEHOLDER_NONCE_BYTES)).to_bytes()
        with self.lock:
            present = self._pair(key)
            if present.slot != seen.slot:
                return None
            self._put(key, placeholder, lease_ms)
            return Pair(present.floor, seen.slot, placeholder)

    def fill(self, key: str, expected: Pair, entry: bytes, ttl_ms: int) -> bool:
        """Write an entry if floor and slot are those that it was checked against."""
        with self.lock:
            present = self._pair(key)
            if (present.floor, present.slot) != (expected.floor, expected.version or expected.slot):
                return False
            self._put(key, entry, ttl_ms)
            return True

    def read_again(self, key: str) -> Pair | None:
        """Return the pair as it is now."""
        return self.read([key])[0]

    def release(self, key: str, prepared: Pair) -> None:
        """Delete the placeholder of a prepared fill if it is still there."""
        with self.lock:
            if prepared.version is not None and self._pair(key).slot == prepared.version:
                self.node(self.layout.bucket(key)).drop(key)

    def together(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `Store.together`: one after the other."""
        return [getattr(self, method)(*each) for each in arguments]

    def forget(self, keys: Sequence[str]) -> None:
        """Delete the slots of these keys."""
        with self.lock:
            for key in keys:
                node = self.node(self.layout.bucket(key))
                node.drop(key)
                node.drop(_stale(key))

    def want_floors(self, buckets: Iterable[int]) -> None:
        """Note the buckets for the invalidator."""
        with self.lock:
            for bucket in buckets:
                self.node(bucket).wanted.add(bucket)

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """Raise floors by the changes, and remove the values that do not hold them."""
        raised, removed, closed = 0, 0, set()
        with self.lock:
            for bucket, touching in by_bucket(self.layout, changes).items():
                floor = self.node(bucket).floors.get(bucket)
                slots = {each.key: self._pair(each.key).slot for each in touching}
                swap = decide_swap(bucket, touching, floor, slots)
                if swap is None or swap.floor is None:
                    closed.add(bucket)
                if swap is not None:
                    raised += swap.floor not in (None, floor)
                    removed += self._swap(swap)
        return Invalidated(raised, removed, 0, frozenset(closed))

    def position(self, node: str, key_range: str) -> bytes | None:
        """Return the published position of a key range."""
        return self.memory[node].positions.get(key_range)

    def check(self) -> Findings:
        """Return that its own invalidator has its layout."""
        return Findings(layout=self.layout.text)

    def close(self) -> None:
        """Keep everything: there are no connections."""

    def _swap(self, swap: Swap) -> int:
        node = self.node(swap.bucket)
        if swap.floor is None:
            del node.floors[swap.bucket]
        else:
            node.floors[swap.bucket] = swap.floor
        for key in swap.removed if self._stale_ok_s else ():
            slot = self._pair(key).slot
            if slot is not None and is_entry(slot):
                expires_at = self.clock() + self._stale_ok_s
                node.put(_stale(key), slot, expires_at, self._values_max)
        return sum(node.drop(key) for key in swap.removed)

    def _pair(self, key: str) -> Pair:
        bucket = self.layout.bucket(key)
        node = self.node(bucket)
        return Pair(node.floors.get(bucket), node.slot(key, self.clock()))

    def _put(self, key: str, stored: bytes, ttl_ms: int) -> None:
        node = self.node(self.layout.bucket(key))
        node.put(key, stored, self.clock() + ttl_ms / 1000, self._values_max)


def _stale(key: str) -> str:
    """Return the slot of the value that was last removed."""
    return f"\0stale:{key}"
