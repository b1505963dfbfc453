"""Growing GTID sets: the same as adding one by one, without formatting the whole each time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import GtidError, MariadbGtidSet, MysqlGtidSet
from event_token.running_set import RunningMariadbSet, RunningMysqlSet
from tests.event_token.strategies import (
    Gtid,
    gtid_text,
    mariadb_sets,
    mysql_gtids,
    mysql_models,
    mysql_set,
    raw_uuid,
)

U = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SID = raw_uuid(U)

# A run of consecutive GTIDs: the first one, and how many follow.
_runs = st.lists(st.tuples(mysql_gtids, st.integers(0, 4)), max_size=12)


@given(mysql_models, _runs)
def test_mysql_agrees_with_adding_one_by_one(
    model: frozenset[Gtid], runs: list[tuple[Gtid, int]]
) -> None:
    """After each addition text and set are those of the plain set; a repeat changes nothing."""
    expected = mysql_set(model)
    running = RunningMysqlSet(expected)

    assert running.text().decode() == str(expected)
    for (uuid_text, tag, first), more in runs:
        for gno in range(first, first + more + 1):
            text = gtid_text((uuid_text, tag, gno))
            if expected.contains_gtid(text):
                with pytest.raises(GtidError, match="second time"):
                    running.add(raw_uuid(uuid_text), tag, gno)
            else:
                running.add(raw_uuid(uuid_text), tag, gno)
            expected = expected.add_gtid(text)
            assert running.text().decode() == str(expected)
    assert running.to_set() == expected


@given(mysql_models, _runs)
def test_mysql_set_may_be_taken_at_any_time(
    model: frozenset[Gtid], runs: list[tuple[Gtid, int]]
) -> None:
    """Taking the set between additions neither disturbs nor misses any of them."""
    expected = mysql_set(model)
    running = RunningMysqlSet(expected)

    for (uuid_text, tag, first), more in runs:
        for gno in range(first, first + more + 1):
            text = gtid_text((uuid_text, tag, gno))
            if not expected.contains_gtid(text):
                running.add(raw_uuid(uuid_text), tag, gno)
                expected = expected.add_gtid(text)
            assert running.to_set() == expected


@pytest.mark.parametrize(
    "start",
    [
        MysqlGtidSet.of({(SID, ""): [(n * 10, n * 10 + 3) for n in range(1, 5001)]}),
        MysqlGtidSet.of(
            {(n.to_bytes(16), ""): [(1, 5), (8, 9)] for n in range(5000)} | {(SID, ""): [(1, 9)]}
        ),
        MysqlGtidSet.of({(SID, f"t{n}"): [(1, 5)] for n in range(5000)} | {(SID, ""): [(1, 9)]}),
    ],
    ids=["5000 intervals", "5000 servers", "5000 tags"],
)
def test_next_gtid_formats_nothing_but_its_number(start: MysqlGtidSet) -> None:
    """However large the set, the next GTID leaves prefix and suffix the very same objects."""
    running = RunningMysqlSet(start)
    next_gno = dict(start.servers)[(SID, "")][-1][1] + 1
    running.add(SID, "", next_gno)
    prefix, suffix = running.prefix, running.suffix

    for gno in range(next_gno + 1, next_gno + 1000):
        running.add(SID, "", gno)
        assert running.prefix is prefix
        assert running.suffix is suffix
        assert running.last == gno
        assert running.text() == prefix + str(gno).encode() + suffix
    assert running.text().decode() == str(running.to_set())
    assert RunningMysqlSet(running.to_set()).text() == running.text()


def test_joining_two_intervals() -> None:
    """A number that closes a gap joins the intervals, and counting goes on behind them."""
    running = RunningMysqlSet(MysqlGtidSet.parse(f"{U}:1-3:6-8"))

    running.add(SID, "", 4)
    assert running.text().decode() == f"{U}:1-4:6-8"
    running.add(SID, "", 5)
    assert running.text().decode() == f"{U}:1-8"
    running.add(SID, "", 9)
    assert running.text().decode() == f"{U}:1-9"


def test_mysql_beginning_from_nothing() -> None:
    """The empty set has the empty text, and its first GTID no dash."""
    running = RunningMysqlSet(MysqlGtidSet())

    assert running.text() == b""
    running.add(SID, "tag", 1)
    assert running.text().decode() == f"{U}:tag:1"
    running.add(SID, "", 7)
    assert running.text().decode() == f"{U}:7:tag:1"


def test_mysql_largest_number() -> None:
    """The last number that servers give out is counted, next to its predecessor or alone."""
    largest = 2**63 - 2
    counting = RunningMysqlSet(MysqlGtidSet.parse(f"{U}:1-{largest - 1}"))
    alone = RunningMysqlSet(MysqlGtidSet())

    counting.add(SID, "", largest)
    alone.add(SID, "", largest)
    assert counting.text().decode() == f"{U}:1-{largest}"
    assert alone.text().decode() == f"{U}:{largest}"


def test_mysql_counts_on_where_it_was_left() -> None:
    """Numbers counted at one server are in the text after another server's come, and back."""
    other = "ffffffff-ffff-ffff-ffff-ffffffffffff"
    running = RunningMysqlSet(MysqlGtidSet.parse(f"{U}:1-3:9,{other}:1-2"))

    running.add(SID, "", 4)
    running.add(raw_uuid(other), "", 3)
    running.add(SID, "", 5)
    running.add(SID, "", 6)
    running.add(raw_uuid(other), "", 4)
    assert running.text().decode() == f"{U}:1-6:9,{other}:1-4"


