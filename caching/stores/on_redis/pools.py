"""A pool of connections per server, of redis-py's kind for threads or for asyncio."""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, Generic, TypeVar

from caching.errors import LayoutError
from caching.stores.circuit import Circuit
from caching.stores.on_redis.routes import Address, Location
from caching.stores.on_redis.wire import options

P = TypeVar("P")


class Pools(Generic[P]):
    """Pools by server, each with the circuit that is open after a failure. Thread-safe."""

    def __init__(
        self,
        location: Location,
        from_url: Callable[[str, Mapping[str, Any]], P],
        *,
        timeout_ms: int,
        open_s: float,
    ) -> None:
        """Connect to nothing. `from_url` makes the pool of a server; ValueError on a bad URL."""
        self._location = location
        self._from_url = from_url
        self._options = options(timeout_ms)
        self._open_s = open_s
        self._pools: dict[Address, tuple[P, Circuit]] = {}
        self._lock = Lock()

    def of(self, address: Address) -> tuple[P, Circuit]:
        """Return the pool and the circuit of a server; LayoutError if its URL cannot be used."""
        with self._lock:
            if address not in self._pools:
                try:
                    pool = self._from_url(self._location.url(address), self._options)
                except ValueError as fault:
                    raise LayoutError(f"the URL of Redis store {address}: {fault}") from fault
                self._pools[address] = pool, Circuit(str(address), self._open_s)
            return self._pools[address]

    def all(self) -> list[P]:
        """Return all pools."""
        with self._lock:
            return [pool for pool, _ in self._pools.values()]
