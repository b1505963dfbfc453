"""Stores under test: a client's and an invalidator's side of one cache, and what can befall it."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from caching.protocol import Entry, Floor, Layout
from caching.stores.async_over import AsyncOver
from caching.stores.memory import MemoryStore
from caching.stores.memory_floors import MemoryFloors
from caching.stores.store import FloorStore, Store
from event_token import EventToken
from tests.caching.protocol.tokens import by_shard
from tests.caching.stores.blocking import Blocking

# Few, so that keys share them and all floors are quickly changed.
BUCKETS = 64
RANGE = "-"
TTL_MS = 600_000
# A test waits for a busy machine.
TIMEOUT_MS = 120_000


@dataclass(frozen=True)
class Opened:
    """Both sides of one cache, which no other test uses."""

    store: Store
    floors: FloorStore
    # Another invalidator of the same cache.
    more_floors: Callable[[], FloorStore]
    flush: Callable[[], None]
    # End all connections to the nodes, whose data stays.
    disconnect: Callable[[], None]

    @property
    def layout(self) -> Layout:
        """The layout of both."""
        return self.store.layout

    def make(self, keys: list[str], *tokens: EventToken) -> bytes:
        """Make the floors of the keys' buckets at these tokens; return their generation."""
        floor = Floor(secrets.token_bytes(16), by_shard(tokens))
        self.floors.resume(RANGE)
        claim = self.floors.claim({self.layout.bucket(key) for key in keys})
        self.floors.make_floors(claim, lambda: floor)
        return floor.generation

    def put(self, key: str, generation: bytes, *tokens: EventToken, value: bytes = b"v") -> Entry:
        """Fill a key whatever its slot holds; the entry that was written."""
        entry = Entry(generation, secrets.token_bytes(8), by_shard(tokens), 0, value)
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


def own_layout() -> Layout:
    """A layout that no other test uses."""
    return Layout(own_name(), BUCKETS)


def open_memory(*, stale_ok_s: int = 0) -> Opened:
    """Two nodes in memory."""
    store = MemoryStore(own_layout(), nodes=("a", "b"), stale_ok_s=stale_ok_s)

    def flush() -> None:
        for node in store.memory.values():
            node.flush()

    def disconnect() -> None:
        for node in store.memory.values():
            node.connections += 1

    return Opened(store, MemoryFloors(store), lambda: MemoryFloors(store), flush, disconnect)


def open_async_memory(*, in_threads: bool) -> Opened:
    """The same for asyncio."""
    opened = open_memory()
    return replace(opened, store=Blocking(AsyncOver(opened.store, in_threads=in_threads)))
