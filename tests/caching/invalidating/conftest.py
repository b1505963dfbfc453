"""A provisioned keyspace on the session's broker, and one store of each kind."""

from collections.abc import Iterator

import pytest

from tests.caching.invalidating.invalidating import Client
from tests.caching.stores.memcached_stores import open_memcached
from tests.caching.stores.opened import Opened, open_memory
from tests.caching.stores.redis_stores import open_redis
from tests.topics.written_shards import config, targets, writers

__all__ = ["cache", "config", "targets", "writers"]


@pytest.fixture
def cache(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """A cache that no other test uses: in memory, or as `on_each_store` says."""
    match getattr(request, "param", "memory"):
        case "memory":
            found = open_memory()
        case "redis":
            found = open_redis(request.getfixturevalue("redis_servers"))
        case _:
            found = open_memcached(request.getfixturevalue("memcached_servers"))
    yield found
    found.floors.close()
    found.store.close()


@pytest.fixture
def client(cache: Opened) -> Client:
    """A client of the cache."""
    return Client(cache)
