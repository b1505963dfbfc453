"""MariaDB positions: the text of servers, and the laws of prefixes against plain sets."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from event_token import (
    Flavor,
    GtidError,
    MariadbGtidSet,
    MysqlGtidSet,
    empty_gtid_set,
    parse_gtid_set,
)
from event_token.mariadb_gtid import TRAIL_MAX
from tests.event_token.strategies import mariadb_sets

# One transaction: domain, server, sequence.
Written = tuple[int, int, int]


@st.composite
def _histories(draw: st.DrawFn) -> list[list[Written]]:
    """Draw what each of up to three domains has written, in order, by servers that change."""
    histories = []
    for domain in range(draw(st.integers(1, 3))):
        steps = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=6))
        written: list[Written] = []
        seq = 0
        for server, step in steps:
            seq += step
            written.append((domain, server, seq))
        histories.append(written)
    return histories


@st.composite
def _prefix(draw: st.DrawFn, histories: list[list[Written]]) -> frozenset[Written]:
    """Draw what a server has executed: the first few transactions of each domain."""
    return frozenset(
        written
        for history in histories
        for written in history[: draw(st.integers(0, len(history)))]
    )


def _position(model: frozenset[Written]) -> MariadbGtidSet:
    """The position of a log that has seen all of them."""
    position = MariadbGtidSet()
    for domain, server, seq in sorted(model, key=lambda written: written[2]):
        position = position.add_gtid(f"{domain}-{server}-{seq}")
    return position


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("0-1-100", "0-1-100"),
        ("10-2-7,0-1-100", "0-1-100,10-2-7"),
        ("0-2-6,1-1-2,0-1-5", "0-1-5,0-2-6,1-1-2"),
        ("0-1-3,0-1-5,0-2-6", "0-1-5,0-2-6"),
        ("0-2-4/0-1-5,7-1-1", "0-2-4,7-1-1/0-1-5"),
        (" 0-1-100 ,\n 1-1-2 ", "0-1-100,1-1-2"),
        (
            "4294967295-4294967295-18446744073709551615",
            "4294967295-4294967295-18446744073709551615",
        ),
    ],
)
def test_text_is_canonical(text: str, canonical: str) -> None:
    """Domains, numbers and branches print in order, a writer's last number alone."""
    assert str(MariadbGtidSet.parse(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "0-1",
        "0-1-0",
        "0-1-5-6",
        "0-1-5,",
        "0-1-5,0-2-5",
        "-1-5",
        "0-1-x",
        "0--1-5",
        "4294967296-1-5",
        "0-4294967296-5",
        "0-1-18446744073709551616",
        "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5",
    ],
)
def test_bad_text_is_refused(text: str) -> None:
    """What is no position raises GtidError, a number of two servers included."""
    with pytest.raises(GtidError):
        MariadbGtidSet.parse(text)


@given(mariadb_sets)
def test_parse_undoes_print(position: MariadbGtidSet) -> None:
    """A position comes back from its text."""
    assert MariadbGtidSet.parse(str(position)) == position


@given(st.data())
def test_operations_agree_with_plain_sets(data: st.DataObject) -> None:
    """On one history with all its writers known, operations are those of the executed sets."""
    histories = data.draw(_histories())
    a, b = data.draw(_prefix(histories)), data.draw(_prefix(histories))
    at_a, at_b = _position(a), _position(b)

    assert at_a.union(at_b) == _position(a | b)
    assert at_a.intersection(at_b) == _position(a & b)
    assert at_a.includes(at_b) == (a >= b)
    assert at_a.subtract(at_b).is_empty == (not a - b)
    for history in histories:
        for domain, server, seq in history:
            text = f"{domain}-{server}-{seq}"
            assert at_a.contains_gtid(text) == ((domain, server, seq) in a)
            if (domain, server, seq) in a:
                assert at_a.add_gtid(text) is at_a
            assert at_a.reaches(MariadbGtidSet.parse(text)) == at_a.contains_gtid(text)


@given(mariadb_sets, mariadb_sets)
def test_a_difference_is_empty_where_the_other_includes_it(
    a: MariadbGtidSet, b: MariadbGtidSet
) -> None:
    """Exactly then; the common part is in both, and the lesser one if they are ordered."""
    assert a.subtract(b).is_empty == b.includes(a)
    assert a.includes(a.subtract(b))
    common = a.intersection(b)
    assert a.includes(common)
    assert b.includes(common)
    if a.includes(b):
        assert common.includes(b)


@given(mariadb_sets, mariadb_sets)
@example(MariadbGtidSet.parse("0-1-1,0-2-3"), MariadbGtidSet.parse("0-2-1,0-1-2,0-2-3"))
def test_a_union_includes_both_and_ends_where_they_do(a: MariadbGtidSet, b: MariadbGtidSet) -> None:
    """Also where a domain has split: then it has a branch for each, and text and back."""
    both = a.union(b)

    assert both == b.union(a)
    assert both.includes(a)
    assert both.includes(b)
    assert set(both.domains) <= set(a.domains) | set(b.domains)
    assert MariadbGtidSet.parse(str(both)) == both
    if a.includes(b):
        assert a.includes(both)


