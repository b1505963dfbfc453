"""Stores under test: a client's and an invalidator's side of one cache, and what can befall it."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from caching.protocol import CacheEntry, CacheLayout, Floor
from caching.stores.memory import MemoryFloors, MemoryStore
from caching.stores.store import FloorStore, Store, StoreOptions
from event_token import ClockUncertainty, EventToken
from tests.caching.protocol.tokens import TRUSTED, by_shard
from tests.caching.stores.blocking import BlockingStore

# Few, so that keys share them and all floors are quickly changed.
BUCKETS = 64
RANGE = "-"
TTL_MS = 600_000
# A test waits for a busy machine.
TIMEOUT_MS = 120_000
OPTIONS = StoreOptions(timeout_ms=TIMEOUT_MS)


@dataclass(frozen=True)
class Opened:
    """Both sides of one cache, which no other test uses; `raw` is what a `Cache` takes."""

    raw: Store
    floors: FloorStore
    # Another invalidator of the same cache.
    more_floors: Callable[[], FloorStore]
    flush: Callable[[], None]
    # End all connections to the nodes, whose data stays.
    disconnect: Callable[[], None]

    @cached_property
    def store(self) -> BlockingStore:
        """The client's side, whose calls are carried out at once."""
        return BlockingStore(self.raw)

    @property
    def layout(self) -> CacheLayout:
        """The layout of both."""
        return self.raw.layout

    def make(self, keys: list[str], *tokens: EventToken) -> bytes:
        """Make the floors of the keys' buckets at these tokens; return their generation."""
        floor = Floor(secrets.token_bytes(16), by_shard(tokens))
        self.floors.resume(RANGE)
        claim = self.floors.claim({self.layout.bucket(key) for key in keys})
        self.floors.make_floors(claim, lambda: floor)
        return floor.generation

    def put(
        self, key: str, generation: bytes, *tokens: EventToken, value: bytes = b"v"
    ) -> CacheEntry:
        """Fill a key whatever its slot holds; the entry that was written."""
        entry = CacheEntry(generation, secrets.token_bytes(8), by_shard(tokens), 0, value)
        [seen] = self.store.read([key])
        prepared = self.store.prepare(key, seen, 0)
        assert prepared is not None
        assert self.store.fill(key, prepared, entry.to_bytes(), TTL_MS)
        return entry

    def floor(self, key: str) -> Floor | None:
        """The floor of a key's bucket."""
        return Floor.parse(self.store.read([key])[0].floor)

    def slot(self, key: str) -> bytes | None:
        """What a key's slot holds."""
        return self.store.read([key])[0].slot


def own_name() -> str:
    """The name of a cache that no other test uses."""
    return f"test-{secrets.token_hex(8)}"


def own_layout() -> CacheLayout:
    """A layout that no other test uses."""
    return CacheLayout(own_name(), BUCKETS)


def open_memory(*, stale_ok_s: int = 0, clock: ClockUncertainty = TRUSTED) -> Opened:
    """Two nodes in memory."""
    store = MemoryStore(
        own_layout(), nodes=("a", "b"), stale_ok_s=stale_ok_s, clock_uncertainty=clock
    )

    def flush() -> None:
        for node in store.memory.values():
            node.flush()

    def disconnect() -> None:
        for node in store.memory.values():
            node.connections += 1

    return Opened(store, MemoryFloors(store), lambda: MemoryFloors(store), flush, disconnect)
