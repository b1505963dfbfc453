"""Passwords of Redis that change while a store is used."""

from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from caching.errors import LayoutError, StoreUnreachable
from caching.stores.on_redis.store import RedisFloors, RedisStore
from caching.stores.opening import open_floors, open_store
from caching.stores.store import StoreOptions
from credentials.secret import Secret
from shardstream.local.cache_server import RedisServer
from tests.caching.cache_servers import StartServer, set_password
from tests.caching.stores.blocking import BlockingStore
from tests.caching.stores.opened import RANGE, TIMEOUT_MS, own_layout

FIRST, SECOND = "first/p@ss", "second/p@ss"


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])
def test_a_password_is_read_at_each_connection(
    start_redis: StartServer[RedisServer], tmp_path: Path, *, is_async: bool
) -> None:
    """Clients and invalidator are refused until the new one is where they read it.

    One that a command printed is not kept beyond a refusal.
    """
    server = start_redis()
    url, layout = f"redis://app@{server.address}", own_layout()
    file = tmp_path / "password"
    file.write_text(FIRST)
    set_password(server, FIRST)
    secret = Secret("cache", command=("cat", str(file)), valid_s=3600)
    options = StoreOptions(is_async=is_async, timeout_ms=TIMEOUT_MS, open_s=0, password=secret)
    store = BlockingStore(RedisStore(layout, url, options))
    assert store.read(["a"])[0].floor is None

    def new_floors() -> None:
        floors = RedisFloors(layout, url, StoreOptions(timeout_ms=TIMEOUT_MS, password=secret))
        floors.resume(RANGE)
        floors.close()

    new_floors()
    set_password(server, SECOND)
    with suppress(StoreUnreachable):  # the connection that has ended
        store.read(["a"])
    for ask in (partial(store.read, ["a"]), new_floors):
        with pytest.raises(StoreUnreachable, match="invalid username-password") as raised:
            ask()
        assert FIRST not in str(raised.value)
    file.unlink()
    with pytest.raises(StoreUnreachable, match="cache: the command cat failed with status 1"):
        store.read(["a"])
    file.write_text(SECOND)

    assert store.read(["a"])[0].floor is None
    new_floors()
    store.close()


def test_a_password_is_given_once_and_where_there_are_passwords(tmp_path: Path) -> None:
    """It stands in the URL or apart from it; memcached and memory have none."""
    secret = Secret("cache", tmp_path / "password")
    for url in ("redis://app:Marker@localhost:1", "redis+cluster://a:1,b:2/?password=Marker"):
        with pytest.raises(LayoutError, match="contains a password, and another one is given"):
            open_store(url, "shop", password=secret)
        with pytest.raises(LayoutError, match="contains a password, and another one is given"):
            open_floors(url, "shop", password=secret)
    with pytest.raises(LayoutError, match="redis://USER@HOST"):
        open_store("redis://localhost:1?username=app", "shop", password=secret)
    for url in ("memcached://localhost:1", "memory://"):
        with pytest.raises(LayoutError, match="has no passwords"):
            open_store(url, "shop", password=secret)
        with pytest.raises(LayoutError, match="has no passwords"):
            open_floors(url, "shop", password=secret)
