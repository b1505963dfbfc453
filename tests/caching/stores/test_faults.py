"""What befalls real servers in mid-run: full, unresponsive, restarted, without their scripts."""

import os
from collections.abc import Callable

import pytest

from caching.errors import Reconnected, StoreFull, StoreUnreachable
from caching.protocol import Floor
from caching.steps import run_steps
from caching.stores.memcached import MemcachedStore, PooledNode
from caching.stores.on_redis.store import RedisStore
from caching.stores.store import Circuit, KeyChange, StoreOptions
from shardstream.local.cache_server import CacheServer, MemcachedServer, RedisServer
from tests.caching.cache_servers import StartServer, admin, command
from tests.caching.protocol.tokens import token
from tests.caching.stores.blocking import BlockingStore
from tests.caching.stores.memcached_stores import open_memcached
from tests.caching.stores.opened import BUCKETS, RANGE, TIMEOUT_MS, TTL_MS, own_layout
from tests.caching.stores.redis_stores import open_redis, redis_url
from tests.stopped_process import stopped
from tests.waiting import wait_for

LEASE_MS = 600_000


@pytest.mark.parametrize("stale_ok_s", [0, 60])
def test_a_full_redis_closes_buckets(
    start_redis: StartServer[RedisServer], stale_ok_s: int
) -> None:
    """Section 12: without memory fills are dropped, and an invalidation deletes floor and value."""
    server = start_redis()
    opened = open_redis([server], stale_ok_s=stale_ok_s)
    generation = opened.make(["user:1", "user:2"], token("-", 5))
    opened.put("user:1", generation, token("-", 5))
    opened.put("user:2", generation, token("-", 5))
    [seen] = opened.store.read(["user:3"])
    prepared = opened.store.prepare("user:3", seen, LEASE_MS)
    assert prepared is not None
    opened.make(["user:3"], token("-", 5))
    [expected] = opened.store.read(["user:3"])
    used = {opened.layout.bucket(f"user:{number}") for number in (1, 2, 3)}
    claim = opened.floors.claim([min(set(range(BUCKETS)) - used)])
    admin(server).config_set("maxmemory", 1)

    with pytest.raises(StoreFull):
        opened.store.fill("user:3", expected, b"new", TTL_MS)
    with pytest.raises(StoreFull):
        opened.store.want_floors([0])
    with pytest.raises(StoreFull):
        opened.floors.publish(RANGE, {"0": (None, b"S1")})
    with pytest.raises(StoreFull):
        opened.floors.claim(range(BUCKETS))
    done = opened.floors.invalidate([KeyChange("user:1", token("-", 6))])

    assert done.closed == {opened.layout.bucket("user:1")}
    assert (opened.floor("user:1"), opened.slot("user:1")) == (None, None)
    assert opened.floor("user:2") is not None
    # A claim that finds no memory for its floor leaves the bucket closed, and counts for nothing.
    assert opened.floors.make_floors(claim, lambda: Floor(os.urandom(16), {})) == 0
    # Rule 13, which has to write all floors, closes all buckets.
    changed = opened.floors.change_floors(
        opened.floors.nodes, lambda floor: floor.renewed(os.urandom(16), token("-", 6))
    )
    assert (changed, opened.floor("user:2")) == (0, None)

    admin(server).config_set("maxmemory", 0)
    generation = opened.make(["user:1"], token("-", 6))
    opened.put("user:1", generation, token("-", 6))


def test_an_item_that_memcached_does_not_take_is_dropped(
    start_memcached: StartServer[MemcachedServer],
) -> None:
    """A value above the server's limit is an error of that fill, and the next one works."""
    opened = open_memcached([start_memcached()])
    generation = opened.make(["user:1"], token("-", 5))
    [seen] = opened.store.read(["user:1"])
    prepared = opened.store.prepare("user:1", seen, 0)
    assert prepared is not None

    with pytest.raises(StoreFull):
        opened.store.fill("user:1", prepared, b"v" * 2_000_000, TTL_MS)

    opened.store.forget(["user:1"])
    opened.put("user:1", generation, token("-", 5))


def test_scripts_that_a_server_lost_are_sent_again(start_redis: StartServer[RedisServer]) -> None:
    """A restarted server, or SCRIPT FLUSH, knows no script by its hash."""
    server = start_redis()
    opened = open_redis([server])
    keys = [f"user:{number}" for number in range(20)]
    generation = opened.make(keys, token("-", 5))

    command(server, "SCRIPT FLUSH")
    opened.put("user:1", generation, token("-", 5))
    command(server, "SCRIPT FLUSH")
    done = opened.floors.invalidate(KeyChange(key, token("-", 6)) for key in keys)

    assert done.values_removed == 1
    assert done.floors_raised == len({opened.layout.bucket(key) for key in keys})


