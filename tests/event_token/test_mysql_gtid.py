"""MySQL GTID sets: the text of servers, and set laws against plain Python sets."""

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from event_token import Flavor, GtidError, MariadbGtidSet, MysqlGtidSet, parse_gtid_set
from tests.event_token.strategies import (
    UUIDS,
    Gtid,
    gtid_text,
    mysql_gtids,
    mysql_model,
    mysql_models,
    mysql_set,
    mysql_sets,
)

U = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
V = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        (" \n", ""),
        (f"{U}:1", f"{U}:1"),
        (f"{U}:1-1", f"{U}:1"),
        (f"{U}:1-5:7", f"{U}:1-5:7"),
        (f"{U.upper()}:1-5", f"{U}:1-5"),
        (f"{V}:1-3,\n{U}:1-5", f"{U}:1-5,{V}:1-3"),
        (f"{U}:7:6:1-5", f"{U}:1-7"),
        (f"{U}:1-3:2-9", f"{U}:1-9"),
        (f"{U}:Tag:1-3", f"{U}:tag:1-3"),
        (f"{U}:b:1:a:2:3", f"{U}:a:2-3:b:1"),
        (f"{U}:1-2:tag:5:7,{U}:tag:6:other:1,{U}:3", f"{U}:1-3:other:1:tag:5-7"),
        (f" {U} : 1 - 5 : tag : 7 , {V}:1 ", f"{U}:1-5:tag:7,{V}:1"),
        (f"{U}:9223372036854775806", f"{U}:9223372036854775806"),
    ],
)
def test_text_is_canonical(text: str, canonical: str) -> None:
    """A set prints in the server's own order and form, however it was written."""
    assert str(MysqlGtidSet.parse(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        U,
        f"{U}:",
        f"{U}:tag",
        f"{U}:1:tag",
        f"{U}:tag:other:1",
        f"{U}:0",
        f"{U}:5-4",
        f"{U}:1-",
        f"{U}:-5",
        f"{U}:1-2-3",
        f"{U}::1",
        f"{U}:1:",
        f"{U}:1,",
        f",{U}:1",
        f"{U}:1,,{V}:1",
        f"{U}:1;{V}:1",
        f"{U}:9223372036854775807",
        f"{U}:99999999999999999999999999",
        f"{U}:\u0661",
        f"{U}:+1",
        f"{U}:1_0",
        f"{U}:{'t' * 33}:1",
        f"{U}:t\u00e4g:1",
        f"{U[:-1]}:1",
        f"{U.replace('-', '')}:1",
        f"{{{U}}}:1",
        "0-1-5",
        "ON",
    ],
)
def test_bad_text_is_refused(text: str) -> None:
    """What no server prints raises GtidError; nothing is dropped in silence."""
    with pytest.raises(GtidError):
        MysqlGtidSet.parse(text)


@given(mysql_sets)
def test_parse_undoes_print(gtid_set: MysqlGtidSet) -> None:
    """A set comes back from its text, also with the server's line breaks and upper case."""
    text = str(gtid_set)

    assert MysqlGtidSet.parse(text) == gtid_set
    assert MysqlGtidSet.parse(text.replace(",", ",\n").upper()) == gtid_set
    assert str(MysqlGtidSet.parse(text)) == text


@given(mysql_models, mysql_models)
def test_operations_agree_with_plain_sets(a: frozenset[Gtid], b: frozenset[Gtid]) -> None:
    """Union, intersection, difference and inclusion are those of plain sets of GTIDs."""
    set_a, set_b = mysql_set(a), mysql_set(b)

    assert mysql_model(set_a) == a
    assert mysql_model(set_a.union(set_b)) == a | b
    assert mysql_model(set_a.intersection(set_b)) == a & b
    assert mysql_model(set_a.subtract(set_b)) == a - b
    assert set_a.includes(set_b) == (a >= b)
    assert (set_a == set_b) == (a == b)
    assert set_a.is_empty == (not a)


