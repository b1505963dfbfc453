"""Reading and filling, on every store: nothing enters that was checked against something else."""

import pytest

from caching.protocol import CacheEntry, Hit, MissReason, Placeholder, decide_hit, parse_slot
from caching.protocol.decisions import Miss
from caching.stores.store import Announcement, EntryWrite, KeyChange
from tests.caching.protocol.tokens import TRUSTED, by_shard, token
from tests.caching.stores.opened import TTL_MS, Opened

LEASE_MS = 600_000


def test_a_fill_is_read_back(opened: Opened) -> None:
    """A value that was filled in is a hit under the floor it was filled under."""
    generation = opened.make(["user:1"], token("-", 5))
    entry = opened.put("user:1", generation, token("-", 5))

    [pair, absent] = opened.store.read(["user:1", "user:2"])

    assert decide_hit(pair.floor, pair.slot, TRUSTED) == Hit(0, b"v", entry.to_bytes())
    assert absent.slot is None


def test_many_keys_are_read_in_their_order(opened: Opened) -> None:
    """Each key gets its own pair, whatever node it lies on."""
    keys = [f"user:{number}" for number in range(50)]
    generation = opened.make(keys, token("-", 5))
    for key in keys[::2]:
        opened.put(key, generation, token("-", 5), value=key.encode())

    found = [parse_slot(pair.slot) for pair in opened.store.read(keys)]

    assert [getattr(slot, "value", None) for slot in found] == [
        key.encode() if number % 2 == 0 else None for number, key in enumerate(keys)
    ]
    assert opened.store.read([]) == []


@pytest.mark.parametrize("key", ["k" * 300, "with blank", "größe:\n7", ""])
def test_any_text_is_a_key(opened: Opened, key: str) -> None:
    """Long keys, blanks and letters that a store would not take are stored all the same."""
    generation = opened.make([key], token("-", 5))
    entry = opened.put(key, generation, token("-", 5))

    assert opened.slot(key) == entry.to_bytes()
    opened.store.forget([key])
    assert opened.slot(key) is None


def test_a_fill_loses_to_a_raised_floor(opened: Opened) -> None:
    """R01: a change is applied between the read and the fill, of this key or of its bucket."""
    generation = opened.make(["user:1"], token("-", 5))
    [seen] = opened.store.read(["user:1"])
    prepared = opened.store.prepare("user:1", seen, 0)
    assert prepared is not None

    opened.store.invalidate([KeyChange("user:1", token("-", 6))])

    assert not opened.store.fill("user:1", prepared, b"old", TTL_MS)
    assert opened.slot("user:1") is None
    floor = opened.floor("user:1")
    assert floor is not None
    assert (floor.generation, floor.tokens) == (generation, {"-": token("-", 6)})


def test_a_fill_loses_to_another_fill(opened: Opened) -> None:
    """Of two fills that were checked against the same slot one is written."""
    opened.make(["user:1"], token("-", 5))
    [seen] = opened.store.read(["user:1"])
    first = opened.store.prepare("user:1", seen, 0)
    second = opened.store.prepare("user:1", seen, 0)
    prepared = [each for each in (first, second) if each is not None]

    written = [opened.store.fill("user:1", each, b"%d" % n, TTL_MS)
               for n, each in enumerate(prepared)]  # fmt: skip

    assert sum(written) == 1
    assert opened.slot("user:1") == b"%d" % written.index(True)


def test_a_fill_loses_to_a_flush(opened: Opened) -> None:
    """R22: everything is gone between the read and the fill, and the bucket is closed."""
    opened.make(["user:1"], token("-", 5))
    [seen] = opened.store.read(["user:1"])
    prepared = opened.store.prepare("user:1", seen, 0)
    assert prepared is not None

    opened.flush()

    assert not opened.store.fill("user:1", prepared, b"old", TTL_MS)
    [pair] = opened.store.read(["user:1"])
    assert (pair.floor, pair.slot) == (None, None)


def test_a_lost_fill_is_checked_again_where_it_may_be(opened: Opened) -> None:
    """What a store offers after a lost fill can be filled against, or nothing is offered."""
    opened.make(["user:1"], token("-", 5))
    [seen] = opened.store.read(["user:1"])
    prepared = opened.store.prepare("user:1", seen, 0)
    assert prepared is not None
    opened.store.invalidate([KeyChange("user:1", token("-", 6))])
    assert not opened.store.fill("user:1", prepared, b"old", TTL_MS)

    again = opened.store.read_again("user:1")

    assert again is None or opened.store.fill("user:1", again, b"new", TTL_MS)


