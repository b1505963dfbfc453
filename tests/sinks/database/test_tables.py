"""Tables of a second database: columns, types, statements, unique keys, deletes."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Literal

import pytest

from event_token.errors import Retry, UsageError
from sinks.database import database, staging
from sinks.database.database import SqlDatabase
from sinks.database.options import DatabaseOptions
from sinks.database.staging import StagedChanges
from sinks.errors import BadValue, DatabaseRefuses
from sinks.rule.homes import Version
from sinks.rule.policy import OnPartial, OnTypeChange
from tests.postgres_servers import PostgresFixture
from tests.sinks.database.followed import (
    EVERYWHERE,
    ITEMS,
    ON_MARIADB_TOO,
    ON_MYSQL_TOO,
    Followed,
    Item,
    TargetServer,
    batch,
    changes,
)
from tests.sinks.database.kinds import OTHERS, kinds
from topics.errors import CannotApply, ShapeConflict
from topics.records.table_shape import Column, TableShape, ValueKind


def test_every_kind_of_value_arrives(followed: Followed) -> None:
    """The target gives back what the source had, and NULL for NULL."""
    values = {kind.value: value for kind, value in OTHERS.items()}
    time = values["time"]
    assert isinstance(time, timedelta)
    micros = {**values, "time": time // timedelta(microseconds=1)}

    followed.apply([Item(1, 1, 100, more=micros), Item(2, 2, 100)], shape=kinds())

    listed = ", ".join(f'"{name}"' for name in values)
    first, second = followed.rows(f"SELECT {listed} FROM shop.items ORDER BY id")
    assert first == tuple({**values, "json": json.loads(str(values["json"]))}.values())
    assert set(second) == {None}


@EVERYWHERE
def test_columns_follow_an_alter(followed: Followed) -> None:
    """A new column is added, a wider one is widened, a renamed one keeps its values."""
    followed.apply([Item(1, 1, 100, note="a", amount=7)])
    wider = replace(ITEMS.columns[3], kind=ValueKind.LONG, sql_type="bigint")
    added = Column("x:y", ValueKind.STRING, "text")
    renamed = replace(ITEMS.columns[2], name="remark")
    shape = replace(ITEMS, columns=(*ITEMS.columns[:2], renamed, wider, added))

    followed.apply(
        [Item(2, 2, 200, amount=2**40, more={"x:y": "new", "remark": "b"})],
        shape=shape,
        renames=(("-80", "note", "remark"),),
    )

    assert followed.rows('SELECT id, remark, amount, "x:y" FROM shop.items ORDER BY id') == [
        (1, "a", 7, None),
        (2, "b", 2**40, "new"),
    ]


@ON_MARIADB_TOO
def test_truncate_removes_the_rows_of_its_shard_alone(followed: Followed) -> None:
    """TRUNCATE on one shard leaves the rows of the other, wherever they are at home."""
    homes = {1: ("-80", b"\x10"), 2: ("80-", b"\x90"), 3: ("-80", None), 4: ("80-", None)}
    misplaced = {6: ("-80", b"\x90"), 7: ("80-", b"\x10")}
    homes |= misplaced
    followed.apply([Item(k, k, 100, shard=s, home=h) for k, (s, h) in homes.items()])

    truncate = Version("-80", 10, 150, None, None)
    followed.apply([Item(5, 11, 200)], removals=[truncate])

    assert followed.rows("SELECT id FROM shop.items ORDER BY id") == [(2,), (4,), (5,), (7,)]


@pytest.mark.parametrize(
    ("target_server", "deletes"),
    [("postgres", "soft"), ("mysql_a", "hard")],
    indirect=["target_server"],
)
def test_truncate_shows_the_row_that_was_hidden(target_server: TargetServer, deletes: str) -> None:
    """While a row moves it is on two shards: TRUNCATE of the new one leaves the old one."""
    followed = Followed(target_server, deletes=deletes)
    followed.database.prepare()
    with followed.database.claimed():
        followed.apply([Item(1, 1, 100, note="old"), Item(2, 2, 100, note="other")])
        followed.apply([Item(1, 1, 108, shard="80-", home=b"\x90", note="new")])
        truncate = Version("80-", 2, 150, None, None)

        followed.apply([], removals=[truncate])

        query = "SELECT id, note FROM shop.items ORDER BY id"
        assert followed.rows(query) == [(1, "old"), (2, "other")]


@EVERYWHERE
def test_values_of_a_unique_index_are_swapped(followed: Followed) -> None:
    """Two rows exchange a unique value within one batch; no order of updates allows that.

    Rows that are compared one by one do, too, also where two tasks stage them. A value that rows
    of two shards have is an error that says which index of the target refuses it.
    """
    query = "SELECT id, note FROM shop.items ORDER BY id"
    followed.apply([Item(1, 1, 100, note="a"), Item(2, 2, 100, note="b")])
    followed.rows("CREATE UNIQUE INDEX only_once ON shop.items (note)")

    followed.apply([Item(1, 3, 200, note="b")], [Item(2, 4, 200, note="a")])

    followed.check()
    assert followed.rows(query) == [(1, "b"), (2, "a")]

    followed.apply(
        [Item(1, 5, 300, note="a", compare=True)], [Item(2, 6, 300, note="b", compare=True)]
    )

    followed.check()
    assert followed.rows(query) == [(1, "a"), (2, "b")]
    with pytest.raises(DatabaseRefuses, match=r"only_once.*two shards may: drop that index"):
        followed.apply([Item(3, 1, 100, "80-", b"\x90", note="a")])


def test_a_key_on_two_shards_with_any_column(followed: Followed) -> None:
    """Names that statements use for other things may be columns of the source."""
    names = ("origin", "s", "t", "h", "w", "k", "excluded")
    more = (Column(name, ValueKind.INT, "int") for name in names)
    shape = replace(ITEMS, columns=(*ITEMS.columns, *more))
    ones, twos = dict.fromkeys(names, 1), dict.fromkeys(names, 2)
    items = [Item(1, 1, 100, home=None, note="a", more=ones)]
    followed.apply([*items, Item(1, 1, 200, "80-", None, note="b", more=twos)], shape=shape)
    followed.check()
    followed.apply([Item(1, 2, 300, "80-", None, deleted=True)], shape=shape)
    followed.check()

    listed = ", ".join(f'"{name}"' for name in names)
    assert followed.rows(f"SELECT note, {listed} FROM shop.items") == [("a", *ones.values())]


@ON_MARIADB_TOO
def test_a_value_that_a_deleted_row_keeps_names_the_way_on(target_server: TargetServer) -> None:
    """With soft deletes a deleted row keeps its unique value; only an index of the others fits."""
    followed = Followed(target_server, deletes="soft")
    followed.database.prepare()
    followed.apply([Item(1, 1, 100, note="a")])
    followed.rows("CREATE UNIQUE INDEX only_once ON shop.items (note)")
    followed.apply([Item(1, 2, 200, deleted=True)])

    with pytest.raises(DatabaseRefuses, match=r"only_once.* leave out the rows that are deleted"):
        followed.apply([Item(2, 3, 300, note="a")])


@pytest.mark.parametrize("target_server", ["mysql_a"], indirect=True)
def test_a_reserved_name_in_another_case_is_refused(followed: Followed) -> None:
    """Where `a` and `A` are one column, so are `_key` and `_KEY`; PostgreSQL has both."""
    shape = replace(ITEMS, columns=(*ITEMS.columns, Column("_KEY", ValueKind.INT, "int")))
    with pytest.raises(UsageError, match=r"shop.items: column '_KEY' has a name"):
        followed.apply([Item(1, 1, 100)], shape=shape)


def test_a_column_of_a_reserved_name_is_refused_by_name(followed: Followed) -> None:
    """A column that the target cannot have is named with its table."""
    for column in ("xmin", "_contested", "_origin"):
        shape = replace(ITEMS, columns=(*ITEMS.columns, Column(column, ValueKind.INT, "int")))
        with pytest.raises(UsageError, match=f"shop.items: column '{column}' has a name"):
            followed.apply([Item(1, 1, 100)], shape=shape)


@ON_MARIADB_TOO
def test_deleted_rows_stay_marked_if_asked(target_server: TargetServer) -> None:
    """With soft deletes a row keeps its values; an INSERT of the key brings it back."""
    followed = Followed(target_server, deletes="soft")
    followed.database.prepare()
    query = "SELECT id, note, _deleted FROM shop.items ORDER BY id"
    with followed.database.claimed():
        followed.apply([Item(1, 1, 100, note="a"), Item(2, 2, 100, note="b")])
        followed.apply([Item(1, 3, 200, deleted=True)])
        assert followed.rows(query) == [(1, "a", True), (2, "b", False)]
        followed.apply([Item(1, 4, 300, note="c")])
        assert followed.rows(query) == [(1, "c", False), (2, "b", False)]


def test_tombstones_are_forgotten_after_their_time(
    postgres: PostgresFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old tombstones go, also those of a table that the batch does not change; newer ones stay."""
    followed = Followed(postgres, tombstones_us=1_000)
    followed.database.prepare()
    monkeypatch.setattr(database, "EXPIRE_EVERY", 3)
    end_us = 3_000
    followed.apply([Item(1, 1, 100), Item(2, 2, 100)])
    followed.apply([Item(1, 3, end_us - 1_001, deleted=True)])
    others = replace(ITEMS, table="others")

    followed.apply([Item(2, 4, end_us - 999, deleted=True)], shape=others)

    tombstones = "SELECT _seq FROM _shardstream.homes_{} WHERE _deleted"
    assert followed.rows(tombstones.format(1)) == []
    assert followed.rows(tombstones.format(2)) == [(4,)]


