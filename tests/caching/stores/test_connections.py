"""The connections of a store: who may use one, and after what it is used no more."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from unittest.mock import Mock

import hiredis
import pymemcache
import pytest
import redis
from redis.connection import Connection

import caching
from caching.errors import LayoutError, Reconnected
from caching.protocol import CacheLayout
from caching.steps import run_steps_async
from caching.stores.on_redis import connections
from caching.stores.on_redis.store import RedisFloors, RedisStore
from caching.stores.opening import open_store
from caching.stores.store import KeyChange, KeyState
from shardstream.local.cache_server import RedisServer
from tests.caching.cache_servers import StartServer, command
from tests.caching.protocol.tokens import token
from tests.caching.stores.blocking import BlockingStore
from tests.caching.stores.opened import BUCKETS, OPTIONS, RANGE, Opened
from tests.forks import in_children
from tests.interrupts import Interrupt, SoftTimeLimit, lines_raised

pytestmark = pytest.mark.servers

CALLS = 120
KINDS = ("redis", "redis-async", "redis-cluster", "memcached")
# Lines that every call runs at least, and at which of them it is ended.
LINES_MIN = 60
STEP = 7


def test_a_closed_connection_is_opened_again(start_redis: StartServer[RedisServer]) -> None:
    """A server that has closed an idle connection costs no call."""
    server = start_redis()
    url = f"redis://{server.address}"
    store = BlockingStore(RedisStore(CacheLayout("closed"), url, OPTIONS))
    assert store.read(["a"])[0].floor is None

    assert command(server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") == 1

    assert store.read(["a"])[0].floor is None
    store.close()


def test_an_interrupt_while_another_is_handled_leaves_no_reply(
    start_redis: StartServer[RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second signal, before the socket is closed: nobody reads the reply to another command."""
    server = start_redis()
    layout = CacheLayout("interrupted")
    store = BlockingStore(RedisStore(layout, f"redis://{server.address}", OPTIONS))
    for key in ("a", "b"):
        command(server, "SET", layout.slot_key(key), f"slot of {key}")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "read_response", interrupted)
        patched.setattr(Connection, "disconnect", interrupted)
        with pytest.raises(KeyboardInterrupt) as raised:
            store.read(["a"])

    assert store.read(["b"])[0].slot == b"slot of b"
    del raised  # and with it the connection, which closes its socket
    store.close()


def test_many_calls_at_a_time(start_redis: StartServer[RedisServer]) -> None:
    """More than the connections that redis-py makes by itself: every call is answered."""
    server = start_redis()
    url = f"redis://{server.address}"
    store = BlockingStore(RedisStore(CacheLayout("many"), url, OPTIONS))
    command(server, "CLIENT", "PAUSE", 300, "ALL")  # so that all of them are under way
    with ThreadPoolExecutor(CALLS) as threads:
        found = list(threads.map(store.read, [["a"]] * CALLS))
    store.close()

    async def together() -> list[list[KeyState]]:
        many = RedisStore(CacheLayout("many"), url, replace(OPTIONS, is_async=True))
        pairs = await asyncio.gather(*(run_steps_async(many.read(["a"])) for _ in range(CALLS)))
        await run_steps_async(many.close())
        return pairs

    assert found + asyncio.run(together()) == [[KeyState(None, None)]] * (2 * CALLS)


def test_a_forked_process_has_connections_of_its_own(opened: Opened) -> None:
    """Parent and children never read each other's replies."""
    keys = ["user:1", "user:2", "user:3"]
    generation = opened.make(keys, token("-", 5))
    slots = {key: opened.put(key, generation, token("-", 5)).to_bytes() for key in keys}
    store = opened.store

    def read(key: str) -> None:
        for _ in range(CALLS):
            assert store.read([key])[0].slot == slots[key]

    def read_in_child(key: str) -> None:
        opened.store.begin_loop()
        read(key)

    wait = in_children(*(partial(read_in_child, key) for key in keys[1:]))
    read(keys[0])
    wait()


@pytest.mark.parametrize("opened", ["redis", "redis-cluster", "memcached"], indirect=True)
def test_a_forked_invalidator_has_to_resume(opened: Opened) -> None:
    """Rule 11: its connections are others than those that its parent has resumed on."""
    changes = [KeyChange("user:1", token("-", 6))]
    opened.make(["user:1"], token("-", 5))

    def invalidate_in_child() -> None:
        with pytest.raises(Reconnected):
            opened.floors.invalidate(changes)
        assert opened.floors.resume(RANGE)
        opened.floors.invalidate(changes)

    in_children(invalidate_in_child)()
    assert opened.floors.resume(RANGE) == {}
    assert opened.floors.invalidate(changes).floors_raised == 0


