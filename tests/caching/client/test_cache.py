"""What a cache does for an application, with threads and with asyncio."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from caching.client.cache import CacheClient
from caching.client.options import CacheOptions
from caching.client.reads import Read
from caching.errors import StoreUnreachable
from caching.stores.memory import MemoryStore
from caching.stores.on_redis.servers import Servers
from event_token import ClockUncertainty
from event_token.errors import UsageError
from shardstream.local.cache_server import RedisServer
from tests.caching.client.blocking_cache import BlockingCache
from tests.caching.client.model import Model, OwnWriteMissing
from tests.caching.stores.opened import open_memory
from tests.caching.stores.redis_stores import open_redis

AnyCache = Any
Opener = Callable[..., AnyCache]


@pytest.fixture(params=["threads", "asyncio"])
def open_cache(request: pytest.FixtureRequest, model: Model) -> Opener:
    """How a cache is made."""
    if request.param == "threads":
        return model.cache
    return lambda **choices: BlockingCache(model, **choices)


def counted(cache: AnyCache) -> dict[str, float]:
    """What a cache counted, without times."""
    return {
        name: count for name, count in cache.counters().items() if count and name != "load_seconds"
    }


def test_a_value_is_loaded_once(model: Model, open_cache: Opener) -> None:
    """The second get is a hit, and returns what the first one did."""
    cache = open_cache()

    assert model.get(cache, "pair") == {"r20": 1, "ra0": 1}
    assert model.get(cache, "pair") == {"r20": 1, "ra0": 1}
    assert model.queries() == 2
    assert counted(cache) == {"misses": 1, "loads": 1, "fills": 1, "hits": 1}


def test_a_change_of_any_row_removes_the_value(model: Model, open_cache: Opener) -> None:
    """R16: a value that was made of two shards has a token of each."""
    cache = open_cache()
    for row in ("r20", "ra0"):
        model.get(cache, "pair")
        model.write(row)
        model.apply()
        model.catch_up()
        queries = model.queries()

        assert model.get(cache, "pair")[row] == 2
        assert model.queries() == queries + 2


def test_no_row_is_cached_too(model: Model, open_cache: Opener) -> None:
    """R14: None is a value, until the row is inserted."""
    cache = open_cache()

    def load(read: Callable[..., Sequence[int]]) -> int | None:
        version = read("r20", shard="-80")[0]
        return version if version > 1 else None

    assert [cache.get_or_load("r20", load) for _ in range(2)] == [None, None]
    assert counted(cache)["negative_hits"] == 1
    model.write("r20")
    model.apply()
    model.catch_up()
    assert cache.get_or_load("r20", load) == 2


def test_values_by_unknown_means_are_not_cached(model: Model, open_cache: Opener) -> None:
    """A loader that never reads, asks a cache, or reads without a token has proven nothing."""
    cache = open_cache()
    model.get(cache, "r60")

    def nested(read: Callable[..., Sequence[int]]) -> object:
        return read("r20", shard="-80")[0], model.get(cache, "r60")

    def read_without_token(read: Callable[..., Sequence[int]]) -> int:
        model.readers["-80"].has_tokens = False
        return read("r20", shard="-80")[0]

    loaders: list[Callable[..., object]] = [lambda _: 7, read_without_token]
    if isinstance(cache, CacheClient):  # the other one runs loaders outside of its event loop
        loaders.insert(0, nested)
    for number, load in enumerate(loaders, 1):
        cache.get_or_load("r20", load)
        assert counted(cache)["fills_refused_uncovered"] == number
    assert counted(cache)["fills"] == 1


def test_a_value_without_a_part_that_could_not_be_read_is_not_cached(
    model: Model, open_cache: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader that goes on without a shard has no token that a change there is compared with."""
    cache = open_cache()
    model.write("r20")
    model.catch_up()
    model.apply()

    def load(read: Callable[..., Sequence[int]]) -> list[int]:
        found = [read("ra0", shard="80-")[0]]
        with suppress(OwnWriteMissing):
            found += read("r20", shard="-80")
        return found

    def fail(*_: object, **__: object) -> None:
        raise OwnWriteMissing

    with monkeypatch.context() as patched:
        patched.setattr(model.readers["-80"], "execute", fail)
        assert cache.get_or_load("pair", load) == [1]

    assert counted(cache)["fills_refused_uncovered"] == 1
    assert cache.get_or_load("pair", load) == [1, 2]


