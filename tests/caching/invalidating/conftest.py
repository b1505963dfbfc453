"""A provisioned keyspace on the session's broker, and one store of each kind."""

from collections.abc import Iterator

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.caching.invalidating.invalidating import Client
from tests.caching.stores.memcached_stores import open_memcached
from tests.caching.stores.opened import Opened, open_memory
from tests.caching.stores.redis_stores import open_redis
from tests.topics.shard_writer import Writers, filling, serving
from topics.kafka.client import ClientConfig


@pytest.fixture
def config(kafka: KafkaCluster) -> ClientConfig:
    """Client settings of the session's broker."""
    return ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def writers(config: ClientConfig, keyspace: str) -> Iterator[Writers]:
    """Provision the shards named, with a writer for each."""
    with serving(config, keyspace) as make:
        yield make


@pytest.fixture
def targets(config: ClientConfig, keyspace: str) -> Iterator[Writers]:
    """Create the topics of shards that do not serve yet, with a writer for each."""
    with filling(config, keyspace) as make:
        yield make


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
