"""Races of invalidations: restarts, replays, lost stores, DDL and reshards, on every store."""

import copy
import secrets

import pytest

from caching.errors import Reconnected
from caching.protocol import Floor
from caching.stores.memory import MemoryStore
from caching.stores.store import KeyChange
from event_token import EventToken
from tests.caching.client.model import Model
from tests.caching.client.stepping import SteppedGet
from tests.caching.protocol.invalidation import Invalidation, decide_invalidation
from tests.caching.protocol.tokens import by_shard, token
from tests.caching.stores.opened import RANGE

OLD, NEW = {"r20": 1}, {"r20": 2}


def test_two_invalidators_of_one_state() -> None:
    """R05: both decide on the same bytes; the one that loses decides again on the other's."""
    first, second = token("-", 6), token("-", 7)
    stored = Floor(bytes(16), by_shard([token("-", 5)])).to_bytes()
    for one, other in ((first, second), (second, first)):
        decisions = [decide_invalidation(stored, None, change) for change in (one, other)]
        assert all(isinstance(each, Invalidation) for each in decisions)
        winner, loser = decisions
        assert winner is not None
        assert loser is not None
        assert winner.floor != stored  # so the other's compare-and-set finds another floor

        again = decide_invalidation(winner.floor, None, other)
        assert again == Invalidation(Floor(bytes(16), by_shard([second])).to_bytes(), remove=False)


def test_two_invalidators_at_different_places(any_model: Model) -> None:
    """R05: whichever comes first, the floor ends at the newer change."""
    other = any_model.opened.more_floors()
    other.resume(RANGE)
    old, new = any_model.write("r20"), any_model.write("r20")

    any_model.opened.floors.invalidate([KeyChange("r20", new)])
    other.invalidate([KeyChange("r20", old)])

    floor = any_model.opened.floor("r20")
    assert floor is not None
    assert floor.tokens["-80"] == new
    any_model.catch_up()
    assert any_model.fills_again("r20") == {"r20": 3}
    other.close()


def test_a_successor_that_starts_behind(any_model: Model) -> None:
    """R07: it repeats old changes: a value that holds them stays, and the floor is not lowered."""
    any_model.get(any_model.cache(), "r20")
    any_model.write("r20")
    any_model.apply()
    assert any_model.fills_again("r20") == NEW
    floor = any_model.opened.floor("r20")

    any_model.applied.clear()
    any_model.apply()

    assert any_model.opened.floor("r20") == floor
    assert any_model.cached("r20") == NEW


def test_a_restart_some_seconds_back(any_model: Model) -> None:
    """R08: changes are repeated in the midst of fills and new changes, and nothing gets older."""
    any_model.write("r20")
    any_model.apply()
    any_model.applied.clear()
    client = SteppedGet(any_model, "r20").through("load")
    for _, change in any_model.pending():
        any_model.apply_change(change)
        any_model.get(any_model.cache(), "r20")
        assert any_model.cached("r20") is None

    assert client.finish() == OLD
    assert any_model.cached("r20") is None
    assert any_model.fills_again("r20") == NEW


def test_a_restart_whose_history_is_missing(any_model: Model) -> None:
    """R08, H3: changes between the last position and the start are lost: all floors are renewed."""
    any_model.get(any_model.cache(), "r20")
    any_model.write("r20")
    client = SteppedGet(any_model, "r60").through("load")
    any_model.applied = {name: len(shard.log) for name, shard in any_model.database.shards.items()}
    assert any_model.cached("r20") == OLD

    any_model.renew(*any_model.ends().values())

    assert any_model.cached("r20") is None
    client.finish()
    assert any_model.cached("r60") is None
    assert any_model.fills_again("r20") == NEW


def test_one_change_from_source_and_target(any_model: Model) -> None:
    """R11: it comes from both logs of a reshard; twice at most, and reads of both fill again."""
    change = any_model.write("r20")
    target = any_model.database.targets["-40"]
    target.append(any_model.database.now_us, {"r20": 2})
    from_target = EventToken(None, "-40", target.end().position, origin=change)
    any_model.apply()
    any_model.opened.floors.invalidate([KeyChange("r20", from_target)])

    assert any_model.get(any_model.cache(), "r20") == OLD
    assert any_model.cached("r20") is None
    assert any_model.fills_again("r20") == NEW
    any_model.opened.floors.invalidate([KeyChange("r20", from_target)])
    assert any_model.cached("r20") == NEW