@ON_MARIADB_TOO
def test_copies_of_a_table_without_rows_count(target_server: TargetServer) -> None:
    """A copy that ends before the table's first row is remembered, until all have ended."""
    followed = Followed(target_server, is_loading=True)
    followed.database.prepare()
    query = "SELECT source_table, state, complete_at_us FROM _shardstream.tables"
    empty = TableShape("shop", "items", ())
    with followed.database.claimed():
        followed.apply([], shape=empty, ended_copies=("-40",))
        followed.apply([], shape=replace(empty, table="others"), ended_copies=("-",))
        followed.apply([], shape=empty, ended_copies=("-40", "40-80"))
        assert followed.rows(query) == []
        followed.apply([Item(1, 1, 100)])
        assert followed.rows(query) == [("items", "loading", None)]
        followed.apply([], shape=empty, ended_copies=("80-",))
        followed.apply([Item(2, 1, 100)], shape=replace(ITEMS, table="others"))

    assert sorted(followed.rows(query)) == [
        ("items", "complete", 5_000),
        ("others", "complete", 6_000),
    ]


@ON_MYSQL_TOO
def test_partial_images_lie_over_the_stored_row(followed: Followed) -> None:
    """Columns that an image lacks keep their values; without a stored row the batch stops."""
    followed.apply([Item(1, 1, 100, note="a", amount=7)])
    followed.apply([Item(1, 2, 200, note="b", absent=("amount",))])

    assert followed.rows("SELECT note, amount FROM shop.items") == [("b", 7)]
    with pytest.raises(CannotApply, match=r'shop.items, key \{"id":2.*shard -80, seq 3.*amount'):
        followed.apply([Item(2, 3, 300, note="c", absent=("amount",))])


