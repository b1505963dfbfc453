"""Key ranges and shard names: text, and range laws against all ids of two bytes."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from event_token import KeyRange, KeyRangeError, ShardName, covers, tiles

# Bounds close together and at both ends, in one and two bytes, so that ranges often meet.
_bounds = st.sampled_from(
    [b"", b"\0\1", b"\x40", b"\x40\0", b"\x40\1", b"\x7f\xff", b"\x80", b"\x80\0", b"\xff\xff"]
) | st.binary(max_size=2)


def _is_range(bounds: tuple[bytes, bytes]) -> bool:
    start, end = bounds
    return not end or int.from_bytes(start.ljust(2, b"\0")) < int.from_bytes(end.ljust(2, b"\0"))


key_ranges = st.tuples(_bounds, _bounds).filter(_is_range).map(lambda bounds: KeyRange(*bounds))

ALL_IDS = range(1 << 16)


def _ids(key_range: KeyRange) -> range:
    """Return the ids of two bytes in a range, as numbers."""
    start = int.from_bytes(key_range.start.ljust(2, b"\0"))
    end = int.from_bytes(key_range.end.ljust(2, b"\0")) if key_range.end else 1 << 16
    return range(start, end)


@pytest.mark.parametrize("text", ["-", "-80", "80-c0", "c0-", "0080-0100", "-8000", "00-80"])
def test_range_keeps_its_spelling(text: str) -> None:
    """A range prints as it was written, for it is part of topic names."""
    assert str(KeyRange.parse(text)) == text


def test_upper_case_is_normalised() -> None:
    """Digits in upper case name the same range."""
    assert KeyRange.parse("A0-C0") == KeyRange.parse("a0-c0")
    assert str(KeyRange.parse("A0-Cf")) == "a0-cf"


@pytest.mark.parametrize("text", ["", "0", "80", "80-90-a0", " -80", "-80\n", "0x80-", "8g-"])
def test_other_texts_are_no_ranges(text: str) -> None:
    """What is not two bounds with a dash between raises KeyRangeError."""
    with pytest.raises(KeyRangeError, match="is not a key range"):
        KeyRange.parse(text)


@pytest.mark.parametrize(
    "text",
    ["8-", "-8", "80-c", "80-80", "c0-80", "80-8000", "-00", "-0000", f"-{'80' * 33}"],
)
def test_bad_ranges_are_refused(text: str) -> None:
    """Half bytes, ranges without an id and bounds without end raise KeyRangeError."""
    with pytest.raises(KeyRangeError):
        KeyRange.parse(text)


@given(key_ranges)
def test_parse_undoes_print(key_range: KeyRange) -> None:
    """A range comes back from its text."""
    assert KeyRange.parse(str(key_range)) == key_range
    assert KeyRange.parse(str(key_range).upper()) == key_range


@given(key_ranges)
def test_contains_exactly_its_ids(key_range: KeyRange) -> None:
    """Of all ids of two bytes a range contains those from its start up to its end."""
    inside = _ids(key_range)
    near = {0, 0x8000, 0xFFFF, inside.start, inside.stop - 1, inside.stop, inside.start - 1}

    for number in near & set(ALL_IDS):
        assert key_range.contains(number.to_bytes(2)) == (number in inside)


@pytest.mark.parametrize("text", ["-", "-80", "80-c0", "40-8000", "4001-7fff", "c0-"])
def test_contains_by_brute_force(text: str) -> None:
    """Every one of the 65,536 ids of two bytes is inside or outside as it should be."""
    key_range = KeyRange.parse(text)

    found = [number for number in ALL_IDS if key_range.contains(number.to_bytes(2))]
    assert found == list(_ids(key_range))


@pytest.mark.parametrize(
    ("text", "keyspace_id", "inside"),
    [
        ("80-", b"\x80", True),
        ("8000-", b"\x80", True),
        ("-8000", b"\x80", False),
        ("80-", b"\x7f\xff\xff\xff\xff\xff\xff\xff", False),
        ("80-", b"\x80\0\0\0\0\0\0\0", True),
        ("-80", b"", True),
        ("-80", b"\x7f" + b"\xff" * 30, True),
        ("0001-", b"\0", False),
    ],
)
def test_ids_of_any_length(text: str, keyspace_id: bytes, inside: bool) -> None:
    """An id is a binary fraction: trailing zeros change nothing, more digits come behind."""
    assert KeyRange.parse(text).contains(keyspace_id) == inside


@given(key_ranges, key_ranges)
def test_two_ranges_agree_with_their_ids(a: KeyRange, b: KeyRange) -> None:
    """Overlap, inclusion and intersection are those of the sets of ids."""
    ids_a, ids_b = _ids(a), _ids(b)
    common = range(max(ids_a.start, ids_b.start), min(ids_a.stop, ids_b.stop))
    both = a.intersection(b)

    assert a.overlaps(b) == (len(common) > 0)
    assert a.includes(b) == (common == ids_b)
    assert (None if both is None else _ids(both)) == (common or None)


@given(key_ranges, st.lists(key_ranges, max_size=3))
def test_tiles_agrees_with_ids(whole: KeyRange, ranges: list[KeyRange]) -> None:
    """Ranges tile a whole when their ids, put together, are its ids without a repeat."""
    ordered = sorted((_ids(each) for each in ranges), key=lambda ids: ids.start)
    gapless = all(before.stop == after.start for before, after in pairwise(ordered))
    covers = gapless and ordered != [] and range(ordered[0].start, ordered[-1].stop) == _ids(whole)

    assert tiles(ranges, whole) == covers


@given(key_ranges, st.sets(st.integers(1, (1 << 16) - 1), max_size=5))
def test_cutting_a_range_tiles_it(whole: KeyRange, cuts: set[int]) -> None:
    """Cut anywhere the parts tile the whole, in any order; one left out, or twice, does not."""
    ids = _ids(whole)
    inner = [number.to_bytes(2) for number in sorted(cuts) if ids.start < number < ids.stop]
    bounds = [whole.start, *inner, whole.end]
    parts = [KeyRange(start, end) for start, end in pairwise(bounds)]

    assert tiles(reversed(parts), whole)
    for at in range(len(parts)):
        assert not tiles(parts[:at] + parts[at + 1 :], whole)
        assert not tiles([*parts, parts[at]], whole)


@given(key_ranges, st.lists(key_ranges, max_size=4))
@example(KeyRange(b"\x40", b"\x80"), [KeyRange(b"\x40", b"\x80")])
@example(KeyRange(b"\x40", b""), [KeyRange(b"", b"\x80"), KeyRange(b"\x80", b"")])
@example(KeyRange(b"\x40", b""), [KeyRange(b"", b"\x80"), KeyRange(b"\x80", b"\xff\xff")])
@example(KeyRange(b"", b""), [KeyRange(b"", b"\x80"), KeyRange(b"\x40", b"\x7f")])
def test_covers_agrees_with_ids(whole: KeyRange, ranges: list[KeyRange]) -> None:
    """Ranges cover a whole when each of its ids lies in one of them, at least."""
    ids = set().union(*(_ids(each) for each in ranges))

    assert covers(ranges, whole) == (ids >= set(_ids(whole)))


def test_no_range_tiles_nothing() -> None:
    """An empty list covers no range."""
    assert not tiles([], KeyRange.parse("-"))
    assert not covers([], KeyRange.parse("-"))


@pytest.mark.parametrize("text", ["-", "-80", "80-c0.2", "-.3", "80-.1000000"])
def test_shard_name_round_trip(text: str) -> None:
    """A shard's name comes back as written; the first generation has no suffix."""
    assert str(ShardName.parse(text)) == text


def test_shard_name_parts() -> None:
    """A name tells range and generation."""
    assert ShardName.parse("80-C0.2") == ShardName(KeyRange(b"\x80", b"\xc0"), 2)
    assert ShardName.parse("80-c0") == ShardName(KeyRange(b"\x80", b"\xc0"), 1)


@pytest.mark.parametrize(
    "text", ["", ".2", "80-c0.", "80-c0.1", "80-c0.0", "80-c0.02", "80-c0.x", "-.2.3", "-.9999999"]
)
def test_bad_shard_names_are_refused(text: str) -> None:
    """Two spellings of one shard would be two topics: only the canonical one passes."""
    with pytest.raises(KeyRangeError):
        ShardName.parse(text)


@pytest.mark.parametrize("generation", [0, -1, 1_000_001])
def test_impossible_generations(generation: int) -> None:
    """Generations count from 1."""
    with pytest.raises(KeyRangeError):
        ShardName(KeyRange.parse("-"), generation)
