"""Races of fills, by the steps of one client among the steps of others, on every store.

The version of a row is 1 at first, and one more with each write.
"""

import pytest

from caching.client.options import CacheOptions
from caching.errors import StoreUnreachable
from caching.protocol import Floor, Refusal, decide_fill
from caching.reading.reader import FreshRows
from caching.stores.memory import MemoryStore
from tests.caching.client.model import Model
from tests.caching.client.stepping import SteppedGet
from tests.caching.protocol.database import TICK_US, Server
from tests.caching.protocol.tokens import TRUSTED, by_shard, token

OLD, NEW = {"r20": 1}, {"r20": 2}
YEAR_S = 365 * 24 * 3_600


def test_stale_set_after_invalidation(any_model: Model) -> None:
    """R01: a client reads v1, v2 is written and applied, then the client would fill in v1."""
    client = SteppedGet(any_model, "r20").through("load")
    any_model.write("r20")
    any_model.apply()

    assert client.finish() == OLD
    assert any_model.cached("r20") is None
    assert any_model.fills_again("r20") == NEW


@pytest.mark.parametrize("is_made_again", [False, True])
def test_floor_evicted_before_an_old_fill(any_model: Model, *, is_made_again: bool) -> None:
    """R02, F31: as R01, and what kept v1 out is evicted before the fill, and made again or not."""
    client = SteppedGet(any_model, "r20").through("load")
    any_model.write("r20")
    any_model.apply()
    any_model.opened.flush()
    if is_made_again:
        any_model.opened.store.want_floors(range(any_model.opened.layout.buckets))
        any_model.make_floors()

    assert client.finish() == OLD
    assert any_model.cached("r20") is None
    if is_made_again:
        assert any_model.fills_again("r20") == NEW


def test_a_lagging_replica_fills_nothing(any_model: Model) -> None:
    """R03: the change was applied, and the replica that is read does not have it yet."""
    any_model.get(any_model.cache(), "r20")
    any_model.write("r20")
    any_model.apply()
    cache = any_model.cache()

    assert any_model.get(cache, "r20") == OLD
    assert any_model.cached("r20") is None
    assert cache.counters()["fills_refused_older"] == 1
    assert any_model.fills_again("r20") == NEW


def test_no_replica_of_a_cell_fills_what_it_has_not_applied(model: Model) -> None:
    """R04: the invalidation comes from the primary's log, before any replica has the change."""
    shard = model.database.shards["-80"]
    replicas = [Server(shard, shard.primary.applied) for _ in range(3)]
    model.write("r20")
    model.write("r20")
    model.apply()
    replicas[1].applied += 1
    replicas[2].applied += 2

    for shard.replica in replicas:
        model.get(model.cache(), "r20")
        is_current = shard.replica is replicas[2]
        assert model.cached("r20") == ({"r20": 3} if is_current else None)


def test_fill_and_invalidation_of_one_state(any_model: Model) -> None:
    """R06: both begin with the same bytes; the fill loses, or the invalidation removes it."""
    loser, winner = SteppedGet(any_model, "r20"), SteppedGet(any_model, "r60")
    loser.until("fill")
    any_model.write("r20")
    any_model.apply()
    loser.finish()
    assert any_model.cached("r20") is None

    winner.finish()
    assert any_model.cached("r60") == {"r60": 1}
    any_model.write("r60")
    any_model.apply()
    assert any_model.cached("r60") is None


def test_equal_times_on_two_shards() -> None:
    """R09: a change and a read of overlapping shards at the same time: unknown, so no fill."""
    floor = Floor(bytes(16), by_shard([token("-80", 5, 1_000)])).to_bytes()

    assert decide_fill(floor, None, by_shard([token("-40", 1, 1_000)]), TRUSTED) is Refusal.UNKNOWN
    assert not isinstance(
        decide_fill(floor, None, by_shard([token("-40", 1, 1_001)]), TRUSTED), Refusal
    )


def test_equal_times_on_one_shard() -> None:
    """R10: GTIDs decide, whatever the times are; a read of the change itself may be filled in."""
    floor = Floor(bytes(16), by_shard([token("-80", 5, 1_000)])).to_bytes()

    assert decide_fill(floor, None, by_shard([token("-80", 4, 1_000)]), TRUSTED) is Refusal.OLDER
    for count, time_us in ((5, 1_000), (6, 1_000), (6, 999)):
        read = by_shard([token("-80", count, time_us)])
        assert not isinstance(decide_fill(floor, None, read, TRUSTED), Refusal)


