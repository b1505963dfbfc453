"""Stores on two real memcached servers under test."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from pymemcache import Client

from caching.stores.async_over import AsyncOver
from caching.stores.on_memcached.floors import MemcachedFloors
from caching.stores.on_memcached.store import MemcachedStore
from shardstream.local.cache_server import MemcachedServer
from tests.caching.stores.blocking import Blocking
from tests.caching.stores.opened import BUCKETS, TIMEOUT_MS, Opened, own_name


def open_memcached(servers: Sequence[MemcachedServer], *, stale_ok_s: int = 0) -> Opened:
    """A cache on all servers; those of other tests lose their data when this one is flushed."""
    url = f"memcached://{','.join(server.address for server in servers)}"
    name = own_name()
    made: list[MemcachedFloors] = []

    def floors() -> MemcachedFloors:
        found = MemcachedFloors(name, url, BUCKETS, timeout_ms=TIMEOUT_MS, stale_ok_s=stale_ok_s)
        made.append(found)
        return found

    def flush() -> None:
        for server in servers:
            Client((server.host, server.port)).flush_all(noreply=False)

    def disconnect() -> None:
        opened.floors.close()
        for node in (node for each in made[1:] for node in each._nodes.values()):
            connection = node._client.sock  # another thread may be using it
            if connection is not None:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    store = MemcachedStore(name, url, BUCKETS, timeout_ms=TIMEOUT_MS, stale_ok_s=stale_ok_s)
    opened = Opened(store, floors(), floors, flush, disconnect)
    return opened


def open_async_memcached(servers: Sequence[MemcachedServer]) -> Opened:
    """The same with a client for asyncio."""
    opened = open_memcached(servers)
    return replace(opened, store=Blocking(AsyncOver(opened.store, in_threads=True)))
