"""A store whose calls are carried out at once, so that tests read alike for all stores."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import TypeVar

from caching.errors import CacheFindings
from caching.steps import Steps, run_steps, run_steps_async
from caching.stores.store import (
    Announcement,
    EntryWrite,
    Invalidated,
    KeyChange,
    KeyState,
    Store,
)

T = TypeVar("T")


class BlockingStore:
    """Carries out each call of a store: one for asyncio in an event loop of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop() if store.is_async else None
        self.layout = store.layout
        self.nodes = store.nodes
        self.node_of = store.node_of

    def begin_loop(self) -> None:
        """In a forked process: its parent's event loop is none of its own."""
        if self._loop is not None:
            self._loop = asyncio.new_event_loop()

    def read(self, keys: Sequence[str]) -> list[KeyState]:
        return self._run(self._store.read(keys))

    def read_stale(self, key: str) -> KeyState:
        return self._run(self._store.read_stale(key))

    def prepare(self, key: str, seen: KeyState, lease_ms: int) -> KeyState | None:
        return self.prepare_many([Announcement(key, seen, lease_ms)])[0]

    def prepare_many(self, fills: Sequence[Announcement]) -> list[KeyState | None]:
        return self._run(self._store.prepare(fills))

    def fill(self, key: str, expected: KeyState, entry: bytes, ttl_ms: int) -> bool:
        return self.fill_many([EntryWrite(key, expected, entry, ttl_ms)])[0]

    def fill_many(self, writes: Sequence[EntryWrite]) -> list[bool]:
        return self._run(self._store.fill(writes))

    def read_again(self, key: str) -> KeyState | None:
        return self._run(self._store.read_again([key]))[0]

    def release(self, key: str, prepared: KeyState) -> None:
        self._run(self._store.release([(key, prepared)]))

    def forget(self, keys: Sequence[str]) -> None:
        self._run(self._store.forget(keys))

    def want_floors(self, buckets: Iterable[int]) -> None:
        self._run(self._store.want_floors(buckets))

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        return self._run(self._store.invalidate(changes))

    def position(self, node: str, key_range: str) -> bytes | None:
        return self._run(self._store.positions([(node, key_range)]))[0]

    def check(self) -> CacheFindings:
        return self._run(self._store.check())

    def close(self) -> None:
        self._run(self._store.close())
        if self._loop is not None:
            self._loop.close()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Carry out a coroutine in the event loop of a store for asyncio."""
        assert self._loop is not None
        return self._loop.run_until_complete(work)

    def _run(self, steps: Steps[T]) -> T:
        return run_steps(steps) if self._loop is None else self.run(run_steps_async(steps))
