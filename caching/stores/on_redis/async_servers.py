"""Connections to the servers of a store, for asyncio."""

from collections.abc import Mapping, Sequence
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from caching.errors import StoreUnreachable
from caching.protocol import Layout
from caching.stores.on_redis.exchange import CALLS_MAX, SENDS_MAX, Exchange, slots_of, unsettled
from caching.stores.on_redis.pools import Pools
from caching.stores.on_redis.routes import Address, Location, Routes
from caching.stores.on_redis.scripts import CLUSTER_SLOTS, Call, Word
from caching.stores.on_redis.steps import Steps, T
from caching.stores.on_redis.wire import NO_ANSWER, send_async


def _pool(url: str, options: Mapping[str, Any]) -> ConnectionPool:
    return ConnectionPool.from_url(url, **options, retry=Retry(NoBackoff(), 0))


class AsyncServers:
    """`Servers` for asyncio."""

    def __init__(self, layout: Layout, url: str, *, timeout_ms: int, open_s: float) -> None:
        """Connect to nothing yet. LayoutError on a URL that cannot be used."""
        self._location = Location.parse(url)
        self.is_cluster = self._location.is_cluster
        self._routes = Routes(self._location, layout)
        self._pools = Pools(self._location, _pool, timeout_ms=timeout_ms, open_s=open_s)
        self._pools.of(self._routes.address[0])

    async def carry_out(self, steps: Steps[T]) -> T:
        """Run the steps of a call to its result."""
        try:
            calls = next(steps)
            while True:
                calls = steps.send(await self._run(calls))
        except StopIteration as done:
            result: T = done.value
            return result

    def name_of(self, group: int) -> str:
        """Return the address of the server of a group, as it was last known."""
        return str(self._routes.address[group])

    async def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.all():
            await pool.aclose()

    async def _run(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 1 and self._routes.is_known:
            [call] = calls
            replies = await self._send(self._routes.address[call.group], (call.words,))
            if not isinstance(replies[0], ResponseError):
                return replies
        exchange = Exchange(calls)
        for _ in range(SENDS_MAX):
            await self._learn_routes()
            for address, numbers in exchange.by_address(self._routes).items():
                for at in range(0, len(numbers), CALLS_MAX):
                    part = numbers[at : at + CALLS_MAX]
                    replies = await self._send(address, [exchange.words[each] for each in part])
                    exchange.take(address, part, replies)
            if not exchange.waiting:
                return exchange.replies
            if exchange.has_moved:
                self._routes.forget()
        raise unsettled(self._routes)

    async def _send(self, address: Address, words: Sequence[tuple[Word, ...]]) -> list[Any]:
        pool, circuit = self._pools.of(address)
        circuit.check()
        try:
            connection = await pool.get_connection()  # type: ignore[no-untyped-call]
            try:
                return await send_async(connection, words)
            finally:
                await pool.release(connection)
        except NO_ANSWER as fault:
            self._routes.forget()
            raise circuit.failed(fault) from fault

    async def _learn_routes(self) -> None:
        faults: list[StoreUnreachable] = []
        for address in [] if self._routes.is_known else self._routes.candidates():
            try:
                replies = await self._send(address, [CLUSTER_SLOTS])
                self._routes.learn(slots_of(address, replies), address)
            except StoreUnreachable as fault:
                faults.append(fault)
            else:
                return
        if faults:
            raise faults[0]
