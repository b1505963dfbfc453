"""GTIDs as operators name them: each transaction, and none that is not named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import GtidError
from event_token.gtid_set import NamedGtids

UUID = "4c4b4a49-0000-11f0-8000-000000000001"
NUMBERS = st.sets(st.integers(1, 60), min_size=1, max_size=12)


@given(NUMBERS, st.integers(1, 60), st.booleans())
def test_exactly_what_is_named_is_included(numbers: set[int], asked: int, is_mysql: bool) -> None:
    """Both families: a number is included if it was named, and each is listed once, in order."""
    before = f"{UUID}:" if is_mysql else "0-1-"
    named = NamedGtids.parse([f"{before}{number}" for number in numbers])

    assert list(named.each()) == [f"{before}{number}" for number in sorted(numbers)]
    assert named.includes(f"{before}{asked}") is (asked in numbers)


def test_sets_ranges_tags_and_lists_are_taken() -> None:
    """As servers print them, several in one text."""
    named = NamedGtids.parse([f"{UUID}:72-73:80,{UUID}:blue:1", "0-1-5,1-2-3", "0-1-4"])

    assert list(named.each()) == [
        *(f"{UUID}:{number}" for number in (72, 73, 80)),
        f"{UUID}:blue:1",
        "0-1-4",
        "0-1-5",
        "1-2-3",
    ]
    assert named.includes(f"{UUID}:72-73")
    assert not named.includes(f"{UUID}:73-74")
    assert not named.includes("no GTID")
    with pytest.raises(GtidError, match="is not a MariaDB GTID"):
        NamedGtids.parse(["no GTID"])
