"""Connections to one memcached server: a pool for clients, a single one for the invalidator."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol
from urllib.parse import urlsplit

from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import (
    MemcacheError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
)

from caching.errors import Reconnected, StoreError, StoreFull, StoreUnreachable
from caching.stores.circuit import Circuit

NO_ANSWER = (OSError, MemcacheUnexpectedCloseError)
# What a server says that stores no more, and of an item above its limit (1 MB by default).
FULL = ("out of memory", "too large")


class Node(Protocol):
    """One server."""

    name: str

    def client(self) -> AbstractContextManager[Client]:
        """Lend one connection; StoreError on any error while it is lent."""


class PooledNode:
    """A server that threads ask; after a failure it is left alone for `open_s` seconds."""

    def __init__(self, name: str, *, timeout_ms: int, open_s: float) -> None:
        """Connect to nothing yet."""
        self.name = name
        self._circuit = Circuit(name, open_s)
        timeout_s = timeout_ms / 1000
        self._pooled = PooledClient(
            _server(name), connect_timeout=timeout_s, timeout=timeout_s, no_delay=True
        )

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Lend a connection of the pool."""
        self._circuit.check()
        pool = self._pooled.client_pool
        try:
            client = pool.get()
            try:
                yield client
            except BaseException:  # after an interrupt, too, a reply may be unread
                pool.destroy(client)
                raise
            pool.release(client)
        except (ConnectionResetError, BrokenPipeError, MemcacheUnexpectedCloseError) as fault:
            # A server that was restarted: the other idle connections are dead, too. Those in use
            # are left to their threads, which would find them closed in mid-reply.
            while pool.free:
                pool.destroy(pool.get())
            message = f"cache server {self.name} has closed the connection"
            raise StoreUnreachable(self.name, message) from fault
        except OSError as fault:
            raise self._circuit.failed(fault) from fault
        except MemcacheError as fault:
            raise _explained(self.name, fault) from fault

    def close(self) -> None:
        """Close all connections."""
        self._pooled.close()


class PinnedNode:
    """A server with one connection, which has to be resumed on before it is used (rule 11)."""

    def __init__(self, name: str, *, timeout_ms: int) -> None:
        """Connect to nothing yet."""
        self.name = name
        self._connections = 0
        self._resumed = 0
        timeout_s = timeout_ms / 1000
        self._client = Client(
            _server(name), connect_timeout=timeout_s, timeout=timeout_s, no_delay=True
        )

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Lend the connection; Reconnected if it is not the one that was resumed on."""
        with self.any_client() as client:
            if self._resumed != self._connections:
                raise Reconnected(self.name)
            yield client

    @contextmanager
    def any_client(self) -> Iterator[Client]:
        """Lend the connection, also a new one."""
        try:
            if self._client.sock is None:
                self._client.version()
                self._connections += 1
            yield self._client
        except NO_ANSWER as fault:
            self._client.close()
            raise StoreUnreachable(
                self.name, f"cache server {self.name} does not answer: {fault}"
            ) from fault
        except MemcacheError as fault:
            raise _explained(self.name, fault) from fault

    def resume(self, name: str) -> tuple[bool, bytes | None]:
        """Connect; tell whether the connection is new, and then what is stored under a name."""
        with self.any_client() as client:
            if self._resumed == self._connections:
                return False, None
            stored: bytes | None = client.get(name)
            self._resumed = self._connections
            return True, stored

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def is_full(error: MemcacheError) -> bool:
    """Tell whether a server has no memory for what it was sent."""
    return isinstance(error, MemcacheServerError) and any(word in str(error) for word in FULL)


def _server(name: str) -> tuple[str, int]:
    parts = urlsplit(f"//{name}")
    return parts.hostname or "", parts.port or 0


def _explained(name: str, error: MemcacheError) -> StoreError:
    message = f"cache server {name}: {error}"
    if is_full(error):
        return StoreFull(name, message)
    return StoreError(name, message)
