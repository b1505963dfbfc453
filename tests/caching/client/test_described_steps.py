"""The two protocols of Vitess's Update Stream, step by step, with floors in place of tombstones.

Two steps differ: an invalidation of a key that nobody cached raises its floor and makes no entry,
and a read at exactly the change may be filled in, because GTID sets prove that it holds it.
"""

from dataclasses import replace

from caching.protocol import CacheEntry, parse_slot
from caching.stores.store import KeyChange
from event_token import EventToken, MysqlGtidSet
from tests.caching.client.model import Model
from tests.caching.client.stepping import SteppedGet

OLD, NEW = {"r20": 1}, {"r20": 2}


def floor_token(model: Model, shard: str = "-80") -> EventToken:
    """The newest change of a shard in the bucket of r20."""
    floor = model.opened.floor("r20")
    assert floor is not None
    return floor.tokens[shard]


# The invalidation process.


def test_a_change_of_a_key_without_an_entry(any_model: Model) -> None:
    """No entry: the floor is raised, so that nothing older can be filled in; no entry is made."""
    change = any_model.write("r20")
    any_model.apply()

    assert floor_token(any_model) == change
    assert any_model.opened.slot("r20") is None


def test_a_change_that_is_newer_than_the_entry(any_model: Model) -> None:
    """The entry is strictly older: it goes, and the floor is raised."""
    any_model.get(any_model.cache(), "r20")
    change = any_model.write("r20")
    any_model.apply()

    assert floor_token(any_model) == change
    assert any_model.opened.slot("r20") is None


def test_a_change_that_the_entry_holds(any_model: Model) -> None:
    """The entry is as new or newer: the change is discarded."""
    change = any_model.write("r20")
    any_model.catch_up()
    any_model.get(any_model.cache(), "r20")
    slot = any_model.opened.slot("r20")
    any_model.apply()

    assert any_model.opened.slot("r20") == slot
    assert any_model.cached("r20") == NEW
    assert floor_token(any_model) == change


def test_a_change_that_cannot_be_ordered(any_model: Model) -> None:
    """Nothing tells which is newer: the value goes, and only a read of both is filled in."""
    any_model.get(any_model.cache(), "r20")
    own = any_model.database.shards["-80"].end()
    other = MysqlGtidSet.parse("00000000-0000-0000-0000-0000000000ff:1")
    any_model.opened.floors.invalidate([KeyChange("r20", replace(own, position=other))])

    assert any_model.opened.slot("r20") is None
    assert floor_token(any_model).position == own.position.union(other)
    any_model.get(any_model.cache(), "r20")
    assert any_model.cached("r20") is None


def test_an_entry_that_changes_meanwhile(any_model: Model) -> None:
    """The invalidation holds for what the slot has when it is written, not when it was read."""
    client = SteppedGet(any_model, "r20").until("fill")
    change = any_model.write("r20")
    any_model.opened.floors.invalidate([KeyChange("r20", change)])
    client.finish()

    assert any_model.cached("r20") is None


# The application.


def test_no_entry(any_model: Model) -> None:
    """It asks for the token with the query, and sets token and value by compare-and-set."""
    client = SteppedGet(any_model, "r20")
    assert client.finish() == OLD

    stored = parse_slot(any_model.opened.slot("r20"))
    assert isinstance(stored, CacheEntry)
    assert stored.tokens == {"-80": any_model.database.shards["-80"].end()}
    assert client.taken == ["positions", "read", "prepare", "load", "fill"]


def test_an_entry_with_a_value(any_model: Model) -> None:
    """It uses the value."""
    any_model.get(any_model.cache(), "r20")
    queries = any_model.queries()
    client = SteppedGet(any_model, "r20")

    assert client.finish() == OLD
    assert client.taken == ["positions", "read"]
    assert any_model.queries() == queries


def test_a_read_that_is_fresher_than_the_floor(any_model: Model) -> None:
    """Newer than the change, or exactly at it: the value is filled in."""
    any_model.write("r20")
    any_model.apply()
    any_model.catch_up()
    any_model.get(any_model.cache(), "r20")
    assert any_model.cached("r20") == NEW
    any_model.cache().forget("r20")
    any_model.write("r60")
    any_model.catch_up()

    any_model.get(any_model.cache(), "r20")
    assert any_model.cached("r20") == NEW


def test_a_read_that_is_not_fresher(any_model: Model) -> None:
    """Older, or not known: the caller gets the value, and the cache does not."""
    any_model.write("r20")
    any_model.apply()

    client = SteppedGet(any_model, "r20")
    assert client.finish() == OLD
    assert "fill" not in client.taken
    assert any_model.cached("r20") is None
