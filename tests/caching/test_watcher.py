"""What a watcher looks at, and how an entry compares with a change; no servers."""

import pytest

from caching.protocol import CacheEntry, Floor, Placeholder
from caching.stores.store import KeyChange, KeyState
from caching.watcher import EntryState, PendingChecks, Tally, compare_entry, is_sampled
from event_token import ClockUncertainty, EventToken
from tests.caching.protocol.tokens import TRUSTED, by_shard, token

GENERATION, OLD_GENERATION = b"g" * 16, b"o" * 16
CHANGE = token("-80", 2, 10_000_000)


def pair(*tokens: EventToken, generation: bytes = GENERATION) -> KeyState:
    """An entry that was read at these tokens, over a floor."""
    entry = CacheEntry(generation, b"n" * 8, by_shard(tokens), 0, b"v")
    return KeyState(Floor(GENERATION, {}).to_bytes(), entry.to_bytes())


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pair(token("-80", 2)), EntryState.AGREES),
        (pair(token("-80", 3)), EntryState.AGREES),
        (pair(token("-80", 1)), EntryState.STALE),
        (pair(token("-80", 3), token("80-", 1)), EntryState.AGREES),
        (pair(token("-40", 9, 5)), EntryState.STALE),
        (pair(token("-40", 9, 5), token("40-80", 9, None)), EntryState.STALE),
        (pair(token("-40", 9, None)), EntryState.UNKNOWN),
        (pair(token("80-", 9)), EntryState.UNKNOWN),
        (pair(token("-80", 1), generation=OLD_GENERATION), EntryState.ABSENT),
        (KeyState(None, pair(token("-80", 1)).slot), EntryState.ABSENT),
        (KeyState(pair().floor, Placeholder(b"n" * 16).to_bytes()), EntryState.ABSENT),
        (KeyState(pair().floor, None), EntryState.ABSENT),
    ],
)
def test_an_entry_is_compared_by_its_tokens(found: KeyState, expected: EntryState) -> None:
    """It is stale if it would be a hit, and one of its tokens is from before the change."""
    assert compare_entry(found, KeyChange("k", CHANGE), TRUSTED) is expected


def test_an_entry_of_another_shard_is_unknown_within_the_clocks_uncertainty() -> None:
    """A read of a target that is 10 s older than a change of the source, with clocks 5 s off."""
    old = pair(token("-40", 9, 0))
    change = KeyChange("k", CHANGE)

    assert compare_entry(old, change, ClockUncertainty(4_999_999)) is EntryState.STALE
    assert compare_entry(old, change, ClockUncertainty(5_000_000)) is EntryState.UNKNOWN


def test_each_age_of_a_change_is_looked_at() -> None:
    """Of the changes while a look waits the last one is looked at, at its own time."""
    looks = PendingChecks((1, 60))
    changes = [KeyChange("k", token("-80", n)) for n in range(1, 4)]

    assert looks.wait_s(0.0) is None
    for number, change in enumerate(changes):
        looks.add(change, number / 4)
    assert looks.wait_s(0.5) == 0.5
    assert looks.take(0.9, 10) == []
    assert [(each.within_s, each.change) for each in looks.take(1.0, 10)] == [(1, changes[0])]
    assert looks.take(1.4, 10) == []
    assert [(each.within_s, each.change) for each in looks.take(1.5, 10)] == [(1, changes[2])]
    assert [(each.within_s, each.change) for each in looks.take(99, 1)] == [(60, changes[0])]
    assert [(each.within_s, each.change) for each in looks.take(99, 9)] == [(60, changes[2])]
    assert looks.wait_s(99) is None


def test_checks_have_a_limit() -> None:
    """What has no room is counted; a failover's shard leaves room again."""
    looks = PendingChecks((1,), checks_max=2)
    for key, shard in (("a", "-80"), ("b", "80-"), ("c", "-80")):
        looks.add(KeyChange(key, token(shard, 1)), 0.0)
    assert looks.left_out == 1
    looks.forget("-80")
    looks.add(KeyChange("a", token("-80", 2)), 0.0)

    assert [each.change.key for each in looks.take(9, 9)] == ["b", "a"]


def test_later_changes_of_other_shards_stay_when_one_is_forgotten() -> None:
    """A key that changed again is looked at for its last change, also if the first is forgotten."""
    looks = PendingChecks((1,))
    for key, first, later in (("a", "-80", "80-"), ("b", "80-", "80-"), ("c", "80-", "-80")):
        looks.add(KeyChange(key, token(first, 1)), 0.0)
        looks.add(KeyChange(key, token(later, 2)), 5.0)
    looks.forget("-80")

    early = [each.change.key for each in looks.take(2, 9)]
    late = [(each.change.key, each.change.token.shard) for each in looks.take(9, 9)]

    assert early == ["b", "c"]
    assert late == [("a", "80-"), ("b", "80-")]


def test_tallies() -> None:
    """The share is that of entries of which it is known."""
    looks = PendingChecks((1,))
    looks.add(KeyChange("k", token("-80", 1)), 0.0)
    [look] = looks.take(1, 1)
    assert looks.tallies[1].share is None
    found = [EntryState.ABSENT, EntryState.UNKNOWN, EntryState.STALE] + [EntryState.AGREES] * 3
    for each in found:
        looks.note(look, each)

    assert looks.tallies == {1: Tally(absent=1, agrees=3, stale=1, unknown=1)}
    assert looks.tallies[1].share == 0.75


def test_keys_are_sampled_by_their_hash() -> None:
    """All changes of a key are in the sample or none, and another salt takes other keys."""
    keys = [f"order:{n}" for n in range(10_000)]
    chosen = {key for key in keys if is_sampled(key, 0.1, 7)}

    assert 800 < len(chosen) < 1_200
    assert chosen == {key for key in keys if is_sampled(key, 0.1, 7)}
    assert chosen != {key for key in keys if is_sampled(key, 0.1, 8)}
    assert all(is_sampled(key, 1, 7) for key in keys)