def test_several_keys_at_once(model: Model, open_cache: Opener) -> None:
    """Only the missing keys are loaded; those that the loader leaves out have no row."""
    cache = open_cache()
    model.get(cache, "r20")
    asked: list[Sequence[str]] = []

    def load(read: Callable[..., Sequence[int]], keys: Sequence[str]) -> Mapping[str, object]:
        asked.append(keys)
        return {key: {key: read(key, shard="-80")[0]} for key in keys if key == "r60"}

    for _ in range(2):
        found = cache.get_many(["r60", "r20", "none", "r20"], load)
        assert found == {"r60": {"r60": 1}, "r20": {"r20": 1}, "none": None}
    assert asked == [("r60", "none")]
    assert cache.get_many([], load) == {}


@pytest.mark.servers
def test_many_keys_take_as_many_round_trips_as_one(
    redis_servers: Sequence[RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read, announced and filled in goes to a server at once, whatever the number."""
    model = Model(open_redis(redis_servers), CacheOptions(max_behind_s=86_400))
    sent: list[Any] = []
    send, caller = Servers._send, threading.get_ident()

    def noting(self: Servers[Any], address: Any, words: Any) -> Any:
        if threading.get_ident() == caller:  # others of this process may still use their stores
            sent.append(words)
        return send(self, address, words)

    def load(read: Read, keys: Sequence[str]) -> Mapping[str, Any]:
        version = read("r20", shard="-80")[0]
        return dict.fromkeys(keys, version)

    cache = model.cache()
    cache.get_many(["warm"], load)  # positions are looked at, and scripts are made known
    monkeypatch.setattr(Servers, "_send", noting)
    cache.get_many(["one"], load)
    one = len(sent)
    cache.get_many([f"key:{number}" for number in range(50)], load)
    # One more: the position of a node that was not looked at before.
    assert 0 < len(sent) - one <= one + 1, sent
    assert cache.counters()["fills"] == 52


def test_forget(model: Model, open_cache: Opener) -> None:
    """A forgotten value is loaded again."""
    cache = open_cache()
    model.get(cache, "r20")

    assert cache.forget("r20", "r60")

    model.get(cache, "r20")
    assert counted(cache)["fills"] == 2


def test_ones_own_invalidation(model: Model, open_cache: Opener) -> None:
    """The writer's own invalidation keeps old values out, too, and its replay changes nothing."""
    cache = open_cache()
    model.get(cache, "r20")
    token = model.write("r20")

    assert cache.invalidate(["r20"], token)

    assert model.get(cache, "r20") == {"r20": 1}  # the replica's, shown but not cached
    model.catch_up()
    assert model.get(cache, "r20") == {"r20": 2}
    model.apply()
    assert model.get(cache, "r20") == {"r20": 2}
    assert counted(cache)["fills_refused_older"] == 1
    assert counted(cache)["hits"] == 1


def test_own_writes_are_read(model: Model, open_cache: Opener) -> None:
    """R24, H8: the writer never gets a value from before its write, whatever is cached."""
    cache = open_cache()
    model.get(cache, "r20")
    token = model.write("r20")

    assert model.get(cache, "r20") == {"r20": 1}
    assert model.get(cache, "r20", token) == {"r20": 2}
    assert model.get(cache, "r20") == {"r20": 2}
    assert model.readers["-80"].queries == ["r20 replica", "r20 primary"]
    shard = model.database.shards["-80"]
    lost = replace(token, position=token.position.add_gtid(shard.gtid(9)))
    with pytest.raises(OwnWriteMissing):
        model.get(cache, "r20", lost)


def test_own_writes_leave_keys_of_other_shards_cached(model: Model, open_cache: Opener) -> None:
    """Rule 15: a write counts for values that were read on its shard, in part or whole."""
    cache = open_cache()
    for key in ("ra0", "pair"):
        model.get(cache, key)
    queries = model.queries()
    write = model.write("r20")

    assert model.get(cache, "ra0", write) == {"ra0": 1}
    assert model.queries() == queries
    assert model.get(cache, "pair", write) == {"r20": 2, "ra0": 1}
    assert model.queries() == queries + 2


@pytest.mark.parametrize(("off_us", "is_filled"), [(0, True), (1_000_000, False)])
def test_clocks_that_may_be_off_prove_less_after_a_split(off_us: int, *, is_filled: bool) -> None:
    """A read of the target, moments after a write on the source, is not yet proven to be newer."""
    model = Model(open_memory(clock=ClockUncertainty(off_us)))
    model.get(model.cache(), "r20")
    write = model.write("r20")
    model.database.end_source()
    model.begin("-40")
    model.begin("40-80")
    model.catch_up()
    cache = model.cache()

    assert [model.get(cache, "r20", write) for _ in range(2)] == [{"r20": 2}] * 2
    assert counted(cache)["misses"] == (1 if is_filled else 2)
    assert cache.counters()["fills_refused_replaced"] == (0 if is_filled else 2)


def test_own_writes_pass_into_the_loader(model: Model) -> None:
    """A loader that asks the cache gets values that hold what its own value has to hold."""
    cache = model.cache()
    model.get(cache, "r20")
    token = model.write("r20")

    found = cache.get_or_load("outer", lambda _: model.get(cache, "r20"), newer_than=token)

    assert found == {"r20": 2}


def test_keys_that_are_refused_again_and_again_ask_the_primary(
    model: Model, open_cache: Opener
) -> None:
    """A replica that lags does not keep a key out of the cache for long."""
    cache = open_cache(primary_after=3)
    model.write("r20")
    model.apply()

    assert [model.get(cache, "r20")["r20"] for _ in range(5)] == [1, 1, 1, 2, 2]
    assert counted(cache)["fills_refused_older"] == 3
    assert counted(cache)["hits"] == 1


def test_the_replica_that_was_fresh_is_asked_first(model: Model, open_cache: Opener) -> None:
    """It is, until a read of it is refused; "listed" keeps to the reader's own order."""
    cache = open_cache()
    model.get(cache, "r20")
    model.get(cache, "r60")
    model.write("r20")
    model.apply()
    model.get(cache, "r20")
    model.get(cache, "r20")
    assert model.readers["-80"].preferred == [None, "replica", "replica", None]

    model.readers["-80"].preferred.clear()
    model.catch_up()
    listed = open_cache(prefer="listed")
    model.get(listed, "r20")
    listed.forget("r20")
    model.get(listed, "r20")
    assert model.readers["-80"].preferred == [None, None]


def test_what_own_writes_cost_is_counted(model: Model, open_cache: Opener) -> None:
    """Reads that had to hold a write, and those of them that went to the primary."""
    cache = open_cache()
    write = model.write("r20")
    model.get(cache, "r20", write)
    model.catch_up()
    write = model.write("r60")
    model.catch_up()
    model.get(cache, "r60", write)

    assert counted(cache)["own_write_reads"] == 2
    assert counted(cache)["own_write_primary"] == 1
    assert cache.counters()["own_write_waits"] == 0


def test_a_missing_floor_is_asked_for(model: Model, open_cache: Opener) -> None:
    """R22: after a flush nothing is cached until the floors are made at the end of the logs."""
    cache = open_cache()
    model.get(cache, "r20")
    model.opened.flush()

    assert model.get(cache, "r20") == {"r20": 1}
    assert counted(cache)["fills_refused_no_floor"] == 1
    model.make_floors()
    model.get(cache, "r20")
    model.get(cache, "r20")
    assert counted(cache)["hits"] == 1


def test_a_store_that_does_not_answer(
    model: Model, open_cache: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database answers, whichever call of the store fails; the failures are counted."""
    for method in ("read", "prepare", "fill", "release", "want_floors", "positions"):
        cache = open_cache()

        def fail(*_: object) -> None:
            raise StoreUnreachable("a", "timed out")

        with monkeypatch.context() as patch:
            patch.setattr(MemoryStore, method, fail)
            assert model.get(cache, "r20") == {"r20": 1}, method
        cache.forget("r20")
        assert method in ("release", "want_floors") or counted(cache)["store_errors"] > 0


def test_loaders_that_fail(model: Model, open_cache: Opener) -> None:
    """The caller gets the loader's own error, and nothing is cached."""
    cache = open_cache()

    with pytest.raises(ZeroDivisionError):
        cache.get_or_load("r20", lambda _: 1 // 0)

    assert model.get(cache, "r20") == {"r20": 1}


def test_a_value_that_cannot_be_encoded(model: Model, open_cache: Opener) -> None:
    """It is refused by name at the first load, not at some later hit."""
    cache = open_cache()

    with pytest.raises(UsageError, match="r20: json cannot encode its value"):
        cache.get_or_load("r20", lambda _: {1, 2})


def test_another_codec_is_another_cache(model: Model, open_cache: Opener) -> None:
    """A value of another codec is loaded again, never read as what it is not."""
    first, second = open_cache(), open_cache(codec="pickle")
    model.get(first, "r20")

    assert second.get_or_load("r20", lambda read: (read("r20", shard="-80")[0],)) == (1,)
    assert second.get_or_load("r20", lambda _: None) == (1,)
    assert counted(second)["unreadable"] == 1


def test_readers_are_replaced_after_a_reshard(model: Model, open_cache: Opener) -> None:
    """Reads go to the shards that serve."""
    cache = open_cache()

    cache.set_readers({"80-": model.readers["80-"]})

    with pytest.raises(UsageError, match="no reader of shard -80: the readers are of 80-"):
        model.get(cache, "r20")
