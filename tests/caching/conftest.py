"""Every store in turn."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from shardstream.local.cache_server import MemcachedServer, RedisServer
from tests.caching.stores.memcached_stores import open_async_memcached, open_memcached
from tests.caching.stores.opened import Opened, open_async_memory, open_memory
from tests.caching.stores.redis_stores import open_async_redis, open_redis

IN_MEMORY: dict[str, Callable[[], Opened]] = {
    "memory": open_memory,
    "memory-async": partial(open_async_memory, in_threads=False),
    "memory-threads": partial(open_async_memory, in_threads=True),
}
ON_REDIS: dict[str, Callable[[RedisServer], Opened]] = {
    "redis": open_redis,
    "redis-async": open_async_redis,
}
ON_MEMCACHED: dict[str, Callable[[Sequence[MemcachedServer]], Opened]] = {
    "memcached": open_memcached,
    "memcached-async": open_async_memcached,
}
ON_SERVERS = [pytest.param(name, marks=pytest.mark.servers) for name in (*ON_REDIS, *ON_MEMCACHED)]


@pytest.fixture(scope="session")
def redis_server(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    """A Redis server."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), die_with_parent=True)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def memcached_servers(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sequence[MemcachedServer]]:
    """Two memcached servers."""
    folder = tmp_path_factory.mktemp("memcached")
    servers = [MemcachedServer(folder / name, die_with_parent=True) for name in ("a", "b")]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()


@pytest.fixture(params=[*IN_MEMORY, *ON_SERVERS])
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """A store of each kind in turn."""
    if request.param in IN_MEMORY:
        found = IN_MEMORY[request.param]()
    elif request.param in ON_MEMCACHED:
        found = ON_MEMCACHED[request.param](request.getfixturevalue("memcached_servers"))
    else:
        found = ON_REDIS[request.param](request.getfixturevalue("redis_server"))
    yield found
    found.floors.close()
    found.store.close()