@given(mysql_models, mysql_models)
def test_results_are_canonical(a: frozenset[Gtid], b: frozenset[Gtid]) -> None:
    """An operation's result equals the parsed set of the same GTIDs, hash and text included."""
    made = mysql_set(a).subtract(mysql_set(b)).union(mysql_set(b))
    parsed = mysql_set(a | b)

    assert made == parsed
    assert hash(made) == hash(parsed)
    assert str(made) == str(parsed)


@given(mysql_models, mysql_gtids)
def test_single_gtids(model: frozenset[Gtid], gtid: Gtid) -> None:
    """Asking for one GTID and adding one agree with plain sets."""
    gtid_set = mysql_set(model)

    assert gtid_set.contains_gtid(gtid_text(gtid)) == (gtid in model)
    sid, tag, number = gtid
    is_end = gtid in model and (sid, tag, number + 1) not in model
    assert gtid_set.ends_with(gtid_text(gtid)) == is_end == (gtid_text(gtid) in gtid_set.ends())
    assert mysql_model(gtid_set.add_gtid(gtid_text(gtid))) == model | {gtid}


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 8)), max_size=12),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 8)), max_size=12),
)
@example([(1, 2), (5, 4)], [(2, 4)])  # one interval of b reaches into two of a
@example([(1, 8)], [(2, 0), (4, 0), (6, 0)])  # one interval of a meets many of b
def test_many_intervals_agree_with_plain_sets(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    """Where one interval meets many of the other side, results are right and canonical at once."""
    model_a = {gno for first, more in a for gno in range(first, first + more + 1)}
    model_b = {gno for first, more in b for gno in range(first, first + more + 1)}
    tsid = (bytes(16), "")
    set_a = MysqlGtidSet.of({tsid: [(first, first + more) for first, more in a]})
    set_b = MysqlGtidSet.of({tsid: [(first, first + more) for first, more in b]})

    def one_by_one(model: set[int]) -> MysqlGtidSet:
        return MysqlGtidSet.of({tsid: [(gno, gno) for gno in model]})

    assert set_a.subtract(set_b) == one_by_one(model_a - model_b)
    assert set_a.intersection(set_b) == one_by_one(model_a & model_b)
    assert set_a.union(set_b) == one_by_one(model_a | model_b)
    assert set_a.includes(set_b) == (model_a >= model_b)


@pytest.mark.parametrize("text", ["", U, f"{U}:1-2", f"{U}:tag:1:2", f"{U}:1,{V}:1", "0-1-5"])
def test_not_one_gtid(text: str) -> None:
    """Only a single GTID may be asked for or added."""
    with pytest.raises(GtidError):
        MysqlGtidSet.parse(f"{U}:1").contains_gtid(text)
    with pytest.raises(GtidError):
        MysqlGtidSet.parse(f"{U}:1").add_gtid(text)


def test_flavors_do_not_mix() -> None:
    """Every operation with a MariaDB position raises GtidError, empty ones included."""
    mine, other = MysqlGtidSet.parse(f"{UUIDS[0]}:1"), MariadbGtidSet()

    for operation in (mine.union, mine.intersection, mine.subtract, mine.includes):
        with pytest.raises(GtidError, match=r"mysql.*mariadb"):
            operation(other)


def test_sets_are_values() -> None:
    """A set is frozen, is a dictionary key and survives pickling, as Spark needs."""
    gtid_set = parse_gtid_set(f"{U}:1-5:tag:7", Flavor.MYSQL)

    assert {gtid_set: 1}[MysqlGtidSet.parse(f"{U}:1-3:4-5:tag:7")] == 1
    assert pickle.loads(pickle.dumps(gtid_set)) == gtid_set  # noqa: S301 - our own bytes
    with pytest.raises(AttributeError):
        gtid_set.servers = ()  # type: ignore[misc, union-attr]  # the point of the test
