"""Stores on two real memcached servers under test."""

import socket
from collections.abc import Sequence
from contextlib import suppress

from pymemcache import Client

from caching.stores.memcached import MemcachedFloors, MemcachedStore
from caching.stores.store import StoreOptions
from event_token import ClockUncertainty
from shardstream.local.cache_server import MemcachedServer
from tests.caching.protocol.tokens import TRUSTED
from tests.caching.stores.opened import BUCKETS, TIMEOUT_MS, Opened, own_name


def open_memcached(
    servers: Sequence[MemcachedServer],
    *,
    is_async: bool = False,
    stale_ok_s: int = 0,
    clock: ClockUncertainty = TRUSTED,
) -> Opened:
    """A cache on all servers; those of other tests lose their data when this one is flushed."""
    url = f"memcached://{','.join(server.address for server in servers)}"
    name = own_name()
    options = StoreOptions(
        is_async=is_async, timeout_ms=TIMEOUT_MS, stale_ok_s=stale_ok_s, clock_uncertainty=clock
    )
    made: list[MemcachedFloors] = []

    def floors() -> MemcachedFloors:
        found = MemcachedFloors(name, url, BUCKETS, options)
        made.append(found)
        return found

    def flush() -> None:
        for server in servers:
            Client((server.host, server.port)).flush_all(noreply=False)

    def disconnect() -> None:
        opened.floors.close()
        for node in (node for each in made[1:] for node in each._nodes.values()):
            client = node._resumed  # another thread may be using it
            if client is not None and client.sock is not None:
                with suppress(OSError):
                    client.sock.shutdown(socket.SHUT_RDWR)

    store = MemcachedStore(name, url, BUCKETS, options)
    opened = Opened(store, floors(), floors, flush, disconnect)
    return opened
