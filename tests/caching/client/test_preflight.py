"""The preflight of a cache: what its store and its servers say, all at once."""

import asyncio
from collections.abc import Sequence

import pytest

from caching.client.async_cache import AsyncCache
from caching.client.cache import Cache
from caching.errors import StoreError
from caching.findings import Findings, version_number
from caching.protocol import Layout
from caching.reading.fresh_reader import FreshReader
from caching.stores.on_memcached import store as on_memcached
from caching.stores.on_redis import checks
from caching.stores.on_redis.async_store import AsyncRedisStore
from caching.stores.on_redis.floors import RedisFloors
from caching.stores.on_redis.store import RedisStore
from event_token import UsageError
from shardstream.local.cache_server import MemcachedServer, RedisServer
from tests.caching.cache_servers import StartServer, command
from tests.caching.client.model import Model
from tests.caching.stores.memcached_stores import open_memcached
from tests.caching.stores.opened import RANGE, TIMEOUT_MS, Opened, open_memory
from tests.caching.stores.redis_stores import open_redis, redis_url

on_servers = pytest.mark.servers


def test_each_store_tells_its_invalidators_layout(opened: Opened) -> None:
    """Before an invalidator runs there is none; then it is the store's own."""
    opened.floors.resume(RANGE)
    opened.floors.tell_layout()

    assert opened.store.check() == Findings(layout=opened.layout.text)


@on_servers
def test_layouts_that_differ_are_refused(redis_servers: Sequence[RedisServer]) -> None:
    """A client learns at its start that its invalidator has another number of buckets."""
    model = Model(open_redis(redis_servers))
    layout, url = model.opened.layout, redis_url(redis_servers)
    cache = model.cache()
    [warning] = cache.preflight()
    assert "no invalidator has run" in warning

    other = RedisFloors(Layout(layout.cache, 128), url, timeout_ms=TIMEOUT_MS)
    other.resume(RANGE)
    other.tell_layout()
    other.close()
    with pytest.raises(UsageError, match=r"layout 128/1/, this client 64/1/ .*Fix: give both"):
        cache.preflight()

    model.opened.floors.tell_layout()
    assert cache.preflight() == []


@on_servers
def test_a_store_that_does_not_answer_is_a_warning(
    start_redis: StartServer[RedisServer],
) -> None:
    """The application starts all the same, for threads and for asyncio."""
    server = start_redis()
    url = redis_url([server])
    server.kill()
    layout = Layout("pages", 64)
    readers = {"-": FreshReader("commerce", "-", [_refused], flavor="mysql")}

    with pytest.raises(UsageError, match="commerce/-: connecting to a server"):
        Cache(RedisStore(layout, url), readers).preflight()
    with pytest.raises(UsageError, match="commerce/-: connecting to a server"):
        asyncio.run(AsyncCache(AsyncRedisStore(layout, url), readers).preflight())
    model = Model(open_memory())
    model.opened.store.check = RedisStore(layout, url).check  # type: ignore[method-assign]
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
    layout = Layout("pages", 64)

    found = RedisStore(layout, redis_url([replica]), timeout_ms=TIMEOUT_MS).check()
    [problem], [warning] = found.problems, found.warnings
    assert f"Redis server {replica.address}: it is a replica of {primary.address}. Fix" in problem
    assert "maxmemory-policy=allkeys-lfu" in warning
    assert "Fix: CONFIG SET maxmemory-policy volatile-lru" in warning

    member = f"redis://{redis_cluster[0].address}"
    found = RedisStore(layout, member, timeout_ms=TIMEOUT_MS).check()
    [problem] = found.problems
    assert "Fix: a URL that begins with redis+cluster://" in problem

    command(replica, "ACL", "SETUSER", "poor", "on", ">secret", "~*", "+@all", "-eval")
    poor = f"redis://poor:secret@{replica.address}"
    with pytest.raises(StoreError, match="no permissions to run the 'eval' command"):
        RedisStore(layout, poor, timeout_ms=TIMEOUT_MS).check()


def test_a_member_of_a_valkey_cluster_is_named() -> None:
    """Valkey 8 tells its mode under another name than Redis."""
    steps = checks.check(Layout("pages", 64), "cache:{}".format, is_cluster=False)
    server = b"# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.1.1\r\nserver_mode:cluster\r\n"

    steps.send([server] * len(next(steps)))
    with pytest.raises(StopIteration) as done:
        steps.send([b"role:master\r\n", b"maxmemory_policy:noeviction\r\n", 1])

    [problem] = done.value.value.problems
    assert "Redis server cache:0: it is a member of a Redis Cluster" in problem


@on_servers
def test_servers_that_are_too_old(
    redis_servers: Sequence[RedisServer],
    memcached_servers: Sequence[MemcachedServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The version that a server tells is compared."""
    monkeypatch.setattr(checks, "VERSION_MIN", (99,))
    monkeypatch.setattr(on_memcached, "VERSION_MIN", (99,))
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