@given(mariadb_sets, mariadb_sets)
def test_inclusion_both_ways_is_the_same_end(a: MariadbGtidSet, b: MariadbGtidSet) -> None:
    """Two positions that include each other are at the same GTIDs."""
    assert a.includes(a)
    assert (a.includes(b) and b.includes(a)) == (a.domains == b.domains)


@pytest.mark.parametrize("other", ["0-2-5,1-1-2", "0-1-3,0-2-4,1-1-2"])
def test_two_histories_of_a_domain(other: str) -> None:
    """A demoted server that wrote on alone does not include its successor, nor the other way."""
    mine, theirs = MariadbGtidSet.parse("0-1-5,1-1-9"), MariadbGtidSet.parse(other)

    assert not mine.includes(theirs)
    assert not theirs.includes(mine)
    assert str(mine.subtract(theirs)) == "0-1-5,1-1-9"
    both = mine.union(theirs)
    assert str(mine.intersection(theirs)) in {"1-1-2", "0-1-3,1-1-2"}
    assert not mine.includes(both)
    assert not theirs.includes(both)
    with pytest.raises(GtidError, match="joins two histories"):
        both.trails()
    with pytest.raises(GtidError, match="servers 2 and 1"):
        mine.add_gtid("0-2-5")


def test_least_ids() -> None:
    """Domain and server may be 0, a number may not."""
    assert MariadbGtidSet.parse("0-0-1").contains_gtid("0-0-1")
    with pytest.raises(GtidError):
        MariadbGtidSet.parse("0-0-0")


def test_a_domain_ends_with_its_last_gtid_alone() -> None:
    """Not with one that its trail names, nor with that number by another server."""
    position = MariadbGtidSet.parse("0-1-3,0-2-8,7-1-1")

    ends = [text for text in ("0-1-3", "0-2-8", "0-1-8", "7-1-1") if position.ends_with(text)]
    assert ends == ["0-2-8", "7-1-1"] == position.ends()


@pytest.mark.parametrize(
    ("trail", "included"),
    [
        ("0-2-6", [(2, 6), (2, 5), (2, 1)]),
        ("0-1-3,0-2-6", [(1, 1), (1, 3), (2, 4), (2, 6)]),
        ("0-1-3,0-2-5,0-1-6", [(1, 3), (2, 4), (2, 5), (1, 6)]),
    ],
)
def test_a_number_is_included_if_its_server_wrote_it(
    trail: str, included: list[tuple[int, int]]
) -> None:
    """Of those below the last, the ones that the trail's next GTID stands for, and no others."""
    position = MariadbGtidSet.parse(trail)

    everything = [(server, number) for server in (1, 2, 3) for number in range(1, 8)]
    found = [at for at in everything if position.contains_gtid(f"0-{at[0]}-{at[1]}")]
    assert set(included) <= set(found)
    assert len({number for _, number in found}) == len(found) == 6
    assert position.reaches(MariadbGtidSet.parse("0-3-5"))
    assert position.reaches(position)
    assert str(MariadbGtidSet.parse("0-1-5,1-1-9").beyond(position)) == "1-1-9"
    for above in ("0-3-6", "0-2-7", "1-1-1"):
        assert not position.reaches(MariadbGtidSet.parse(above))


def test_what_a_server_knows_of_earlier_writers() -> None:
    """Binlog state and slave position name them, up to the position; what is newer is left out."""
    of_server = MariadbGtidSet.of_server

    assert str(of_server("0-2-8", "0-1-3,0-2-9", "")) == "0-1-3,0-2-8"
    assert str(of_server("0-1-8", "0-1-9", "0-2-6")) == "0-2-6,0-1-8"
    assert str(of_server("0-2-8", "0-1-3", "0-2-8")) == "0-1-3,0-2-8"
    assert str(of_server("0-1-3", "0-1-3,0-2-8", "")) == "0-1-3"
    assert str(of_server("0-1-5", "0-1-3,0-2-8", "")) == "0-1-5"
    assert str(of_server("0-2-5,1-1-1", "0-1-5,0-2-5", "")) == "0-2-5,1-1-1"


def test_a_trail_keeps_the_newest_writers() -> None:
    """Beyond the limit the oldest ones go."""
    position = MariadbGtidSet()
    for number in range(1, TRAIL_MAX + 3):
        position = position.add_gtid(f"0-{number % 2 + 1}-{number}")

    [(_, trail)] = position.branches
    assert [number for _, number in trail] == list(range(3, TRAIL_MAX + 3))
    assert MariadbGtidSet.parse(str(position)) == position


def test_flavors_do_not_mix() -> None:
    """Every operation with a MySQL set raises GtidError, empty ones included."""
    mine, other = MariadbGtidSet.parse("0-1-5"), MysqlGtidSet()

    for operation in (mine.union, mine.intersection, mine.subtract, mine.includes):
        with pytest.raises(GtidError, match=r"mariadb.*mysql"):
            operation(other)


@pytest.mark.parametrize("flavor", list(Flavor))
def test_flavor_chooses_the_family(flavor: Flavor) -> None:
    """The parser and the empty set follow the flavor."""
    assert parse_gtid_set("", flavor) == empty_gtid_set(flavor)
    assert empty_gtid_set(flavor).flavor is flavor
    assert empty_gtid_set(flavor).is_empty
