"""Every store in turn."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shardstream.local.cache_server import MemcachedServer, RedisServer
from tests.caching.cache_servers import (
    StartServer,
    cluster_member,
    form_cluster,
    started,
    starter,
)
from tests.caching.stores.memcached_stores import open_memcached
from tests.caching.stores.opened import Opened, open_memory
from tests.caching.stores.redis_stores import open_redis

# By name, the fixture with the servers, and what opens a cache on them.
ON_SERVERS: dict[str, tuple[str, Callable[..., Opened]]] = {
    "redis": ("redis_servers", open_redis),
    "redis-async": ("redis_servers", partial(open_redis, is_async=True)),
    "redis-cluster": ("redis_cluster", open_redis),
    "redis-cluster-async": ("redis_cluster", partial(open_redis, is_async=True)),
    "memcached": ("memcached_servers", open_memcached),
    "memcached-async": ("memcached_servers", partial(open_memcached, is_async=True)),
}


@pytest.fixture(scope="session")
def redis_servers(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sequence[RedisServer]]:
    """One Redis server."""
    folder = tmp_path_factory.mktemp("redis")
    with started([RedisServer(folder / "one", die_with_parent=True)]) as servers:
        yield servers


@pytest.fixture(scope="session")
def redis_cluster(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sequence[RedisServer]]:
    """A Redis Cluster of two primaries."""
    folder = tmp_path_factory.mktemp("cluster")
    with started([cluster_member(folder / name) for name in ("a", "b")]) as servers:
        form_cluster(servers)
        yield servers


@pytest.fixture(scope="session")
def memcached_servers(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sequence[MemcachedServer]]:
    """Two memcached servers."""
    folder = tmp_path_factory.mktemp("memcached")
    members = [MemcachedServer(folder / name, die_with_parent=True) for name in ("a", "b")]
    with started(members) as servers:
        yield servers


@pytest.fixture
def start_redis(real_servers: None, tmp_path: Path) -> Iterator[StartServer[RedisServer]]:
    """Start Redis servers with the test's own arguments; they end with the test."""
    running: list[RedisServer] = []
    yield starter(RedisServer, tmp_path / "redis", running)
    for server in running:
        server.kill()


@pytest.fixture
def start_memcached(real_servers: None, tmp_path: Path) -> Iterator[StartServer[MemcachedServer]]:
    """Start memcached servers with the test's own arguments; they end with the test."""
    running: list[MemcachedServer] = []
    yield starter(MemcachedServer, tmp_path / "memcached", running)
    for server in running:
        server.kill()


@pytest.fixture
def open_kind(request: pytest.FixtureRequest) -> Iterator[Callable[..., Opened]]:
    """Open a store of a kind, with options; it is closed with the test."""
    found: list[Opened] = []

    def open_one(kind: str, **options: Any) -> Opened:
        if kind == "memory":
            found.append(open_memory(**options))
        else:
            fixture, opener = ON_SERVERS[kind]
            found.append(opener(request.getfixturevalue(fixture), **options))
        return found[-1]

    yield open_one
    for each in found:
        each.floors.close()
        each.store.close()


@pytest.fixture(
    params=["memory", *(pytest.param(each, marks=pytest.mark.servers) for each in ON_SERVERS)]
)
def opened(request: pytest.FixtureRequest, open_kind: Callable[..., Opened]) -> Opened:
    """A store of each kind in turn."""
    return open_kind(request.param)