def test_one_client_gets_the_lease(opened: Opened) -> None:
    """Of a herd that misses, one announces its fill; the others see its placeholder."""
    opened.make(["user:1"], token("-", 5))
    [seen] = opened.store.read(["user:1"])

    first = opened.store.prepare("user:1", seen, LEASE_MS)
    second = opened.store.prepare("user:1", seen, LEASE_MS)
    [during] = opened.store.read(["user:1"])

    assert first is not None
    assert second is None
    assert decide_hit(during.floor, during.slot, TRUSTED) == Miss(MissReason.LEASED)
    assert opened.store.fill("user:1", first, b"new", TTL_MS)
    assert opened.slot("user:1") == b"new"


def test_a_lease_is_taken_over(opened: Opened) -> None:
    """Who saw a placeholder for too long takes the slot; the fill announced first loses."""
    opened.make(["user:1"], token("-", 5))
    first = opened.store.prepare("user:1", opened.store.read(["user:1"])[0], LEASE_MS)
    second = opened.store.prepare("user:1", opened.store.read(["user:1"])[0], LEASE_MS)

    assert first is not None
    assert second is not None
    assert not opened.store.fill("user:1", first, b"first", TTL_MS)
    assert opened.store.fill("user:1", second, b"second", TTL_MS)
    assert opened.slot("user:1") == b"second"


def test_a_lease_is_given_back(opened: Opened) -> None:
    """A fill that does not happen frees the slot, unless somebody else has it by now."""
    opened.make(["user:1"], token("-", 5))
    first = opened.store.prepare("user:1", opened.store.read(["user:1"])[0], LEASE_MS)
    assert first is not None
    opened.store.release("user:1", first)
    assert opened.slot("user:1") is None

    second = opened.store.prepare("user:1", opened.store.read(["user:1"])[0], LEASE_MS)
    opened.store.release("user:1", first)

    assert second is not None
    assert isinstance(parse_slot(opened.slot("user:1")), Placeholder)


def test_an_invalidation_takes_the_lease_away(opened: Opened) -> None:
    """R02: the placeholder of a fill always goes, for its read may be older than the change."""
    opened.make(["user:1"], token("-", 5))
    prepared = opened.store.prepare("user:1", opened.store.read(["user:1"])[0], LEASE_MS)
    assert prepared is not None

    opened.store.invalidate([KeyChange("user:1", token("-", 6))])

    assert opened.slot("user:1") is None
    assert not opened.store.fill("user:1", prepared, b"old", TTL_MS)


def test_forget_leaves_the_floor(opened: Opened) -> None:
    """A forgotten key is a miss, and can be filled again at once."""
    generation = opened.make(["user:1", "user:2"], token("-", 5))
    opened.put("user:1", generation, token("-", 5))
    opened.put("user:2", generation, token("-", 5))

    opened.store.forget(["user:1", "user:3"])

    assert opened.slot("user:1") is None
    assert opened.slot("user:2") is not None
    assert opened.floor("user:1") is not None


@pytest.mark.parametrize("lease_ms", [0, 60_000])
def test_many_fills_at_once(opened: Opened, lease_ms: int) -> None:
    """Each is decided by itself: those that lost can be told from those that were written."""
    keys = [f"user:{number}" for number in range(9)]
    generation = opened.make(keys, token("-", 5))
    seen = opened.store.read(keys)
    announced = [Announcement(key, each, lease_ms) for key, each in zip(keys, seen, strict=True)]
    prepared = [each for each in opened.store.prepare_many(announced) if each is not None]
    assert len(prepared) == len(keys)
    opened.floors.invalidate([KeyChange("user:3", token("-", 6))])
    entry = CacheEntry(generation, b"n" * 8, by_shard([token("-", 5)]), 0, b"v").to_bytes()
    writes = [
        EntryWrite(key, each, entry, TTL_MS) for key, each in zip(keys, prepared, strict=True)
    ]
    opened.store.release("user:7", prepared[7])

    written = opened.store.fill_many(writes)

    assert [opened.slot(key) == entry for key in keys] == written
    raised = opened.layout.bucket("user:3")
    elsewhere = [key != "user:7" and opened.layout.bucket(key) != raised for key in keys]
    assert not written[3]
    assert all(done for done, is_free in zip(written, elsewhere, strict=True) if is_free)
    assert opened.store.fill_many([]) == []
