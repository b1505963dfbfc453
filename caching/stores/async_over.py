"""An `AsyncStore` over a `Store`: memcached in threads, memory directly."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from caching.findings import Findings
from caching.protocol import Layout
from caching.stores.store import Invalidated, KeyChange, Pair, Store

P = ParamSpec("P")
T = TypeVar("T")


class AsyncOver:
    """Each call of the store in a thread; or at once, if it never blocks."""

    def __init__(self, store: Store, *, in_threads: bool) -> None:
        """Take over the store; `close` closes it."""
        self._store = store
        self._in_threads = in_threads
        self.layout: Layout = store.layout
        self.nodes: Sequence[str] = store.nodes

    def node_of(self, bucket: int) -> str:
        """Return the node of a bucket."""
        return self._store.node_of(bucket)

    async def read(self, keys: Sequence[str]) -> list[Pair]:
        """See `Store.read`."""
        return await self._run(self._store.read, keys)

    async def read_stale(self, key: str) -> Pair:
        """See `Store.read_stale`."""
        return await self._run(self._store.read_stale, key)

    async def prepare(self, key: str, seen: Pair, lease_ms: int) -> Pair | None:
        """See `Store.prepare`."""
        return await self._run(self._store.prepare, key, seen, lease_ms)

    async def fill(self, key: str, expected: Pair, entry: bytes, ttl_ms: int) -> bool:
        """See `Store.fill`."""
        return await self._run(self._store.fill, key, expected, entry, ttl_ms)

    async def read_again(self, key: str) -> Pair | None:
        """See `Store.read_again`."""
        return await self._run(self._store.read_again, key)

    async def release(self, key: str, prepared: Pair) -> None:
        """See `Store.release`."""
        await self._run(self._store.release, key, prepared)

    async def together(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `Store.together`."""
        return await self._run(self._store.together, method, arguments)

    async def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        await self._run(self._store.forget, keys)

    async def want_floors(self, buckets: Iterable[int]) -> None:
        """See `Store.want_floors`."""
        await self._run(self._store.want_floors, buckets)

    async def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """See `Store.invalidate`."""
        return await self._run(self._store.invalidate, changes)

    async def position(self, node: str, key_range: str) -> bytes | None:
        """See `Store.position`."""
        return await self._run(self._store.position, node, key_range)

    async def check(self) -> Findings:
        """See `Store.check`."""
        return await self._run(self._store.check)

    async def close(self) -> None:
        """See `Store.close`; in a thread, because it may wait for one that ends."""
        await asyncio.to_thread(self._store.close)

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._in_threads:
            return await asyncio.to_thread(call, *args, **kwargs)
        return call(*args, **kwargs)