def test_mysql_errors_name_the_gtid() -> None:
    """What cannot be added is named as the server writes it, with its tag if it has one."""
    running = RunningMysqlSet(MysqlGtidSet.parse(f"{U}:1:tag:1"))

    with pytest.raises(GtidError, match=f"GTID {U}:1 comes a second time"):
        running.add(SID, "", 1)
    with pytest.raises(GtidError, match=f"GTID {U}:tag:1 comes a second time"):
        running.add(SID, "tag", 1)


@pytest.mark.parametrize(
    ("sid", "tag", "gno"),
    [
        (SID, "", 0),
        (SID, "", -1),
        (SID, "", 2**63 - 1),
        (SID[:-1], "", 1),
        (SID, "Tag", 1),
        (SID, "1", 1),
        (SID, "t" * 33, 1),
    ],
)
def test_mysql_refuses_what_cannot_be(sid: bytes, tag: str, gno: int) -> None:
    """An impossible GTID raises GtidError and leaves the set as it was, empty or not."""
    for start in (MysqlGtidSet(), MysqlGtidSet.parse(f"{U}:1-9223372036854775806")):
        running = RunningMysqlSet(start)
        with pytest.raises(GtidError):
            running.add(sid, tag, gno)
        assert running.to_set() == start
        assert running.text().decode() == str(start)


_mariadb_gtids = st.tuples(st.integers(0, 3), st.integers(1, 2), st.integers(1, 8))


@given(mariadb_sets, st.lists(_mariadb_gtids, max_size=20))
def test_mariadb_agrees_with_adding_one_by_one(
    start: MariadbGtidSet, gtids: list[tuple[int, int, int]]
) -> None:
    """After each addition text and position agree; a number not above the last is refused."""
    expected = start
    running = RunningMariadbSet(start)

    assert running.text().decode() == str(start)
    for domain, server, seq in gtids:
        if seq <= expected.by_domain().get(domain, (0, 0))[1]:
            with pytest.raises(GtidError, match="not above"):
                running.add(domain, server, seq)
        else:
            running.add(domain, server, seq)
            expected = expected.add_gtid(f"{domain}-{server}-{seq}")
        assert running.text().decode() == str(expected)
        assert running.to_set() == expected


def test_mariadb_next_gtid_formats_nothing_but_its_number() -> None:
    """However many domains, the next GTID leaves prefix and suffix the very same objects."""
    running = RunningMariadbSet(MariadbGtidSet.of(dict.fromkeys(range(5000), (1, 7))))
    running.add(2500, 2, 8)
    prefix, suffix = running.prefix, running.suffix

    for seq in range(9, 1000):
        running.add(2500, 2, seq)
        assert running.prefix is prefix
        assert running.suffix is suffix
    assert running.text().decode() == str(running.to_set())


@pytest.mark.parametrize(
    ("domain", "server", "seq"),
    [(-1, 1, 9), (2**32, 1, 9), (0, -1, 9), (0, 2**32, 9), (0, 1, 2**64), (0, 2, 2**64), (0, 1, 0)],
)
def test_mariadb_refuses_what_cannot_be(domain: int, server: int, seq: int) -> None:
    """An impossible GTID raises GtidError and leaves the position as it was, empty or not."""
    for start in (MariadbGtidSet(), MariadbGtidSet.parse("0-1-5")):
        running = RunningMariadbSet(start)
        with pytest.raises(GtidError):
            running.add(domain, server, seq)
        assert running.to_set() == start
        assert running.text().decode() == str(start)


@pytest.mark.parametrize("server", [1, 2])
def test_mariadb_largest_numbers(server: int) -> None:
    """Numbers beyond 63 bits are counted right, also by another server."""
    running = RunningMariadbSet(MariadbGtidSet.parse("0-1-18446744073709551613"))

    running.add(0, 1, 2**64 - 2)
    running.add(0, server, 2**64 - 1)
    before = "" if server == 1 else "0-1-18446744073709551614,"
    assert running.text().decode() == f"{before}0-{server}-18446744073709551615"


@pytest.mark.parametrize("number", [0, 2**32 - 1])
def test_mariadb_least_and_largest_ids(number: int) -> None:
    """Domain and server have 32 bits each, and may be 0."""
    running = RunningMariadbSet(MariadbGtidSet())

    running.add(number, number, 1)
    assert running.text().decode() == f"{number}-{number}-1"


def test_mariadb_counts_on_where_it_was_left() -> None:
    """Numbers counted in one domain are in the text after another domain's come, and back."""
    running = RunningMariadbSet(MariadbGtidSet.parse("0-1-5,7-1-5"))

    running.add(0, 1, 6)
    running.add(0, 1, 7)
    running.add(7, 1, 6)
    assert running.text() == b"0-1-7,7-1-6"
    with pytest.raises(GtidError, match="0-2-7 is not above 7, the last number of domain 0"):
        running.add(0, 2, 7)
    running.add(0, 2, 8)
    assert running.text() == b"0-1-7,0-2-8,7-1-6"
