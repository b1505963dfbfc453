"""The bytes of floors and slots: what is written is read back, anything else is not there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caching.protocol import CacheEntry, Floor, Placeholder, parse_slot
from tests.caching.protocol.tokens import by_shard, token

GENERATION = bytes(range(16))
TOKENS = by_shard([token("-80", 5, 50), token("80-", 7, None)])
FLOOR = Floor(GENERATION, TOKENS)
ENTRY = CacheEntry(GENERATION, b"12345678", TOKENS, 3, b"value")


@given(value=st.none() | st.binary(max_size=50), codec=st.integers(0, 255))
def test_entries_survive(value: bytes | None, codec: int) -> None:
    """R14: a negative entry is not an empty value."""
    entry = CacheEntry(GENERATION, b"12345678", TOKENS, codec, value)

    assert parse_slot(entry.to_bytes()) == entry


def test_floors_and_placeholders_survive() -> None:
    """Also a floor without any token."""
    assert Floor.parse(FLOOR.to_bytes()) == FLOOR
    assert Floor.parse(Floor(GENERATION, {}).to_bytes()) == Floor(GENERATION, {})
    placeholder = Placeholder(bytes(16))
    assert parse_slot(placeholder.to_bytes()) == placeholder


@given(st.binary(max_size=80))
def test_foreign_bytes_are_not_there(foreign: bytes) -> None:
    """Nothing that another program stored becomes a hit or a floor, and nothing raises."""
    floor, slot = Floor.parse(foreign), parse_slot(foreign)

    assert floor is None or foreign[0] == FLOOR.to_bytes()[0]
    assert slot is None or foreign[0] in (ENTRY.to_bytes()[0], Placeholder(b"").to_bytes()[0])


@pytest.mark.parametrize("cut", range(len(FLOOR.to_bytes())))
def test_a_truncated_floor_is_none(cut: int) -> None:
    """A floor that lost its end is a missing floor."""
    assert Floor.parse(FLOOR.to_bytes()[:cut]) is None


def test_a_truncated_entry_is_no_entry() -> None:
    """An entry that ends before its value begins is not there."""
    whole = ENTRY.to_bytes()

    assert all(parse_slot(whole[:cut]) is None for cut in range(len(whole) - len(b"value")))


def test_unknown_flags_are_refused() -> None:
    """An entry of a later layout is a miss."""
    stored = bytearray(CacheEntry(GENERATION, b"12345678", TOKENS, 0, b"").to_bytes())
    stored[25] = 2

    assert parse_slot(bytes(stored)) is None