@pytest.mark.parametrize(
    ("target_server", "deletes"),
    [("postgres", "hard"), ("mysql_a", "soft"), ("mariadb_a", "hard")],
    indirect=["target_server"],
)
def test_partial_images_without_a_stored_row_may_get_nulls(
    target_server: TargetServer, deletes: Literal["hard", "soft"]
) -> None:
    """A new key, a deleted one, and one whose stored row has the values, in one batch."""
    followed = Followed(target_server, deletes=deletes, on_partial=OnPartial.INSERT_NULLS)
    followed.database.prepare()
    followed.apply([Item(1, 1, 100, note="a", amount=7), Item(2, 2, 100, note="b", amount=8)])
    followed.apply([Item(2, 3, 200, deleted=True)])

    lacking = [Item(key, 3 + key, 300, note="c", absent=("amount",)) for key in (1, 2, 3)]
    followed.apply(lacking)

    found = followed.rows("SELECT id, note, amount FROM shop.items")
    assert sorted(found) == [(1, "c", 7), (2, "c", None), (3, "c", None)]


@pytest.mark.parametrize("home", [b"\x90", None])
def test_a_partial_image_after_a_split_lies_over_the_source_s_row(
    followed: Followed, home: bytes | None
) -> None:
    """Without its sharding column an image has no keyspace id: the key ranges of shards decide."""
    followed.apply([Item(1, 1, 100, shard="80-", home=home, note="a", amount=7)])

    partial = Item(1, 1, 200, shard="80-c0", home=None, note="b", absent=("amount",))
    followed.apply([partial])

    assert followed.rows("SELECT note, amount FROM shop.items") == [("b", 7)]
    with pytest.raises(CannotApply, match=r"shard -80, seq 9"):
        followed.apply([replace(partial, shard="-80", seq=9, time=300)])


