"""Stores on real Redis servers under test."""

from collections.abc import Sequence

from caching.stores.on_redis.store import RedisFloors, RedisStore
from caching.stores.store import StoreOptions
from event_token import ClockUncertainty
from shardstream.local.cache_server import RedisServer
from tests.caching.cache_servers import admin
from tests.caching.protocol.tokens import TRUSTED
from tests.caching.stores.opened import TIMEOUT_MS, Opened, own_layout


def redis_url(servers: Sequence[RedisServer]) -> str:
    """The URL of one server, or of a cluster."""
    scheme = "redis+cluster" if "--cluster-enabled" in servers[0].extra_args else "redis"
    return f"{scheme}://{','.join(server.address for server in servers)}"


def open_redis(
    servers: Sequence[RedisServer],
    *,
    is_async: bool = False,
    stale_ok_s: int = 0,
    clock: ClockUncertainty = TRUSTED,
) -> Opened:
    """A cache on servers that other tests use too."""
    url, layout = redis_url(servers), own_layout()
    options = StoreOptions(
        is_async=is_async, timeout_ms=TIMEOUT_MS, stale_ok_s=stale_ok_s, clock_uncertainty=clock
    )
    admins = [admin(server) for server in servers]

    def floors() -> RedisFloors:
        return RedisFloors(layout, url, options)

    def flush() -> None:
        for client in admins:
            for name in client.scan_iter(f"{layout.prefix}:*"):
                client.delete(name)

    def disconnect() -> None:
        for client in admins:
            client.client_kill_filter(_type="normal", skipme=True)

    store = RedisStore(layout, url, options)
    return Opened(store, floors(), floors, flush, disconnect)
