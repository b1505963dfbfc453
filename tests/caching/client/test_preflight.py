"""The preflight of a cache: what its store and its servers say, all at once."""

import asyncio
from collections.abc import Sequence

import pytest

from caching.client.cache import AsyncCacheClient, CacheClient
from caching.errors import CacheFindings, StoreError, version_number
from caching.protocol import CacheLayout
from caching.reading.fresh_reader import FreshReader
from caching.steps import run_steps
from caching.stores import memcached
from caching.stores.on_redis import store as on_redis
from caching.stores.on_redis.store import RedisFloors, RedisStore
from caching.stores.store import StoreOptions
from event_token import UsageError
from shardstream.local.cache_server import MemcachedServer, RedisServer
from tests.caching.cache_servers import StartServer, command
from tests.caching.client.model import Model
from tests.caching.stores.memcached_stores import open_memcached
from tests.caching.stores.opened import OPTIONS, RANGE, Opened, open_memory
from tests.caching.stores.redis_stores import open_redis, redis_url

on_servers = pytest.mark.servers


def test_each_store_tells_its_invalidators_layout(opened: Opened) -> None:
    """Before an invalidator runs there is none; then it is the store's own."""
    opened.floors.resume(RANGE)
    opened.floors.store_layout()

    assert opened.store.check() == CacheFindings(layout=opened.layout.text)


@on_servers
def test_layouts_that_differ_are_refused(redis_servers: Sequence[RedisServer]) -> None:
    """A client learns at its start that its invalidator has another number of buckets."""
    model = Model(open_redis(redis_servers))
    layout, url = model.opened.layout, redis_url(redis_servers)
    cache = model.cache()
    [warning] = cache.preflight()
    assert "no invalidator has run" in warning

    other = RedisFloors(CacheLayout(layout.cache, 128), url, OPTIONS)
    other.resume(RANGE)
    other.store_layout()
    other.close()
    with pytest.raises(UsageError, match=r"layout 128/1/, this client 64/1/ .*Fix: give both"):
        cache.preflight()

    model.opened.floors.store_layout()
    assert cache.preflight() == []


@on_servers
def test_a_store_that_does_not_answer_is_a_warning(
    start_redis: StartServer[RedisServer],
) -> None:
    """The application starts all the same, for threads and for asyncio."""
    server = start_redis()
    url = redis_url([server])
    server.kill()
    layout = CacheLayout("pages", 64)
    readers = {"-": FreshReader("commerce", "-", [_refused], flavor="mysql")}

    with pytest.raises(UsageError, match="commerce/-: connecting to a server"):
        CacheClient(RedisStore(layout, url), readers).preflight()
    with pytest.raises(UsageError, match="commerce/-: connecting to a server"):
        asyncio.run(
            AsyncCacheClient(
                RedisStore(layout, url, StoreOptions(is_async=True)), readers
            ).preflight()
        )
    model = Model(open_memory())
    model.opened.raw.check = RedisStore(layout, url).check  # type: ignore[method-assign]
    [warning] = model.cache().preflight()
    assert server.address in warning
    assert "Fix: start it" in warning


@on_servers
def test_redis_servers_that_cannot_be_used(
    start_redis: StartServer[RedisServer],
    redis_servers: Sequence[RedisServer],
    redis_cluster: Sequence[RedisServer],
) -> None:
    """Replicas, members of a cluster, evicted floors, and accounts without scripts are named."""
    primary = redis_servers[0]
    replica = start_redis(
        *("--replicaof", f"{primary.host} {primary.port}", "--maxmemory-policy", "allkeys-lfu")
    )
    layout = CacheLayout("pages", 64)

    found = run_steps(RedisStore(layout, redis_url([replica]), OPTIONS).check())
    [problem], [warning] = found.problems, found.warnings
    assert f"Redis server {replica.address}: it is a replica of {primary.address}. Fix" in problem
    assert "maxmemory-policy=allkeys-lfu" in warning
    assert "Fix: CONFIG SET maxmemory-policy volatile-lru" in warning

    member = f"redis://{redis_cluster[0].address}"
    found = run_steps(RedisStore(layout, member, OPTIONS).check())
    [problem] = found.problems
    assert "Fix: a URL that begins with redis+cluster://" in problem

    command(replica, "ACL", "SETUSER", "poor", "on", ">secret", "~*", "+@all", "-eval")
    poor = f"redis://poor:secret@{replica.address}"
    with pytest.raises(StoreError, match="no permissions to run the 'eval' command"):
        run_steps(RedisStore(layout, poor, OPTIONS).check())


def test_a_member_of_a_valkey_cluster_is_named() -> None:
    """Valkey 8 tells its mode under another name than Redis."""
    facts = {"redis_version": "7.2.4", "valkey_version": "8.1.1", "server_mode": "cluster"}

    [problem] = on_redis.check_server("Redis server cache:0", facts, is_cluster=False).problems

    assert "Redis server cache:0: it is a member of a Redis Cluster" in problem


@on_servers
def test_servers_that_are_too_old(
    redis_servers: Sequence[RedisServer],
    memcached_servers: Sequence[MemcachedServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The version that a server tells is compared."""
    monkeypatch.setattr(on_redis, "VERSION_MIN", (99,))
    monkeypatch.setattr(memcached, "VERSION_MIN", (99,))
    for opened, count in ((open_redis(redis_servers), 1), (open_memcached(memcached_servers), 2)):
        found = opened.store.check()
        assert len(found.problems) == count
        assert all("version" in problem and "or newer" in problem for problem in found.problems)
    assert version_number("1.6.18") == (1, 6, 18)
    assert version_number("7.2-rc1") == (7,)
    assert version_number("") == ()


def _refused() -> object:
    """A server that is down."""
    raise ConnectionRefusedError("refused")