def test_a_zero_character_stops_by_name(followed: Followed, postgres: PostgresFixture) -> None:
    """PostgreSQL has no zero character in texts: the message says where it is, or it goes."""
    bad = [Item(1, 1, 100, note="fine"), Item(2, 2, 100, note="a\0b")]

    with pytest.raises(BadValue, match=r'shop.items, key \{"id":2.*seq 2, column note'):
        followed.apply(bad)

    other = Followed(postgres, nul_text="replace")
    other.database.prepare()
    with other.database.claimed():
        other.apply(bad)
        assert other.rows("SELECT note FROM shop.items WHERE id = 2") == [("a\ufffdb",)]


def test_zero_characters_in_json_are_replaced_too(postgres: PostgresFixture) -> None:
    """JSON has them as escapes; a backslash before `u0000` that is escaped itself stays."""
    shape = replace(ITEMS, columns=(*ITEMS.columns, Column("doc", ValueKind.JSON, "json")))
    other = Followed(postgres, nul_text="replace")
    other.database.prepare()
    text = r'["\u0000\u0000", "\\u0000", "\\\u0000"]'
    with other.database.claimed():
        other.apply([Item(1, 1, 100, more={"doc": text})], shape=shape)
    [(found,)] = other.rows("SELECT doc FROM shop.items")

    assert found == ["\ufffd\ufffd", "\\u0000", "\\\ufffd"]


@EVERYWHERE
def test_a_value_that_does_not_fit_is_named(followed: Followed) -> None:
    """What staging refuses is found by its line, also after texts of several lines."""
    good = Item(1, 1, 100, note="two\nlines\n", more={"doc": "1"})
    bad = Item(2, 2, 100, more={"doc": '{"secret"'})

    with pytest.raises(BadValue, match=r'shop.items, key \{"id":2.*, seq 2, column doc') as caught:
        followed.apply([good, bad], shape=followed.strict_shape)
    assert "secret" not in str(caught.value)