def test_times_that_go_back_in_one_log(any_model: Model) -> None:
    """R12: a merged log interleaves the times of its sources; GTIDs order it."""
    stopped = SteppedGet(any_model, "r20").through("load")
    first = any_model.write("r20")
    assert first.timestamp_us is not None
    any_model.database.now_us = first.timestamp_us - 5_000
    second = any_model.write("r20")
    any_model.apply()

    floor = any_model.opened.floor("r20")
    assert floor is not None
    assert floor.tokens["-80"] == second
    stopped.finish()
    assert any_model.cached("r20") is None
    assert any_model.fills_again("r20") == {"r20": 3}


def test_a_row_that_changes_its_key(any_model: Model) -> None:
    """R15: one change names the keys of both images, and both values go."""
    any_model.get(any_model.cache(), "r20")
    any_model.get(any_model.cache(), "r60")
    moved = any_model.write("r20")

    any_model.opened.floors.invalidate([KeyChange(key, moved) for key in ("r20", "r60")])

    assert (any_model.cached("r20"), any_model.cached("r60")) == (None, None)


def test_a_row_that_is_deleted_and_inserted(any_model: Model) -> None:
    """R15: "no row" is a value of the time between, and goes with the INSERT."""
    any_model.write("r20")  # DELETE
    any_model.apply()
    any_model.catch_up()
    cache = any_model.cache()
    assert cache.get_or_load("r20", lambda read: read("r20", shard="-80") and None) is None
    stopped = any_model.opened.store.read(["r20"])
    any_model.write("r20")  # INSERT
    any_model.apply()

    assert any_model.opened.store.read(["r20"]) != stopped
    assert any_model.opened.slot("r20") is None
    assert any_model.fills_again("r20") == {"r20": 3}


def test_a_node_that_comes_back_as_it_was(model: Model) -> None:
    """R18, H7: applied changes are gone with the connection; its position says where to go on."""
    store, floors = model.opened.raw, model.opened.floors
    assert isinstance(store, MemoryStore)
    floors.publish(RANGE, dict.fromkeys(store.nodes, (None, b"1")))
    model.get(model.cache(), "r20")
    saved, applied = copy.deepcopy(store.memory), dict(model.applied)
    model.write("r20")
    model.apply()
    assert model.cached("r20") is None

    for name, node in saved.items():
        node.connections = store.memory[name].connections + 1
    store.memory.update(saved)
    assert model.cached("r20") == OLD
    with pytest.raises(Reconnected):
        model.apply_change(model.database.shards["-80"].log[-1])
    assert floors.resume(RANGE) == dict.fromkeys(store.nodes, b"1")
    model.applied = applied
    model.apply()

    assert model.cached("r20") is None
    assert model.get(model.cache(), "r20") == OLD
    assert model.cached("r20") is None
    assert model.fills_again("r20") == NEW


def test_everything_is_lost(any_model: Model) -> None:
    """R22, F31: no fill until floors are made, and then only of what the logs' ends hold."""
    client = SteppedGet(any_model, "r20").through("load")
    any_model.write("r20")
    any_model.apply()
    any_model.opened.flush()

    client.finish()
    assert any_model.opened.slot("r20") is None
    any_model.get(any_model.cache(), "r20")
    assert any_model.opened.slot("r20") is None
    any_model.make_floors()
    any_model.get(any_model.cache(), "r20")
    assert any_model.cached("r20") is None
    assert any_model.fills_again("r20") == NEW


def test_one_of_two_nodes_is_lost(model: Model) -> None:
    """H4: the floors of each node are its own; the other node's cannot vouch for it."""
    store = model.opened.raw
    assert isinstance(store, MemoryStore)
    model.write("r20")
    model.apply()
    lost = store.node_of(store.layout.bucket("r20"))
    store.memory[lost].flush()

    assert model.get(model.cache(), "r20") == OLD
    assert model.opened.slot("r20") is None
    model.make_floors()
    model.get(model.cache(), "r20")
    assert model.cached("r20") is None


