"""What a URL opens, and what is said about one that opens nothing."""

import subprocess
import sys

import pytest

from caching.errors import LayoutError
from caching.protocol import CacheLayout
from caching.protocol.layout import GROUPS
from caching.stores.memcached import MemcachedStore
from caching.stores.memory import MemoryStore
from caching.stores.on_redis.servers import GroupRoutes, Location, RedisAddress
from caching.stores.on_redis.store import RedisFloors, RedisStore
from caching.stores.opening import open_floors, open_store
from event_token import ClockUncertainty
from tests.repository import ROOT

TIMEOUT_S = 120


def test_a_url_names_the_store() -> None:
    """Nothing is connected to before the first call, so a server may still be down."""
    assert isinstance(open_store("memory://", "shop"), MemoryStore)
    assert isinstance(open_store("redis://localhost:1", "shop", 128), RedisStore)
    assert isinstance(open_store("memcached://b,a:1", "shop"), MemcachedStore)
    assert open_floors("memcached://b,a:1", "shop").nodes == ("a:1", "b:11211")
    assert isinstance(open_floors("redis+cluster://a,b:2/", "shop"), RedisFloors)
    off = ClockUncertainty(uncertainty_us=7)
    for url in ("memory://", "redis://localhost:1", "memcached://b"):
        assert open_store(url, "shop", clock=off).clock_uncertainty == off
    for url in ("redis://localhost:1", "memcached://b"):
        assert open_floors(url, "shop", clock=off).clock_uncertainty == off
    for_asyncio = open_store("redis://localhost:1", "shop", 128, is_async=True)
    assert (for_asyncio.is_async, for_asyncio.layout) == (True, CacheLayout("shop", 128))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis",
        "http://a",
        "redis://a,b",
        "redis://a:port",
        "unix+cluster://a",
        "redis://a?db=x",
    ],
)
def test_a_url_that_opens_nothing_is_refused(url: str) -> None:
    """The message names what stands in the URL, or which URLs there are."""
    with pytest.raises(LayoutError):
        open_store(url, "shop")


def test_an_invalidator_needs_a_shared_store() -> None:
    """A cache in the memory of one process is out of another one's reach."""
    with pytest.raises(LayoutError, match="belongs to one process"):
        open_floors("memory://", "shop")


@pytest.mark.parametrize(("url", "extra"), [("redis://a", "redis"), ("memcached://a", "memcached")])
def test_a_missing_library_names_its_extra(url: str, extra: str) -> None:
    """Who installed shardstream without the extra reads what to install."""
    script = (
        "import sys; sys.modules['redis'] = sys.modules['pymemcache'] = None\n"
        "from caching.stores.opening import open_store\n"
        f"open_store({url!r}, 'shop')"
    )

    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )

    assert done.stderr.splitlines()[-1].endswith(f"pip install 'shardstream[{extra}]'")


def test_the_parts_of_a_url() -> None:
    """Account, options and further servers reach the library as they were written."""
    location = Location.parse("rediss+cluster://user:p%40ss@a:1,[::1]:2,c/?health_check_interval=3")

    assert location.is_cluster
    assert location.seeds == (RedisAddress("a", 1), RedisAddress("::1", 2), RedisAddress("c", 6379))
    urls = [location.url(each) for each in location.seeds]
    assert urls[1] == "rediss://user:p%40ss@[::1]:2/?health_check_interval=3"
    assert Location.parse("unix:///run/redis.sock?db=1").url(
        RedisAddress("/run/redis.sock", 0)
    ) == ("unix:///run/redis.sock?db=1")


def test_a_cluster_serves_each_group_from_one_server() -> None:
    """CLUSTER SLOTS is taken as it comes: with empty hosts, and replicas after the primary."""
    layout = CacheLayout("shop", 64)
    routes = GroupRoutes(Location.parse("redis+cluster://a:1"), layout)
    assert not routes.is_known

    routes.learn(
        [[0, 8191, [b"", 1, b"id"]], [8192, 16383, [b"b", 2, b"id"], [b"c", 3, b"id"]]],
        RedisAddress("a", 1),
    )

    assert routes.is_known
    assert len(routes.address) == GROUPS
    assert set(routes.address) == {RedisAddress("a", 1), RedisAddress("b", 2)}