@EVERYWHERE
def test_rows_that_do_not_fit_are_put_aside_if_asked(target_server: TargetServer) -> None:
    """Of a batch all rows that fit arrive; the others are told with key, place and reason."""
    followed = Followed(target_server, on_bad_row="table")
    followed.database.prepare()
    shape = followed.strict_shape
    followed.apply([Item(5, 1, 100, note="stays")], shape=shape)
    bad = {
        2: Item(2, 12, 200, token="t2", more={"doc": "[1, 2"}),
        5: Item(5, 15, 200, more={"doc": '{"a"'}),
        9: Item(9, 19, 200, more={"doc": "nothing"}),
    }
    items = [bad.get(key, Item(key, key + 10, 200, note="new")) for key in range(10)]

    followed.apply(items[:6], items[6:], shape=shape)

    rows = followed.rows("SELECT id, note FROM shop.items ORDER BY id")
    assert rows == [(key, "stays" if key == 5 else "new") for key in range(10) if key not in {2, 9}]
    rejected = followed.rows(
        "SELECT seq, source_database, source_table, source_key, shard, time_us, token, reason "
        "FROM _shardstream.rejected WHERE follower = 'commerce' ORDER BY seq"
    )
    assert [row[:7] for row in rejected] == [
        (item.seq, "shop", "items", item.key_text, "-80", 200, item.token) for item in bad.values()
    ]
    assert all(f"seq {row[0]}, column doc: " in row[7] for row in rejected)
    assert followed.database.applied() == (8, 2_000, 3)


@ON_MYSQL_TOO
def test_tasks_that_meet_two_types_of_a_new_column_run_again(target_server: TargetServer) -> None:
    """Of a table's first batch no task knows which type another one has met first."""
    followed = Followed(target_server, on_type_change=OnTypeChange.NEW_COLUMN)
    target = followed.database
    target.prepare()
    text = replace(ITEMS, columns=(*ITEMS.columns[:3], Column("amount", ValueKind.STRING, "text")))
    both = replace(ITEMS, columns=(*ITEMS.columns, replace(text.columns[3], name="amount__v2")))
    number, word = Item(1, 1, 100, amount=1), Item(2, 1, 100, shard="80-", home=b"\x90")
    stopping = SqlDatabase(followed.url, DatabaseOptions("commerce"))

    def stage(shape: TableShape, **values: object) -> list[StagedChanges]:
        return target.stage([changes([number]), changes([replace(word, more=values)], shape)])

    with pytest.raises(ShapeConflict, match=r"column 'amount' is text .* and int"):
        stopping.apply(batch(0), stage(text, amount="two"))
    assert target.known() == {}
    with pytest.raises(Retry, match="the batch is run again"):
        target.apply(batch(0), stage(text, amount="two"))
    assert target.known()["shop", "items"].shape == ITEMS
    assert target.apply(batch(0), stage(both, amount__v2="two"))

    found = followed.rows("SELECT id, amount, amount__v2 FROM shop.items ORDER BY id")
    assert found == [(1, 1, None), (2, None, "two")]


def test_a_column_that_never_fits_still_stops(
    postgres: PostgresFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are put aside one by one, not by the thousand."""
    monkeypatch.setattr(staging, "REJECTED_MAX", 2)
    followed = Followed(postgres, on_bad_row="table")
    followed.database.prepare()

    with pytest.raises(BadValue, match=r"shop\.items, key .* More than 2 rows of one batch"):
        followed.database.stage([changes([Item(key, key, 100, note="\0") for key in range(4)])])


@ON_MYSQL_TOO
def test_a_table_that_is_not_ours_is_left_alone(followed: Followed) -> None:
    """A table of that name which the stream did not create stops the query."""
    if isinstance(followed.server, PostgresFixture):
        followed.rows(f"CREATE SCHEMA shop; GRANT ALL ON SCHEMA shop TO {followed.login[0]}")
    followed.rows("CREATE TABLE shop.items (id int)")

    with pytest.raises(UsageError, match="exists in the target and was not created"):
        followed.apply([Item(1, 1, 100)])


def test_copies_of_all_shards_make_a_table_whole(followed: Followed) -> None:
    """The target says itself whether a table has all rows, and at which time."""
    query = "SELECT state, complete_at_us FROM _shardstream.tables"
    followed.apply([Item(1, 1, 100)])
    assert followed.rows(query) == [("following", None)]
    followed.database.stage([changes([])])
    followed.apply([], ended_copies=("-80",))
    assert followed.rows(query) == [("following", None)]
    followed.apply([], ended_copies=("80-",))
    assert followed.rows(query) == [("complete", 3000)]
