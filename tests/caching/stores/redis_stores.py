"""Stores on real Redis servers under test."""

from dataclasses import replace

from redis import Redis

from caching.stores.on_redis.async_store import AsyncRedisStore
from caching.stores.on_redis.floors import RedisFloors
from caching.stores.on_redis.store import RedisStore
from shardstream.local.cache_server import RedisServer
from tests.caching.stores.blocking import Blocking
from tests.caching.stores.opened import TIMEOUT_MS, Opened, own_layout


def open_redis(server: RedisServer) -> Opened:
    """A cache on one server, which other tests use too."""
    url = f"redis://{server.address}"
    layout = own_layout()
    admin = Redis(port=server.port)

    def floors() -> RedisFloors:
        return RedisFloors(layout, url, timeout_ms=TIMEOUT_MS)

    def flush() -> None:
        for name in admin.scan_iter(f"{layout.prefix}:*"):
            admin.delete(name)

    def disconnect() -> None:
        admin.client_kill_filter(_type="normal", skipme=True)

    store = RedisStore(layout, url, timeout_ms=TIMEOUT_MS)
    return Opened(store, floors(), floors, flush, disconnect)


def open_async_redis(server: RedisServer) -> Opened:
    """The same with a client for asyncio."""
    opened = open_redis(server)
    url = f"redis://{server.address}"
    store = AsyncRedisStore(opened.layout, url, timeout_ms=TIMEOUT_MS)
    return replace(opened, store=Blocking(store))
