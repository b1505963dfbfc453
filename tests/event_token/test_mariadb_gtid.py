"""MariaDB positions: the text of servers, and the laws of prefixes against plain sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import (
    Flavor,
    GtidError,
    MariadbGtidSet,
    MysqlGtidSet,
    empty_gtid_set,
    parse_gtid_set,
)
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
    last: dict[int, tuple[int, int]] = {}
    for domain, server, seq in sorted(model, key=lambda written: written[2]):
        last[domain] = (server, seq)
    return MariadbGtidSet.of(last)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("0-1-100", "0-1-100"),
        ("10-2-7,0-1-100", "0-1-100,10-2-7"),
        (" 0-1-100 ,\n 1-1-2 ", "0-1-100,1-1-2"),
        (
            "4294967295-4294967295-18446744073709551615",
            "4294967295-4294967295-18446744073709551615",
        ),
    ],
)
def test_text_is_canonical(text: str, canonical: str) -> None:
    """A position prints with its domains in order, however it was written."""
    assert str(MariadbGtidSet.parse(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "0-1",
        "0-1-0",
        "0-1-5-6",
        "0-1-5,",
        "0-1-5,0-2-6",
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
    """What is no position raises GtidError, a domain named twice included."""
    with pytest.raises(GtidError):
        MariadbGtidSet.parse(text)


@given(mariadb_sets)
def test_parse_undoes_print(position: MariadbGtidSet) -> None:
    """A position comes back from its text."""
    assert MariadbGtidSet.parse(str(position)) == position


@given(st.data())
def test_operations_agree_with_plain_sets(data: st.DataObject) -> None:
    """On one history union, intersection and inclusion are those of the executed sets."""
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
            assert at_a.add_gtid(text) == at_a.union(MariadbGtidSet.parse(text))


@given(mariadb_sets, mariadb_sets)
def test_difference_and_common_part_make_the_whole(a: MariadbGtidSet, b: MariadbGtidSet) -> None:
    """(a - b) | (a & b) == a, and a - b is empty exactly when b includes a."""
    assert a.subtract(b).is_empty == b.includes(a)
    assert a.includes(a.subtract(b))
    try:
        common = a.intersection(b)
    except GtidError:
        assert not a.includes(b)
        assert not b.includes(a)
    else:
        assert a.subtract(b).union(common) == a
        assert a.includes(common)
        assert b.includes(common)


@given(mariadb_sets, mariadb_sets)
def test_union_is_the_least_above_both(a: MariadbGtidSet, b: MariadbGtidSet) -> None:
    """A union includes both and is one of them in each domain; a split domain has none."""
    split = {
        domain
        for domain, (server, seq) in a.by_domain().items()
        if domain in b.by_domain()
        and b.by_domain()[domain][1] == seq
        and b.by_domain()[domain][0] != server
    }

    if split:
        with pytest.raises(GtidError, match="has split"):
            a.union(b)
    else:
        both = a.union(b)
        assert both == b.union(a)
        assert both.includes(a)
        assert both.includes(b)
        assert set(both.domains) <= set(a.domains) | set(b.domains)


@given(mariadb_sets, mariadb_sets)
def test_inclusion_both_ways_is_equality(a: MariadbGtidSet, b: MariadbGtidSet) -> None:
    """Two positions that include each other are the same one."""
    assert a.includes(a)
    assert (a.includes(b) and b.includes(a)) == (a == b)


def test_same_number_by_another_server() -> None:
    """Two histories of one domain do not include each other, though other domains agree."""
    mine, other = MariadbGtidSet.parse("0-1-5,1-1-9"), MariadbGtidSet.parse("0-2-5,1-1-2")

    assert not mine.includes(other)
    assert not other.includes(mine)
    assert str(mine.subtract(other)) == "0-1-5,1-1-9"
    with pytest.raises(GtidError, match="servers 1 and 2"):
        mine.intersection(other)
    with pytest.raises(GtidError, match="servers 2 and 1"):
        mine.add_gtid("0-2-5")


def test_least_ids() -> None:
    """Domain and server may be 0, a number may not."""
    assert MariadbGtidSet.parse("0-0-1").contains_gtid("0-0-1")
    with pytest.raises(GtidError):
        MariadbGtidSet.parse("0-0-0")


def test_higher_number_includes_whoever_wrote() -> None:
    """After a failover the new server's number stands for all that came before."""
    assert MariadbGtidSet.parse("0-2-6").includes(MariadbGtidSet.parse("0-1-5"))
    assert MariadbGtidSet.parse("0-2-6").contains_gtid("0-1-5")
    assert not MariadbGtidSet.parse("0-2-6").contains_gtid("0-1-6")


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
