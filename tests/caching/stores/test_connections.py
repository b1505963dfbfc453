"""The connections of a client on Redis."""

import os
import subprocess
import sys

import pytest

from caching.protocol import Layout
from caching.stores.on_redis.store import RedisStore
from shardstream.local.cache_server import RedisServer
from tests.caching.cache_servers import StartServer, command
from tests.caching.stores.opened import TIMEOUT_MS

pytestmark = pytest.mark.servers

FORKING = """
import os, sys
from caching.protocol import Layout
from caching.stores.on_redis.store import RedisStore

store = RedisStore(Layout("forked"), sys.argv[1], timeout_ms=int(sys.argv[2]))
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
    store = RedisStore(Layout("closed"), f"redis://{server.address}", timeout_ms=TIMEOUT_MS)
    assert store.read(["a"])[0].floor is None

    assert command(server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") == 1

    assert store.read(["a"])[0].floor is None
    store.close()


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