def test_the_token_is_older_than_the_rows(
    any_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R13: a change between token and query is in the rows; the value goes when it is applied."""
    reader = any_model.readers["-80"]

    def execute(sql: str, args: object = (), **_: object) -> FreshRows:
        replica = reader.shard.replica
        before = replica.token()
        any_model.write("r20")
        any_model.catch_up()
        return FreshRows([replica.version(sql)], before, None, "replica")

    monkeypatch.setattr(reader, "execute", execute)
    assert any_model.get(any_model.cache(), "r20") == NEW
    assert any_model.cached("r20") == NEW
    monkeypatch.undo()

    any_model.apply()
    assert any_model.cached("r20") is None
    assert any_model.fills_again("r20") == NEW


@pytest.mark.parametrize("steps", range(6))
def test_a_client_dies_between_any_two_steps(any_model: Model, steps: int) -> None:
    """R17: value and tokens are one write, so whatever a dead client leaves is whole or nothing."""
    any_model.options = CacheOptions(lease_ms=50)
    client = SteppedGet(any_model, "r20")
    for _ in range(steps):
        if not client.is_done:
            client.step()
    assert any_model.cached("r20") in (None, OLD)
    any_model.write("r20")
    any_model.apply()

    assert any_model.cached("r20") is None
    assert any_model.fills_again("r20") == NEW


def test_lag_beyond_any_ttl(model: Model) -> None:
    """R19: floors do not expire, so a replica may lag for a year."""
    store = model.opened.raw
    assert isinstance(store, MemoryStore)
    model.get(model.cache(), "r20")
    model.write("r20")
    model.apply()
    now_s = store.clock()
    store.clock = lambda: now_s + YEAR_S

    assert model.get(model.cache(), "r20") == OLD
    assert model.cached("r20") is None
    assert model.fills_again("r20") == NEW


def test_a_clock_that_goes_back(any_model: Model) -> None:
    """R20: a later change with an earlier time is applied, and keeps older values out."""
    any_model.get(any_model.cache(), "r20")
    stopped = SteppedGet(any_model, "r60").through("load")
    any_model.database.now_us = 0
    assert any_model.write("r20").timestamp_us == TICK_US
    any_model.write("r60")
    any_model.apply()

    assert stopped.finish() == {"r60": 1}
    assert any_model.cached("r20") is None
    assert any_model.cached("r60") is None
    assert any_model.fills_again("r20") == NEW


def test_a_fill_whose_answer_is_lost(any_model: Model) -> None:
    """R25: it was done; done again it changes nothing, nor does it after an invalidation."""
    client = SteppedGet(any_model, "r20").until("fill")
    assert client.next_step is not None
    [[write]] = client.next_step.arguments
    client.fail(StoreUnreachable("a", "the answer is lost"), after=True)
    assert client.finish() == OLD
    assert any_model.cached("r20") == OLD

    assert not any_model.opened.store.fill(*write)
    any_model.write("r20")
    any_model.apply()
    assert not any_model.opened.store.fill(*write)
    assert any_model.cached("r20") is None
    assert any_model.fills_again("r20") == NEW


def test_the_value_is_gone_before_the_replica_has_caught_up(any_model: Model) -> None:
    """H1: v2 is filled in from the primary and goes again; the replica still shows v1."""
    any_model.write("r20")
    any_model.apply()
    cache = any_model.cache(primary_after=0)
    assert any_model.get(cache, "r20") == NEW
    assert any_model.cached("r20") == NEW
    cache.forget("r20")

    assert any_model.get(any_model.cache(), "r20") == OLD
    assert any_model.cached("r20") is None


def test_a_client_that_looked_before_a_flush(any_model: Model) -> None:
    """H2: look, change applied, flush, old read, floors made: they are of the logs' end."""
    client = SteppedGet(any_model, "r20").through("read")
    any_model.write("r20")
    any_model.apply()
    any_model.opened.flush()
    client.through("load")
    any_model.opened.store.want_floors(range(any_model.opened.layout.buckets))
    any_model.make_floors()

    assert client.finish() == OLD
    assert any_model.cached("r20") is None
    assert any_model.fills_again("r20") == NEW


def test_a_hit_from_before_ones_own_write(any_model: Model) -> None:
    """H8: the invalidation has not come yet; the writer's token makes the hit a miss."""
    any_model.get(any_model.cache(), "r20")
    own = any_model.write("r20")

    assert SteppedGet(any_model, "r20").finish() == OLD
    assert SteppedGet(any_model, "r20", own).finish() == NEW
    assert any_model.cached("r20") == NEW


def test_a_read_of_several_shards_at_different_places(any_model: Model) -> None:
    """R16, H12: a value of two shards is refused for the older one of its reads."""
    any_model.write("ra0")
    any_model.apply()
    client = SteppedGet(any_model, "pair").through("load")
    assert client.finish() == {"r20": 1, "ra0": 1}
    assert any_model.cached("pair") is None
    assert any_model.fills_again("pair") == {"r20": 1, "ra0": 2}
    any_model.write("r20")
    any_model.apply()
    assert any_model.cached("pair") is None
