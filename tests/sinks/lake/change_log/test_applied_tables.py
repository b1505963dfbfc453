"""Histories of a table, applied in any order, give its true rows."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.lake.change_log.reading import Change
from tests.generated import examples
from tests.sinks.rule.histories import HOMES, History, applied
from topics.errors import CannotApply


@settings(max_examples=examples(150))
@given(st.randoms(use_true_random=False), st.integers(1, 60), st.booleans())
def test_any_history_in_any_order_gives_its_rows(random: Random, steps: int, mixed: bool) -> None:
    """A12: moves, skewed clocks, splits, TRUNCATE and late rows leave exactly the true rows."""
    history = History(random)
    history.run(steps)

    table = applied(history.log, random if mixed else None)

    found = {(version.shard, version.home, version.row) for version in table.live()}
    assert {(home, row) for _, home, row in found} == {
        (home, row) for (_, home), row in history.rows.items()
    }
    assert {str(row) for row in history.rows.values()} >= {
        str(version.row) for version in table.by_key().values()
    }
    assert len(table.by_key()) == len({key for key, _ in history.rows})


@settings(max_examples=examples(100))
@given(st.randoms(use_true_random=False), st.integers(1, 40), st.integers(0, 40))
def test_changes_may_come_again(random: Random, steps: int, again: int) -> None:
    """Changes of keyed tables that are applied twice leave the same rows."""
    history = History(random)
    history.run(steps)

    repeated = history.log + history.log[:again]

    assert applied(repeated, random).by_key() == applied(history.log).by_key()


def change(shard: str, seq: int, at_us: int, **fields: object) -> Change:
    """A change of shop.orders with key 1."""
    names = ("before", "after", "old_key", "absent", "keyspace_id_before", "keyspace_id_after")
    row: dict[str, object] = dict.fromkeys((*names, "token", "statement"))
    row |= {"type": "ROW", "database": "shop", "table": "orders", "key": "[1]"}
    return row | {"shard": shard, "seq": seq, "timestamp_us": at_us} | fields


LOW, HIGH = HOMES[0], HOMES[-1]


@pytest.mark.parametrize("ids", [(LOW, HIGH), (None, None)])
def test_a_row_that_moves_under_skewed_clocks_is_kept(ids: tuple[bytes, bytes]) -> None:
    """A12: a late DELETE on the shard that a row left does not remove the row on the other."""
    low, high = ids
    log = [
        change("-80", 1, 100, after="old", keyspace_id_after=low),
        change("80-", 1, 108, after="new", keyspace_id_after=high),
        change(
            "-80",
            2,
            113,
            before="old",
            after="late",
            keyspace_id_before=low,
            keyspace_id_after=low,
        ),
        change("-80", 3, 119, before="late", keyspace_id_before=low),
    ]

    assert [version.row for version in applied(log).by_key().values()] == ["new"]
    assert [version.row for version in applied(log[:3]).by_key().values()] == ["late"]


@pytest.mark.parametrize("home", [HIGH, None])
def test_a_target_goes_on_with_the_rows_of_its_source(home: bytes | None) -> None:
    """A13: after a split a row is there once, and a DELETE on the target removes it."""
    log = [
        change("80-", 7, 100, after="old", keyspace_id_after=home),
        change(
            "c0-",
            3,
            200,
            before="old",
            after="new",
            keyspace_id_before=home,
            keyspace_id_after=home,
        ),
    ]
    deleted = change("c0-", 4, 300, before="new", keyspace_id_before=home)

    assert [version.row for version in applied(log).live()] == ["new"]
    assert applied([*log, deleted]).live() == []


def test_a_vindex_that_came_later_does_not_make_a_second_row() -> None:
    """A row that was logged without a keyspace id is the one that is changed with an id."""
    log = [
        change("80-", 1, 100, after="old"),
        change(
            "80-",
            2,
            200,
            before="old",
            after="new",
            keyspace_id_before=HIGH,
            keyspace_id_after=HIGH,
        ),
    ]
    deleted = change("80-", 3, 300, before="new", keyspace_id_before=HIGH)

    assert [version.row for version in applied(log).live()] == ["new"]
    assert applied([*log, deleted]).live() == []


def ddl(shard: str, seq: int, at_us: int, statement: str) -> Change:
    """A statement in database shop."""
    return change(shard, seq, at_us, type="DDL", table="", key=None, statement=statement)


def test_truncate_removes_the_rows_of_its_shard() -> None:
    """A14: rows at home on the shard go, also those logged by its source; others stay."""
    log = [
        change("80-", 1, 100, after="source", keyspace_id_after=HIGH),
        change("80-", 2, 100, key="[2]", after="elsewhere", keyspace_id_after=HOMES[2]),
        change("-80", 1, 100, key="[3]", after="other shard", keyspace_id_after=LOW),
        ddl("c0-", 1, 200, "TRUNCATE orders"),
        change("c0-", 2, 300, key="[4]", after="later", keyspace_id_after=HIGH),
    ]

    found = applied(log).by_key()

    assert {version.row for version in found.values()} == {"elsewhere", "other shard", "later"}


def test_truncate_removes_what_its_shard_has_wherever_that_is_at_home() -> None:
    """A14: a row that an application wrote to a shard of another key range goes with that shard."""
    log = [
        change("-80", 1, 100, after="at home", keyspace_id_after=LOW),
        change("-80", 2, 100, key="[2]", after="elsewhere", keyspace_id_after=HIGH),
        change("80-", 1, 100, key="[3]", after="other shard", keyspace_id_after=LOW),
        ddl("-80", 3, 200, "TRUNCATE orders"),
    ]

    assert [version.row for version in applied(log).live()] == ["other shard"]


@pytest.mark.parametrize(
    ("statement", "kept"),
    [("DROP DATABASE shop", []), ("DROP DATABASE hr", ["row"]), ("DROP TABLE hr.orders", ["row"])],
)
def test_a_dropped_database_takes_all_tables_with_it(statement: str, kept: list[str]) -> None:
    """A14: rows of its tables go, those of other databases stay."""
    log = [
        change("80-", 1, 100, after="row", keyspace_id_after=HIGH),
        ddl("80-", 2, 200, statement),
    ]

    assert [version.row for version in applied(log).live()] == kept


@pytest.mark.parametrize(("shard", "is_kept"), [("c0-", True), ("40-", False)])
def test_only_rows_before_the_statement_go(shard: str, is_kept: bool) -> None:
    """A14: where times and tokens decide nothing, the place in the merged stream does."""
    log = [
        ddl("80-", 2, 200, "TRUNCATE orders"),
        change(shard, 1, 200, after="row", keyspace_id_after=HIGH),
    ]

    assert [version.row for version in applied(log).live()] == (["row"] if is_kept else [])


def test_truncate_empties_tables_without_a_key() -> None:
    """A14: of a table without a primary key, rows before the statement go."""
    log = [
        change("80-", 1, 100, key=None, after='{"n":1}'),
        change("-80", 1, 100, key=None, after='{"n":2}'),
        ddl("80-", 2, 200, "DROP TABLE orders"),
        change("80-", 3, 300, key=None, after='{"n":3}'),
    ]

    assert sorted(applied(log).without_key.elements()) == ['{"n":2}', '{"n":3}']


def test_a_statement_that_cannot_be_applied_stops_by_name() -> None:
    """A14: RENAME of a table with rows stops with its place in the log; other tables do not."""
    row = change("80-", 1, 100, after="x")
    rename = ddl("80-", 2, 200, "RENAME TABLE orders TO old_orders")

    with pytest.raises(CannotApply, match=r"shop\.orders, shard 80-, seq 2: RENAME TABLE orders"):
        applied([row, rename])
    assert len(applied([row, ddl("80-", 2, 200, "RENAME TABLE a TO b")]).live()) == 1


def test_partial_images_stop_by_name() -> None:
    """A row image that lacks columns cannot be applied."""
    with pytest.raises(CannotApply, match="seq 4: a row image has only part of its columns"):
        applied([change("80-", 4, 100, after="x", absent='{"after":["n"]}')])
