"""Stores on real Redis servers under test."""

from collections.abc import Sequence
from dataclasses import replace

from caching.stores.on_redis.async_store import AsyncRedisStore
from caching.stores.on_redis.floors import RedisFloors
from caching.stores.on_redis.store import RedisStore
from shardstream.local.cache_server import RedisServer
from tests.caching.cache_servers import admin
from tests.caching.stores.blocking import Blocking
from tests.caching.stores.opened import TIMEOUT_MS, Opened, own_layout


def redis_url(servers: Sequence[RedisServer]) -> str:
    """The URL of one server, or of a cluster."""
    scheme = "redis+cluster" if "--cluster-enabled" in servers[0].extra_args else "redis"
    return f"{scheme}://{','.join(server.address for server in servers)}"


def open_redis(servers: Sequence[RedisServer], *, stale_ok_s: int = 0) -> Opened:
    """A cache on servers that other tests use too."""
    url, layout = redis_url(servers), own_layout()
    admins = [admin(server) for server in servers]

    def floors() -> RedisFloors:
        return RedisFloors(layout, url, timeout_ms=TIMEOUT_MS, stale_ok_s=stale_ok_s)

    def flush() -> None:
        for client in admins:
            for name in client.scan_iter(f"{layout.prefix}:*"):
                client.delete(name)

    def disconnect() -> None:
        for client in admins:
            client.client_kill_filter(_type="normal", skipme=True)

    store = RedisStore(layout, url, timeout_ms=TIMEOUT_MS, stale_ok_s=stale_ok_s)
    return Opened(store, floors(), floors, flush, disconnect)


def open_async_redis(servers: Sequence[RedisServer]) -> Opened:
    """The same with a client for asyncio."""
    opened = open_redis(servers)
    store = AsyncRedisStore(opened.layout, redis_url(servers), timeout_ms=TIMEOUT_MS)
    return replace(opened, store=Blocking(store))
