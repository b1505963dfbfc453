"""Invalidations, floors and positions, on every store."""

from collections.abc import Callable, Sequence

import pytest

from caching.errors import Reconnected, StoreUnreachable
from caching.protocol import Floor
from caching.stores.store import KeyChange
from event_token import ClockUncertainty
from tests.caching.protocol.tokens import token
from tests.caching.stores.opened import BUCKETS, RANGE, Opened

KEYS = [f"user:{number}" for number in range(300)]


def end_of_log() -> Floor:
    """A floor at the end of the only shard's log."""
    return Floor(bytes(16), {"-": token("-", 9)})


def test_an_invalidation_raises_the_floor_and_removes_the_value(opened: Opened) -> None:
    """Of many keys, each change removes its own key's value and raises its bucket's floor."""
    generation = opened.make(KEYS, token("-", 5))
    for key in KEYS[:20]:
        opened.put(key, generation, token("-", 5))

    done = opened.floors.invalidate(KeyChange(key, token("-", 6)) for key in KEYS[:10])

    touched = {opened.layout.bucket(key) for key in KEYS[:10]}
    assert (done.floors_raised, done.values_removed, done.closed) == (len(touched), 10, frozenset())
    assert [opened.slot(key) is None for key in KEYS[:20]] == [True] * 10 + [False] * 10
    for key in KEYS:
        floor = opened.floor(key)
        assert floor is not None
        assert floor.generation == generation
        newest = 6 if opened.layout.bucket(key) in touched else 5
        assert floor.tokens == {"-": token("-", newest)}


def test_a_value_that_holds_the_change_stays(opened: Opened) -> None:
    """A replayed invalidation changes neither the floor nor a newer value."""
    generation = opened.make(["user:1"], token("-", 5))
    opened.floors.invalidate([KeyChange("user:1", token("-", 7))])
    entry = opened.put("user:1", generation, token("-", 7), value=b"v" * 5_000)

    done = opened.floors.invalidate(
        [KeyChange("user:1", token("-", 6)), KeyChange("user:1", token("-", 7))]
    )

    assert (done.floors_raised, done.values_removed) == (0, 0)
    assert opened.slot("user:1") == entry.to_bytes()
    floor = opened.floor("user:1")
    assert floor is not None
    assert floor.tokens == {"-": token("-", 7)}


@pytest.mark.parametrize(
    "kind",
    ["memory", *(pytest.param(e, marks=pytest.mark.servers) for e in ("redis", "memcached"))],
)
def test_clocks_that_may_be_off_remove_more(kind: str, open_kind: Callable[..., Opened]) -> None:
    """A value of the target, 11 us behind a change of the source, stays unless clocks are off."""
    for off_us, stays in ((5, True), (6, False)):
        opened = open_kind(kind, clock=ClockUncertainty(off_us))
        generation = opened.make(["user:1"], token("-", 5, 50))
        opened.put("user:1", generation, token("-80", 1, 62))

        done = opened.floors.invalidate([KeyChange("user:1", token("-", 6, 51))])

        assert (done.values_removed, opened.slot("user:1") is not None) == (not stays, stays)


def test_several_changes_of_one_bucket_are_one_floor(opened: Opened) -> None:
    """The newest change of each shard stays, whatever key it touched."""
    generation = opened.make(["user:1"], token("-80", 5), token("80-", 5))
    opened.put("user:1", generation, token("-80", 5), token("80-", 5))

    done = opened.store.invalidate(
        [
            KeyChange("user:1", token("-80", 7)),
            KeyChange("user:1", token("80-", 6)),
            KeyChange("user:1", token("-80", 6)),
        ]
    )

    assert (done.floors_raised, done.values_removed) == (1, 1)
    floor = opened.floor("user:1")
    assert floor is not None
    assert floor.tokens == {"-80": token("-80", 7), "80-": token("80-", 6)}


def test_a_missing_floor_is_wanted_claimed_and_made(opened: Opened) -> None:
    """Rule 9: clients name what is missing; the invalidator makes it once."""
    opened.floors.resume(RANGE)
    buckets = {opened.layout.bucket(key) for key in KEYS[:5]}
    opened.store.want_floors(buckets)
    opened.store.want_floors(buckets)

    wanted = opened.floors.wanted()
    claim = opened.floors.claim(wanted)

    assert set(wanted) == buckets
    assert opened.floors.wanted() == []
    assert opened.floor(KEYS[0]) is None
    assert opened.floors.make_floors(claim, end_of_log) == len(buckets)
    assert opened.floor(KEYS[0]) == end_of_log()
    assert opened.floors.make_floors(claim, end_of_log) == 0


