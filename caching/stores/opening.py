"""Open the store that a URL names."""

from importlib import import_module
from types import ModuleType

from caching.errors import LayoutError, StoreExtraMissing
from caching.protocol import Layout
from caching.protocol.layout import BUCKETS_DEFAULT
from caching.stores.async_over import AsyncOver
from caching.stores.circuit import FLOORS_TIMEOUT_MS, OPEN_S, TIMEOUT_MS
from caching.stores.memory import MemoryStore
from caching.stores.store import AsyncStore, FloorStore, Store

REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
SCHEMES = (*REDIS_SCHEMES, "memcached", "memory")


def open_store(
    url: str,
    cache: str,
    buckets: int = BUCKETS_DEFAULT,
    *,
    timeout_ms: int = TIMEOUT_MS,
    open_s: float = OPEN_S,
    stale_ok_s: int = 0,
) -> Store:
    """Open a client's side of a cache's store; it connects when it is first used.

    `timeout_ms` is how long it waits for a server, `open_s` how long it leaves one alone that did
    not answer. `stale_ok_s`: see `CacheOptions`; its invalidator has to
    have the same. Raises LayoutError on a URL, name or number of buckets that cannot be used,
    StoreExtraMissing if the client library is not installed.
    """
    if _scheme(url) == "memory":
        return MemoryStore(Layout(cache, buckets), stale_ok_s=stale_ok_s)
    if _scheme(url) == "memcached":
        module = _import("caching.stores.on_memcached.store", "memcached")
        cached: Store = module.MemcachedStore(
            cache, url, buckets, timeout_ms=timeout_ms, open_s=open_s, stale_ok_s=stale_ok_s
        )
        return cached
    module = _import("caching.stores.on_redis.store", "redis")
    store: Store = module.RedisStore(
        Layout(cache, buckets),
        url,
        timeout_ms=timeout_ms,
        open_s=open_s,
        stale_ok_s=stale_ok_s,
    )
    return store


def open_async_store(
    url: str,
    cache: str,
    buckets: int = BUCKETS_DEFAULT,
    *,
    timeout_ms: int = TIMEOUT_MS,
    open_s: float = OPEN_S,
    stale_ok_s: int = 0,
) -> AsyncStore:
    """Open a client's side for asyncio; see `open_store`."""
    if _scheme(url) == "memory":
        memory = MemoryStore(Layout(cache, buckets), stale_ok_s=stale_ok_s)
        return AsyncOver(memory, in_threads=False)
    if _scheme(url) == "memcached":
        cached = open_store(
            url, cache, buckets, timeout_ms=timeout_ms, open_s=open_s, stale_ok_s=stale_ok_s
        )
        return AsyncOver(cached, in_threads=True)
    module = _import("caching.stores.on_redis.async_store", "redis")
    store: AsyncStore = module.AsyncRedisStore(
        Layout(cache, buckets),
        url,
        timeout_ms=timeout_ms,
        open_s=open_s,
        stale_ok_s=stale_ok_s,
    )
    return store


def open_floors(
    url: str,
    cache: str,
    buckets: int = BUCKETS_DEFAULT,
    *,
    timeout_ms: int = FLOORS_TIMEOUT_MS,
    stale_ok_s: int = 0,
) -> FloorStore:
    """Open the invalidator's side; see `open_store`. LayoutError for a store in memory."""
    if _scheme(url) == "memory":
        raise LayoutError(
            "a store in memory belongs to one process, which invalidates it by itself; an "
            "invalidator needs Redis or memcached"
        )
    if _scheme(url) == "memcached":
        module = _import("caching.stores.on_memcached.floors", "memcached")
        cached: FloorStore = module.MemcachedFloors(
            cache, url, buckets, timeout_ms=timeout_ms, stale_ok_s=stale_ok_s
        )
        return cached
    module = _import("caching.stores.on_redis.floors", "redis")
    floors: FloorStore = module.RedisFloors(
        Layout(cache, buckets), url, timeout_ms=timeout_ms, stale_ok_s=stale_ok_s
    )
    return floors


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise LayoutError(
            f"'{url}' is not the URL of a cache's store: it begins with "
            f"{', '.join(f'{each}://' for each in SCHEMES)}"
        )
    return scheme


def _import(module: str, extra: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("caching"):
            raise
        raise StoreExtraMissing(
            f"{error.name} is not installed; it comes with an extra: "
            f"pip install 'shardstream[{extra}]'"
        ) from error
