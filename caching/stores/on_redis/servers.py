"""Connections to the servers of a store, for threads."""

from collections.abc import Collection, Sequence
from typing import Any

from redis.exceptions import ResponseError

from caching.errors import StoreUnreachable
from caching.protocol import Layout
from caching.stores.on_redis.connections import Connections
from caching.stores.on_redis.exchange import CALLS_MAX, SENDS_MAX, Exchange, slots_of, unsettled
from caching.stores.on_redis.pools import Pools
from caching.stores.on_redis.routes import Address, Location, Routes
from caching.stores.on_redis.scripts import CLUSTER_SLOTS, Call, Word
from caching.stores.on_redis.steps import Steps, T
from caching.stores.on_redis.wire import NO_ANSWER


class Servers:
    """A pool of connections per server; after a failure its circuit is open."""

    def __init__(self, layout: Layout, url: str, *, timeout_ms: int, open_s: float) -> None:
        """Connect to nothing yet. LayoutError on a URL that cannot be used."""
        self._location = Location.parse(url)
        self.is_cluster = self._location.is_cluster
        self._routes = Routes(self._location, layout)
        self._pools = Pools(self._location, Connections, timeout_ms=timeout_ms, open_s=open_s)
        self._pools.of(self._routes.address[0])

    def carry_out(self, steps: Steps[T]) -> T:
        """Run the steps of a call to its result."""
        try:
            calls = next(steps)
            while True:
                calls = steps.send(self.run(calls))
        except StopIteration as done:
            result: T = done.value
            return result

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Send each call to the primary of its group; return the replies in their order."""
        if len(calls) == 1 and self._routes.is_known:
            [call] = calls
            self._check((call.group,))
            replies = self._send(self._routes.address[call.group], (call.words,))
            if not isinstance(replies[0], ResponseError):
                return replies
        return self._exchange(calls)

    def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.all():
            pool.close()

    def _exchange(self, calls: Sequence[Call]) -> list[Any]:
        exchange = Exchange(calls)
        for _ in range(SENDS_MAX):
            self._learn_routes()
            self._check({calls[number].group for number in exchange.waiting})
            for address, numbers in exchange.by_address(self._routes).items():
                for at in range(0, len(numbers), CALLS_MAX):
                    part = numbers[at : at + CALLS_MAX]
                    replies = self._send(address, [exchange.words[number] for number in part])
                    exchange.take(address, part, replies)
            if not exchange.waiting:
                return exchange.replies
            if exchange.has_moved:
                self._routes.forget()
        raise unsettled(self._routes)

    def name_of(self, group: int) -> str:
        """Return the address of the server of a group, as it was last known."""
        return str(self._routes.address[group])

    def _check(self, groups: Collection[int]) -> None:
        """Look at the groups that commands are about to be sent to; any connection will do."""

    def _send(self, address: Address, words: Sequence[tuple[Word, ...]]) -> list[Any]:
        pool, circuit = self._pools.of(address)
        circuit.check()
        try:
            return pool.send(words)
        except NO_ANSWER as fault:
            self._routes.forget()
            raise circuit.failed(fault) from fault

    def _learn_routes(self) -> None:
        """Ask the servers of a cluster, until one answers, which server holds which slots."""
        faults: list[StoreUnreachable] = []
        for address in [] if self._routes.is_known else self._routes.candidates():
            try:
                self._routes.learn(slots_of(address, self._send(address, [CLUSTER_SLOTS])), address)
            except StoreUnreachable as fault:
                faults.append(fault)
            else:
                return
        if faults:
            raise faults[0]