@pytest.mark.parametrize("opened", KINDS, indirect=True)
@pytest.mark.parametrize("error", [SoftTimeLimit, Interrupt])
def test_the_next_call_gets_its_own_reply(opened: Opened, error: type[BaseException]) -> None:
    """Time limits and signals that end a call at any line leave no reply for the next one."""
    generation = opened.make(["user:1", "user:2"], token("-", 5))
    opened.put("user:1", generation, token("-", 5))
    slot = opened.put("user:2", generation, token("-", 5)).to_bytes()

    def check() -> None:
        assert opened.store.read(["user:2"])[0].slot == slot

    check()
    read = partial(opened.store.read, ["user:1"])
    packages = (caching, redis, pymemcache)
    assert lines_raised(read, check, error, *packages, step=STEP) > LINES_MIN / STEP


@pytest.mark.parametrize("opened", ["redis-async", "memcached-async"], indirect=True)
def test_a_cancelled_call_leaves_no_reply(opened: Opened) -> None:
    """A task may be cancelled wherever it waits: the next one gets its own reply."""
    generation = opened.make(["user:1", "user:2"], token("-", 5))
    opened.put("user:1", generation, token("-", 5))
    slot = opened.put("user:2", generation, token("-", 5)).to_bytes()

    async def cancel_all() -> int:
        for turns in count():
            task = asyncio.create_task(run_steps_async(opened.raw.read(["user:1"])))
            for _ in range(turns):
                await asyncio.sleep(0)
            is_done = task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            [found] = await run_steps_async(opened.raw.read(["user:2"]))
            assert found.slot == slot
            if is_done:
                return turns
        raise AssertionError

    assert opened.store.run(cancel_all()) > 1


@pytest.mark.parametrize("opened", ["redis", "redis-cluster", "memcached"], indirect=True)
@pytest.mark.parametrize("error", [SoftTimeLimit, Interrupt])
def test_an_interrupted_invalidator_has_to_resume(
    opened: Opened, error: type[BaseException]
) -> None:
    """The same for the connection of an invalidator, which is another one afterwards."""
    opened.make(["user:1"], token("-", 5))
    places = dict.fromkeys(opened.floors.nodes, (None, b"S1"))

    def check() -> None:
        opened.floors.resume(RANGE)
        found = opened.floors.publish(RANGE, places)
        assert set(found.values()) <= {b"S1"}

    invalidate = partial(opened.floors.invalidate, [KeyChange("user:1", token("-", 6))])
    packages = (caching, redis, pymemcache)
    assert lines_raised(invalidate, check, error, *packages, step=STEP) > LINES_MIN / STEP


def test_no_number_reaches_the_packer(
    start_redis: StartServer[RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hiredis dies of a signal handler that raises while it turns a number into text."""
    packed: list[object] = []
    pack_command = hiredis.pack_command

    def pack(words: tuple[str | bytes, ...]) -> bytes:
        packed.extend(words)
        return bytes(pack_command(words))  # type: ignore[arg-type]  # too narrow

    monkeypatch.setattr(connections, "PACK", lambda words: [b"".join(map(pack, words))])
    monkeypatch.setattr("redis.connection.hiredis.pack_command", pack)
    url, layout = f"redis://{start_redis().address}/3", CacheLayout("packed", BUCKETS)
    for is_async in (False, True):
        options = replace(OPTIONS, is_async=is_async, stale_ok_s=60)
        store = RedisStore(layout, url, options)
        opened = Opened(store, RedisFloors(layout, url, options), Mock(), Mock(), Mock())
        generation = opened.make(["user:1"], token("-", 5))
        opened.put("user:1", generation, token("-", 5))
        [seen] = opened.store.read(["user:2"])
        prepared = opened.store.prepare("user:2", seen, 1_000)
        assert prepared is not None
        opened.store.release("user:2", prepared)
        opened.store.want_floors([1])
        opened.store.check()
        assert opened.floors.wanted() == [1]
        assert opened.floors.lease(RANGE, b"me", 60_000)
        opened.floors.publish(RANGE, {"0": (None, b"S1")})
        opened.floors.invalidate([KeyChange("user:1", token("-", 6))])
        opened.flush()

    assert packed
    assert {type(word) for word in packed} == {str, bytes}


@pytest.mark.parametrize(
    "option",
    ["decode_responses=true", "protocol=3", "encoding=latin-1", "retry_on_timeout=true", "x="],
)
@pytest.mark.parametrize("scheme", ["redis", "rediss+cluster"])
def test_options_that_change_replies_are_refused(scheme: str, option: str) -> None:
    """redis-py takes any argument of its connections from a URL: replies would not be bytes."""
    with pytest.raises(LayoutError, match=re.escape(f"?{option.partition('=')[0]}=")):
        open_store(f"{scheme}://localhost/0?{option}", "refused")
