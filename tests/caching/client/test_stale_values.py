"""`stale_ok_s`: removed values are kept for callers that take them rather than wait."""

from collections.abc import Callable
from typing import Any

import pytest

from caching.client.cache import MaybeStale
from caching.client.options import CacheOptions
from caching.protocol import Hit, MissReason, decide_hit
from caching.protocol.decisions import Miss
from tests.caching.cache_servers import command
from tests.caching.client.blocking_cache import BlockingCache
from tests.caching.client.model import Model
from tests.caching.client.stepping import SteppedGet
from tests.caching.protocol.tokens import TRUSTED
from tests.caching.stores.memcached_stores import open_memcached
from tests.caching.stores.opened import Opened, open_memory
from tests.caching.stores.redis_stores import open_redis

STALE_S = 600
# The longest that there is: who waits for the lease does not get it within a test.
LEASE_MS = 10_000
KINDS: dict[str, Callable[..., Opened]] = {
    "redis_servers": open_redis,
    "redis_cluster": open_redis,
    "memcached_servers": open_memcached,
}


@pytest.fixture(
    params=["memory", *(pytest.param(kind, marks=pytest.mark.servers) for kind in KINDS)]
)
def stale_model(request: pytest.FixtureRequest) -> Model:
    """A model on each kind of store, which keeps what is removed."""
    if request.param == "memory":
        opened = open_memory(stale_ok_s=STALE_S)
    else:
        servers = request.getfixturevalue(request.param)
        opened = KINDS[request.param](servers, stale_ok_s=STALE_S)
    return Model(opened, CacheOptions(lease_ms=LEASE_MS, stale_ok_s=STALE_S))


def test_a_stale_value_is_returned_while_another_one_loads(stale_model: Model) -> None:
    """It is marked; whoever loads it gets the new value, and so do all who ask later."""
    model, cache = stale_model, stale_model.cache()
    load = lambda read: model.load(read, "r20")  # noqa: E731 - the loader of all three calls
    assert cache.get_or_stale("r20", load) == MaybeStale({"r20": 1}, is_stale=False)
    write = model.write("r20")
    model.apply()
    loading = SteppedGet(model, "r20").through("prepare")
    queries = model.queries()

    assert cache.get_or_stale("r20", load) == MaybeStale({"r20": 1}, is_stale=True)
    assert model.queries() == queries
    assert cache.counters()["stale_hits"] == 1
    model.catch_up()
    assert loading.finish() == {"r20": 2}
    assert cache.get_or_stale("r20", load, newer_than=write) == MaybeStale({"r20": 2})


def test_a_stale_value_without_an_own_write_is_not_returned() -> None:
    """Then the caller waits for the lease, and reads by itself."""
    stale = Model(open_memory(stale_ok_s=STALE_S), CacheOptions(lease_ms=50, stale_ok_s=STALE_S))
    caches: list[tuple[int, Any]] = [(2, stale.cache()), (3, BlockingCache(stale))]
    for version, cache in caches:
        stale.get(cache, "r20")
        write = stale.write("r20")
        stale.apply()
        SteppedGet(stale, "r20").through("prepare")
        found = cache.get_or_stale("r20", lambda read: stale.load(read, "r20"), newer_than=write)
        assert found == MaybeStale({"r20": version})
        stale.catch_up()
        assert cache.counters()["stale_hits"] == 0


def test_what_is_kept(stale_model: Model) -> None:
    """An entry, until it is forgotten; neither a placeholder nor what another generation had."""
    model, store = stale_model, stale_model.opened.store
    cache = model.cache()

    def kept() -> Hit | Miss:
        pair = store.read_stale("r20")
        return decide_hit(pair.floor, pair.slot, TRUSTED)

    SteppedGet(model, "r20").through("prepare")
    model.write("r20")
    model.apply()
    assert kept() == Miss(MissReason.ABSENT)

    for _ in range(2):
        model.catch_up()
        model.get(cache, "r20")
        write = model.write("r20")
        model.apply()
        assert isinstance(kept(), Hit)
        cache.forget("r20")
        assert kept() == Miss(MissReason.ABSENT)
    model.catch_up()
    model.get(cache, "r20")
    write = model.write("r20")
    model.apply()
    model.renew(write)
    assert kept() == Miss(MissReason.GENERATION)


@pytest.mark.servers
def test_a_kept_value_expires(request: pytest.FixtureRequest) -> None:
    """On Redis the server removes it; the invalidator's side keeps values as well."""
    servers = request.getfixturevalue("redis_servers")
    model = Model(open_redis(servers, stale_ok_s=STALE_S))
    model.get(model.cache(), "r20")
    model.write("r20")
    model.apply()

    left_ms = command(servers[0], "PTTL", model.opened.layout.stale_key("r20"))
    assert 0 < left_ms <= STALE_S * 1_000


def test_nothing_is_kept_by_default(model: Model) -> None:
    """A removed value is gone."""
    model.get(model.cache(), "r20")
    model.write("r20")
    model.apply()

    assert model.opened.store.read_stale("r20").slot is None