def test_a_floor_is_made_while_a_change_is_applied(any_model: Model) -> None:
    """H5: the end of the logs was asked for before the change: the floor is not made."""
    any_model.opened.flush()
    any_model.get(any_model.cache(), "r20")
    claim = any_model.opened.floors.claim(any_model.opened.floors.wanted())
    before = any_model.ends()
    any_model.write("r20")
    any_model.apply()

    floors = any_model.opened.floors
    made = floors.make_floors(claim, lambda: Floor(secrets.token_bytes(16), before))

    assert made == 0
    any_model.get(any_model.cache(), "r20")
    assert any_model.cached("r20") is None
    any_model.make_floors()
    assert any_model.fills_again("r20") == NEW


@pytest.mark.parametrize("name", ["TRUNCATE", "SKIP"])
def test_a_change_that_names_no_rows(any_model: Model, name: str) -> None:
    """R26, R28, H10: DDL and what cannot be decoded end all values and all fills under way."""
    any_model.get(any_model.cache(), "r20")
    client = SteppedGet(any_model, "r60").through("load")
    any_model.database.truncate("r20")
    change = any_model.database.shards["-80"].end()

    any_model.renew(change)

    assert any_model.cached("r20") is None
    assert client.finish() == {"r60": 1}
    assert any_model.cached("r60") is None
    assert any_model.get(any_model.cache(), "r20") == OLD
    assert any_model.cached("r20") is None
    assert any_model.fills_again("r20") == NEW


def test_an_invalidator_dies_within_a_transaction(any_model: Model) -> None:
    """R27, H6: its position is still before the transaction, so its successor applies all keys."""
    floors, nodes = any_model.opened.floors, any_model.opened.store.nodes
    floors.publish(RANGE, dict.fromkeys(nodes, (None, b"before")))
    for key in ("r20", "r60"):
        any_model.get(any_model.cache(), key)
    change = any_model.write("r20")
    floors.invalidate([KeyChange("r20", change)])  # and not r60, which it changed as well
    assert any_model.cached("r60") is not None

    successor = any_model.opened.more_floors()
    assert successor.resume(RANGE) == dict.fromkeys(nodes, b"before")
    successor.invalidate([KeyChange(key, change) for key in ("r20", "r60")])
    lost = successor.publish(RANGE, dict.fromkeys(nodes, (b"before", b"after")))

    assert lost == {}
    assert (any_model.cached("r20"), any_model.cached("r60")) == (None, None)
    successor.close()


def test_a_slow_invalidator_publishes_nothing(any_model: Model) -> None:
    """R27: a position is replaced only where it still is what was read."""
    slow, nodes = any_model.opened.floors, any_model.opened.store.nodes
    other = any_model.opened.more_floors()
    other.resume(RANGE)
    assert other.publish(RANGE, dict.fromkeys(nodes, (None, b"2"))) == {}

    assert slow.publish(RANGE, dict.fromkeys(nodes, (None, b"1"))) == dict.fromkeys(nodes, b"2")
    assert any_model.opened.store.position(nodes[0], RANGE) == b"2"
    other.close()


def test_a_composite_across_a_split(any_model: Model) -> None:
    """R11, H12: values of several shards fill from the targets at once, and from the source not."""
    late = any_model.cache()
    any_model.get(late, "pair")
    any_model.database.end_source()
    for shard in ("-40", "40-80"):
        any_model.begin(shard)
    change = any_model.write("r20")
    any_model.opened.floors.invalidate([KeyChange(key, change) for key in ("r20", "pair")])
    any_model.catch_up()

    stale = late.get_or_load("r60", lambda read: read("r60", shard="-80")[0])
    assert stale == 1
    assert any_model.cached("r60") is None
    assert late.counters()["fills_refused_older"] == 1
    assert any_model.cached("pair") is None
    assert any_model.fills_again("pair") == {"r20": 2, "ra0": 1}
    floor = any_model.opened.floor("pair")
    assert floor is not None
    assert set(floor.tokens) == {"-40", "40-80", "80-"}
