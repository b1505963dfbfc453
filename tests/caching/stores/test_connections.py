"""The connections of a client on Redis."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from redis.connection import Connection

from caching.protocol import CacheLayout
from caching.steps import run_steps_async
from caching.stores.on_redis.store import RedisStore
from caching.stores.store import KeyState
from shardstream.local.cache_server import RedisServer
from tests.caching.cache_servers import StartServer, command
from tests.caching.stores.blocking import BlockingStore
from tests.caching.stores.opened import OPTIONS, TIMEOUT_MS

pytestmark = pytest.mark.servers

CALLS = 120

FORKING = """
import os, sys
from caching.protocol import CacheLayout
from caching.stores.on_redis.store import RedisStore
from caching.stores.store import StoreOptions
from tests.caching.stores.blocking import BlockingStore

options = StoreOptions(timeout_ms=int(sys.argv[2]))
store = BlockingStore(RedisStore(CacheLayout("forked"), sys.argv[1], options))
store.forget(["a"])
child = os.fork()
name = "child" if child == 0 else "parent"
store.want_floors([1 if child == 0 else 2])
for _ in range(500):
    pair = store.read([name])[0]
    assert pair.floor is None and pair.slot is None, pair
    assert store.position("0", name) is None
if child == 0:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


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


def test_a_forked_process_has_connections_of_its_own(
    start_redis: StartServer[RedisServer],
) -> None:
    """Parent and child never read each other's replies."""
    server = start_redis()

    ended = subprocess.run(
        [sys.executable, "-c", FORKING, f"redis://{server.address}", str(TIMEOUT_MS)],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
