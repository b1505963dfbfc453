"""A client's store on Redis or Valkey, for asyncio."""

from collections.abc import Iterable, Sequence
from typing import Any

from caching.findings import Findings
from caching.protocol import Layout
from caching.stores.circuit import OPEN_S, TIMEOUT_MS
from caching.stores.on_redis import checks, steps
from caching.stores.on_redis.async_servers import AsyncServers
from caching.stores.on_redis.store import NODES
from caching.stores.store import Invalidated, KeyChange, Pair


class AsyncRedisStore:
    """An `AsyncStore` on the same keys as `RedisStore`.

    `url`: `redis://`, `rediss://`, `unix://` or `redis+cluster://`, with options as redis-py reads
    them. A server that does not answer for `timeout_ms` is left alone for `open_s` seconds.
    `stale_ok_s`: see `CacheOptions`.
    """

    def __init__(
        self,
        layout: Layout,
        url: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        open_s: float = OPEN_S,
        stale_ok_s: int = 0,
    ) -> None:
        """Connect to nothing yet. LayoutError on a URL that cannot be used."""
        self.layout = layout
        self.nodes: Sequence[str] = NODES
        self._stale_ok_s = stale_ok_s
        self._servers = AsyncServers(layout, url, timeout_ms=timeout_ms, open_s=open_s)

    def node_of(self, bucket: int) -> str:
        """Return the node of a bucket."""
        return NODES[self.layout.group(bucket)]

    async def read(self, keys: Sequence[str]) -> list[Pair]:
        """See `Store.read`."""
        return await self._servers.carry_out(steps.read(self.layout, keys))

    async def read_stale(self, key: str) -> Pair:
        """See `Store.read_stale`."""
        return await self._servers.carry_out(steps.read_stale(self.layout, key))

    async def prepare(self, key: str, seen: Pair, lease_ms: int) -> Pair | None:
        """See `Store.prepare`."""
        return await self._servers.carry_out(steps.prepare(self.layout, key, seen, lease_ms))

    async def fill(self, key: str, expected: Pair, entry: bytes, ttl_ms: int) -> bool:
        """See `Store.fill`."""
        return await self._servers.carry_out(steps.fill(self.layout, key, expected, entry, ttl_ms))

    async def read_again(self, key: str) -> Pair | None:
        """See `Store.read_again`."""
        return (await self.read([key]))[0]

    async def release(self, key: str, prepared: Pair) -> None:
        """See `Store.release`."""
        await self._servers.carry_out(steps.release(self.layout, key, prepared))

    async def together(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `Store.together`."""
        call = steps.CALLS[method]
        several = [call(self.layout, *each) for each in arguments]
        return await self._servers.carry_out(steps.together(several))

    async def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        await self._servers.carry_out(steps.forget(self.layout, keys, self._stale_ok_s))

    async def want_floors(self, buckets: Iterable[int]) -> None:
        """See `Store.want_floors`."""
        await self._servers.carry_out(steps.want_floors(self.layout, buckets))

    async def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """See `Store.invalidate`."""
        return await self._servers.carry_out(
            steps.invalidate(self.layout, changes, self._stale_ok_s)
        )

    async def position(self, node: str, key_range: str) -> bytes | None:
        """See `Store.position`."""
        return await self._servers.carry_out(steps.position(self.layout, node, key_range))

    async def check(self) -> Findings:
        """See `Store.check`."""
        servers = self._servers
        found = checks.check(self.layout, servers.name_of, is_cluster=servers.is_cluster)
        return await servers.carry_out(found)

    async def close(self) -> None:
        """See `Store.close`."""
        await self._servers.close()