def test_a_floor_that_is_there_is_not_claimed(opened: Opened) -> None:
    """Rule 9 adds only: a floor that somebody else made stays."""
    generation = opened.make(["user:1"], token("-", 5))

    claim = opened.floors.claim([opened.layout.bucket("user:1")])

    assert claim.markers == {}
    assert opened.floors.make_floors(claim, end_of_log) == 0
    floor = opened.floor("user:1")
    assert floor is not None
    assert floor.generation == generation


def test_two_processes_share_a_claim(opened: Opened) -> None:
    """An invalidator that died with a claim keeps nobody from making the floor; one makes it."""
    other = opened.more_floors()
    opened.floors.resume(RANGE)
    other.resume(RANGE)
    bucket = opened.layout.bucket("user:1")
    first = opened.floors.claim([bucket])
    second = other.claim([bucket])

    assert first == second
    assert opened.floor("user:1") is None
    assert other.make_floors(second, end_of_log) == 1
    assert opened.floors.make_floors(first, end_of_log) == 0
    assert opened.floor("user:1") == end_of_log()
    other.close()


def test_of_two_claims_at_once_one_is_dropped(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two invalidators that find no floor at once end with one claim of the bucket."""
    other = opened.more_floors()
    opened.floors.resume(RANGE)
    other.resume(RANGE)
    bucket = opened.layout.bucket("user:1")
    found = other._stored_floors

    def found_before_the_other(buckets: Sequence[int]) -> list[bytes | None]:
        stored = found(buckets)
        assert list(opened.floors.claim(buckets).markers) == [bucket]
        return stored

    monkeypatch.setattr(other, "_stored_floors", found_before_the_other)
    assert other.claim([bucket]).markers == {}
    other.close()


def test_an_invalidation_takes_the_claim_away(opened: Opened) -> None:
    """Rule 9: a floor that is being made at an end from before a change is not made."""
    opened.floors.resume(RANGE)
    bucket = opened.layout.bucket("user:1")
    claim = opened.floors.claim([bucket])

    done = opened.store.invalidate([KeyChange("user:1", token("-", 10))])

    assert done.closed == {bucket}
    assert opened.floors.make_floors(claim, end_of_log) == 0
    assert opened.floor("user:1") is None
    # Without a claim there is nothing to do.
    assert opened.store.invalidate([KeyChange("user:1", token("-", 10))]).closed == {bucket}


def test_a_change_of_all_floors_takes_the_claims_away(opened: Opened) -> None:
    """Rules 9 and 13: a floor that is being made at an end from before DDL is not made."""
    opened.floors.resume(RANGE)
    claim = opened.floors.claim([opened.layout.bucket("user:1")])

    changed = opened.floors.change_floors(
        opened.floors.nodes, lambda floor: floor.renewed(bytes(16), token("-", 10))
    )

    assert changed == 0
    assert opened.floors.make_floors(claim, end_of_log) == 0
    assert opened.floor("user:1") is None


def test_all_floors_of_a_node_are_changed(opened: Opened) -> None:
    """Rules 10, 12 and 13: every floor of the node, none that is missing, none of another node."""
    opened.make([f"user:{number}" for number in range(2_000)], token("-", 5))
    node = opened.floors.nodes[0]
    buckets = [each for each in range(BUCKETS) if opened.floors.node_of(each) == node]
    changed = [key for key in KEYS if opened.layout.bucket(key) in buckets]
    others = [key for key in KEYS if opened.layout.bucket(key) not in buckets]

    count = opened.floors.change_floors([node], lambda floor: floor.raised(token("-", 8)))

    assert count == len(buckets)
    assert opened.floors.change_floors([node], lambda floor: floor.raised(token("-", 8))) == 0
    assert {f.tokens["-"] for f in map(opened.floor, changed) if f} <= {token("-", 8)}
    assert {f.tokens["-"] for f in map(opened.floor, others) if f} <= {token("-", 5)}
    opened.flush()
    assert opened.floors.change_floors([node], lambda floor: floor) == 0


def test_a_new_generation_takes_values_out_of_use(opened: Opened) -> None:
    """R26: after DDL no value of the node is a hit, though all of them are still there."""
    generation = opened.make(["user:1"], token("-", 5))
    opened.put("user:1", generation, token("-", 5))

    opened.floors.change_floors(
        opened.floors.nodes, lambda floor: floor.renewed(bytes(16), token("-", 6))
    )

    assert opened.slot("user:1") is not None
    assert opened.floor("user:1") == Floor(bytes(16), {"-": token("-", 6)})


def test_positions_are_replaced_by_compare_and_set(opened: Opened) -> None:
    """Rule 8: of two invalidators, the one that has not seen the other's position learns it."""
    node, *_ = nodes = opened.floors.nodes
    other = opened.more_floors()
    assert opened.floors.resume(RANGE) == dict.fromkeys(nodes)
    assert other.resume(RANGE) == dict.fromkeys(nodes)

    assert opened.floors.publish(RANGE, dict.fromkeys(nodes, (None, b"S1"))) == {}
    assert other.publish(RANGE, {node: (None, b"S0")}) == {node: b"S1"}
    assert other.publish(RANGE, {node: (b"S1", b"S2")}) == {}

    assert opened.store.position(node, RANGE) == b"S2"
    assert opened.store.position(nodes[-1], RANGE) == (b"S2" if nodes[-1] == node else b"S1")
    assert opened.store.position(node, "-80") is None
    opened.flush()
    assert opened.floors.publish(RANGE, {node: (b"S2", b"S3")}) == {node: None}
    other.close()


def test_a_new_connection_must_be_resumed(opened: Opened) -> None:
    """H7: nothing is written over a connection on which no position was read back."""
    opened.make(["user:1"], token("-", 5))
    nodes = opened.floors.nodes
    opened.floors.publish(RANGE, dict.fromkeys(nodes, (None, b"S1")))
    assert opened.floors.resume(RANGE) == {}

    opened.disconnect()

    bucket = opened.layout.bucket("user:1")
    for attempt in (
        lambda: opened.floors.publish(RANGE, dict.fromkeys(nodes, (b"S1", b"S2"))),
        lambda: opened.floors.invalidate([KeyChange("user:1", token("-", 6))]),
        lambda: opened.floors.change_floors(nodes, lambda floor: floor.raised(token("-", 6))),
        lambda: opened.floors.claim([bucket]),
        opened.floors.wanted,
    ):
        # Unreachable is what a connection that was cut says when it is used.
        with pytest.raises((Reconnected, StoreUnreachable)):
            attempt()
    assert opened.store.position(nodes[0], RANGE) == b"S1"
    floor = opened.floor("user:1")
    assert floor is not None
    assert floor.tokens == {"-": token("-", 5)}
    assert opened.floors.resume(RANGE) == dict.fromkeys(nodes, b"S1")
    assert opened.floors.publish(RANGE, {nodes[0]: (b"S1", b"S2")}) == {}


def test_one_invalidator_holds_the_lease(opened: Opened) -> None:
    """The second one of a range waits; the first one extends its own."""
    other = opened.more_floors()
    opened.floors.resume(RANGE)
    other.resume(RANGE)

    assert opened.floors.lease(RANGE, b"first", 600_000)
    assert not other.lease(RANGE, b"second", 600_000)
    assert other.lease("-80", b"second", 600_000)
    assert opened.floors.lease(RANGE, b"first", 600_000)
    other.close()


def test_a_floor_that_another_one_raised_is_read_again(opened: Opened) -> None:
    """An invalidator that has written a floor notices that another one has raised it since."""
    generation = opened.make(["user:1"], token("-80", 1), token("80-", 1))
    other = opened.more_floors()
    other.resume(RANGE)

    done = [
        floors.invalidate([KeyChange("user:1", token(shard, count))])
        for floors, shard, count in (
            (opened.floors, "-80", 2),
            (other, "80-", 3),
            (opened.floors, "-80", 4),
            (other, "80-", 5),
        )
    ]
    other.close()

    assert [each.floors_raised for each in done] == [1, 1, 1, 1]
    tokens = {"-80": token("-80", 4), "80-": token("80-", 5)}
    assert opened.floor("user:1") == Floor(generation, tokens)
