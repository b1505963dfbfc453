"""A `Store` over an `AsyncStore`, so that one suite runs on both."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from caching.findings import Findings
from caching.stores.store import AsyncStore, Invalidated, KeyChange, Pair

T = TypeVar("T")


class Blocking:
    """Runs each call to its end in an event loop of its own."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self.layout = store.layout
        self.nodes = store.nodes

    def node_of(self, bucket: int) -> str:
        return self._store.node_of(bucket)

    def read(self, keys: Sequence[str]) -> list[Pair]:
        return self._run(self._store.read(keys))

    def read_stale(self, key: str) -> Pair:
        return self._run(self._store.read_stale(key))

    def prepare(self, key: str, seen: Pair, lease_ms: int) -> Pair | None:
        return self._run(self._store.prepare(key, seen, lease_ms))

    def fill(self, key: str, expected: Pair, entry: bytes, ttl_ms: int) -> bool:
        return self._run(self._store.fill(key, expected, entry, ttl_ms))

    def read_again(self, key: str) -> Pair | None:
        return self._run(self._store.read_again(key))

    def release(self, key: str, prepared: Pair) -> None:
        self._run(self._store.release(key, prepared))

    def together(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return self._run(self._store.together(method, arguments))

    def forget(self, keys: Sequence[str]) -> None:
        self._run(self._store.forget(keys))

    def want_floors(self, buckets: Iterable[int]) -> None:
        self._run(self._store.want_floors(buckets))

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        return self._run(self._store.invalidate(changes))

    def position(self, node: str, key_range: str) -> bytes | None:
        return self._run(self._store.position(node, key_range))

    def check(self) -> Findings:
        return self._run(self._store.check())

    def close(self) -> None:
        self._run(self._store.close())
        self._loop.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)