def test_flushall_is_seen_on_an_open_connection(start_redis: StartServer[RedisServer]) -> None:
    """R22: the position is missing at the next publication, and no floor is left."""
    server = start_redis()
    opened = open_redis([server])
    opened.make(["user:1"], token("-", 5))
    nodes = opened.floors.nodes
    assert opened.floors.publish(RANGE, dict.fromkeys(nodes, (None, b"S1"))) == {}

    admin(server).flushall()

    assert opened.floors.resume(RANGE) == {}
    assert opened.floors.publish(RANGE, dict.fromkeys(nodes, (b"S1", b"S2"))) == dict.fromkeys(
        nodes
    )
    assert opened.floors.invalidate([KeyChange("user:1", token("-", 6))]).closed


def redis_store(server: CacheServer, timeout_ms: int) -> BlockingStore:
    """A client that does not wait long."""
    assert isinstance(server, RedisServer)
    store = RedisStore(own_layout(), redis_url([server]), StoreOptions(timeout_ms=timeout_ms))
    return BlockingStore(store)


def memcached_store(server: CacheServer, timeout_ms: int) -> BlockingStore:
    """A client that does not wait long."""
    url = f"memcached://{server.address}"
    return BlockingStore(
        MemcachedStore(own_layout().cache, url, BUCKETS, StoreOptions(timeout_ms=timeout_ms))
    )


def _answers(store: BlockingStore) -> bool:
    try:
        return len(store.read(["user:1"])) == 1
    except StoreUnreachable:
        return False


@pytest.mark.parametrize(
    ("starting", "opening"),
    [("start_redis", redis_store), ("start_memcached", memcached_store)],
)
def test_an_unresponsive_server_is_left_alone(
    real_servers: None,
    request: pytest.FixtureRequest,
    starting: str,
    opening: Callable[[CacheServer, int], BlockingStore],
) -> None:
    """R18: a stopped server is an error at once after the first timeout, then it is asked again."""
    server = request.getfixturevalue(starting)()
    store = opening(server, 100)
    with stopped(server.pid):
        with pytest.raises(StoreUnreachable, match="does not answer") as first:
            store.read(["user:1"])
        with pytest.raises(StoreUnreachable) as second:
            store.read(["user:1"])
        assert server.address in str(first.value)
        assert first.value.node == second.value.node == server.address

    wait_for("the store is asked again", lambda: _answers(store))
    store.close()


def test_a_circuit_opens_for_a_moment() -> None:
    """After a failure nobody asks for a second, and a success is not needed to ask again."""
    now = [100.0]
    circuit = Circuit("a:1", 1.0, lambda: now[0])
    circuit.check()

    raised = circuit.failed(OSError("timed out"))

    assert "a:1 does not answer: timed out" in str(raised)
    with pytest.raises(StoreUnreachable, match="not asked"):
        circuit.check()
    now[0] += 1.0
    circuit.check()


def test_a_restarted_memcached_has_to_be_resumed(
    start_memcached: StartServer[MemcachedServer],
) -> None:
    """F31: one of two servers restarts: its floors are gone, and only its position is missing."""
    servers = sorted([start_memcached(), start_memcached()], key=lambda server: server.address)
    opened = open_memcached(servers)
    keys = [f"user:{number}" for number in range(100)]
    generation = opened.make(keys, token("-", 5))
    opened.floors.publish(RANGE, dict.fromkeys(opened.floors.nodes, (None, b"S1")))
    opened.put("user:1", generation, token("-", 5))
    lost, kept = servers if opened.layout.bucket("user:1") % 2 == 0 else reversed(servers)

    lost.kill()
    with pytest.raises(StoreUnreachable):
        opened.floors.invalidate(KeyChange(key, token("-", 6)) for key in keys)
    with pytest.raises(StoreUnreachable):
        opened.floors.resume(RANGE)
    lost.start()

    with pytest.raises(Reconnected) as raised:
        opened.floors.invalidate(KeyChange(key, token("-", 6)) for key in keys)
    assert raised.value.node == lost.address
    assert opened.floors.resume(RANGE) == {lost.address: None}
    done = opened.floors.invalidate(KeyChange(key, token("-", 7)) for key in keys)
    assert {opened.floors.node_of(bucket) for bucket in done.closed} == {lost.address}
    assert opened.store.position(kept.address, RANGE) == b"S1"
    # A client's idle connections are dead, which it notices when it uses one.
    wait_for("the client reads again", lambda: _answers(opened.store))
    assert opened.floor("user:1") is None
    assert opened.slot("user:1") is None


def test_a_connection_that_was_closed_closes_none_in_use(
    start_memcached: StartServer[MemcachedServer],
) -> None:
    """A thread in mid-reply keeps its connection; only those that nobody uses are closed."""
    node = PooledNode(start_memcached().address, StoreOptions(timeout_ms=TIMEOUT_MS))
    with node.client() as used:
        with node.client() as idle:
            idle.version()
        used.version()
        with pytest.raises(StoreUnreachable), node.client():
            raise ConnectionResetError

        assert used.sock is not None
        assert idle.sock is None
    run_steps(node.close())
