"""The three decisions, by the steps of the races that they close."""

import pytest

from caching.protocol import (
    CacheEntry,
    Fill,
    Floor,
    Hit,
    Miss,
    MissReason,
    Placeholder,
    Refusal,
    decide_fill,
    decide_hit,
)
from event_token import EventToken
from tests.caching.protocol.invalidation import Invalidation, decide_invalidation
from tests.caching.protocol.tokens import OTHER_SERVER, TRUSTED, by_shard, token

GENERATION, NEXT_GENERATION = bytes(16), bytes([1] * 16)


def floor_at(count: int, generation: bytes = GENERATION) -> bytes:
    """The stored floor of a bucket of an unsharded keyspace."""
    return Floor(generation, by_shard([token("-", count)])).to_bytes()


def entry_at(count: int, generation: bytes = GENERATION) -> bytes:
    """A stored value that was read at `count` transactions."""
    return CacheEntry(generation, bytes(8), by_shard([token("-", count)]), 0, b"v").to_bytes()


@pytest.mark.parametrize(
    ("floor", "slot", "newer_than", "reason"),
    [
        (floor_at(5), None, (), MissReason.ABSENT),
        (floor_at(5), b"foreign", (), MissReason.ABSENT),
        (floor_at(5), Placeholder(bytes(16)).to_bytes(), (), MissReason.LEASED),
        (None, entry_at(5), (), MissReason.NO_FLOOR),
        (None, None, (), MissReason.NO_FLOOR),
        (b"claim", Placeholder(bytes(16)).to_bytes(), (), MissReason.NO_FLOOR),
        (floor_at(5, NEXT_GENERATION), entry_at(5), (), MissReason.GENERATION),
        (floor_at(5), entry_at(5), (token("-", 6),), MissReason.TOO_OLD),
    ],
)
def test_a_miss_has_its_reason(
    floor: bytes | None, slot: bytes | None, newer_than: tuple[()], reason: MissReason
) -> None:
    """R22, R24: no floor, another generation, or an own write that the value lacks."""
    assert decide_hit(floor, slot, TRUSTED, newer_than) == Miss(reason)


def test_a_hit_of_the_floors_generation() -> None:
    """A value older than the floor is a hit: the newer change was of another key."""
    found = decide_hit(floor_at(9), entry_at(5), TRUSTED, (token("-", 5),))

    assert found == Hit(0, b"v", entry_at(5))
    assert found.tokens == by_shard([token("-", 5)])


@pytest.mark.parametrize(
    ("tokens", "write", "is_hit"),
    [
        ([token("-80", 5)], token("80-", 9), True),
        ([token("-80", 5)], token("-80", 6), False),
        ([token("-80", 5), token("80-", 9)], token("80-", 9), True),
        ([token("-80", 5), token("80-", 8)], token("80-", 9), False),
        # The target of a split does not hold what its sibling was written, and need not.
        ([token("-40", 1, 60)], token("40-80", 9, 70), True),
        ([token("-40", 1, 60)], token("-80", 5, 50), True),
        ([token("-40", 1, None)], token("-80", 5, 50), False),
        ([token("-80", 5, 50)], token("-40", 1, 60), False),
        # A range that came back is another shard.
        ([token("-80", 9, 50)], token("-80.2", 1, 60), False),
    ],
)
def test_an_own_write_counts_where_key_ranges_overlap(
    tokens: list[EventToken], write: EventToken, *, is_hit: bool
) -> None:
    """Rule 15: each token of a shard that overlaps the write's must hold it, and no other."""
    slot = CacheEntry(GENERATION, bytes(8), by_shard(tokens), 0, b"v").to_bytes()

    found = decide_hit(floor_at(5), slot, TRUSTED, (write,))

    assert found == (Hit(0, b"v", slot) if is_hit else Miss(MissReason.TOO_OLD))


def test_a_hit_reads_no_tokens() -> None:
    """Only the generation of a floor counts for a hit, so its tokens may be of any length."""
    floor = Floor(GENERATION, by_shard(token(f"{n:02x}-{n + 1:02x}", 9) for n in range(100)))
    stored = bytearray(entry_at(5))
    stored[35] ^= 0xFF

    hit = decide_hit(floor.to_bytes() + b"broken", bytes(stored), TRUSTED)

    assert isinstance(hit, Hit)
    assert hit.value == b"v"
    assert hit.tokens == {}
    assert decide_hit(floor.to_bytes(), bytes(stored), TRUSTED, (token("-", 1),)) == Miss(
        MissReason.TOO_OLD
    )


def test_fills_need_proof() -> None:
    """R01, R03: what was read before the newest change of the bucket does not enter."""
    assert decide_fill(floor_at(5), None, by_shard([token("-", 4)]), TRUSTED) is Refusal.OLDER
    assert decide_fill(floor_at(5), None, {}, TRUSTED) is Refusal.UNCOVERED
    assert decide_fill(None, None, by_shard([token("-", 9)]), TRUSTED) is Refusal.NO_FLOOR
    assert decide_fill(floor_at(5), None, by_shard([token("-", 5)]), TRUSTED) == Fill(GENERATION)


def test_a_fill_does_not_take_a_value_back() -> None:
    """A live value is replaced only by one that is as new; one of a lost floor by any."""
    read = by_shard([token("-", 6)])

    assert decide_fill(floor_at(5), entry_at(7), read, TRUSTED) is Refusal.REPLACED
    assert decide_fill(floor_at(5), entry_at(6), read, TRUSTED) == Fill(GENERATION)
    assert decide_fill(floor_at(5), entry_at(7, NEXT_GENERATION), read, TRUSTED) == Fill(GENERATION)


def test_an_invalidation_raises_the_floor_and_removes_what_is_older() -> None:
    """R05, R10: the value that holds the change stays; a placeholder always goes."""
    change = token("-", 6)
    raised = floor_at(6)

    assert decide_invalidation(floor_at(5), None, change) == Invalidation(raised, remove=False)
    assert decide_invalidation(floor_at(5), entry_at(5), change) == Invalidation(
        raised, remove=True
    )
    assert decide_invalidation(floor_at(5), entry_at(6), change) == Invalidation(
        raised, remove=False
    )
    placeholder = Placeholder(bytes(16)).to_bytes()
    assert decide_invalidation(floor_at(5), placeholder, change) == Invalidation(
        raised, remove=True
    )
    assert decide_invalidation(None, entry_at(5), change) is None


def test_lost_transactions_do_not_close_a_bucket_for_good() -> None:
    """A SKIP behind a failover replaces the token that holds what was lost."""
    lost = Floor(GENERATION, by_shard([token("-", 9)]))
    server = token("-", 5).position.union(token("-", 1, sid=OTHER_SERVER).position)
    skip = EventToken(10, "-", server)

    renewed = lost.renewed(NEXT_GENERATION, skip)
    assert renewed.tokens == {"-": skip}
    assert decide_fill(renewed.to_bytes(), None, {"-": skip}, TRUSTED) == Fill(NEXT_GENERATION)
    assert decide_fill(lost.raised(skip).to_bytes(), None, {"-": skip}, TRUSTED) is Refusal.OLDER


def test_a_renewed_floor_closes_its_bucket() -> None:
    """R26: after DDL no value of the old generation is a hit, and the change counts."""
    floor = Floor.parse(floor_at(5))
    assert floor is not None

    renewed = floor.renewed(NEXT_GENERATION, token("-", 6))
    assert renewed == Floor(NEXT_GENERATION, by_shard([token("-", 6)]))
    assert decide_hit(renewed.to_bytes(), entry_at(9), TRUSTED) == Miss(MissReason.GENERATION)
