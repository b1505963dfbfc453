"""What others do to the tables of a second database while nothing follows."""

from dataclasses import replace
from typing import Any

import pytest

from event_token import KeyRange
from event_token.errors import UsageError
from sinks.database.database import SqlDatabase
from sinks.database.urls import left_tables
from sinks.database.verification import ComparedTarget, VerifyTarget
from tests.sinks.database.followed import (
    ITEMS,
    ON_MARIADB_TOO,
    Followed,
    Item,
    batch,
    changes,
)
from topics.records.table_shape import Column, ValueKind

PRICE = Column("price", ValueKind.DECIMAL, "decimal(9,5)", precision=9, scale=5)
ITEMS_TABLE = ("shop", "items")


@pytest.mark.parametrize(
    ("target_server", "renames"),
    [
        ("postgres", ()),
        ("postgres", (("-80", "amount", "price"),)),
        ("mysql_a", (("-80", "amount", "price"),)),
        ("mariadb_a", ()),
    ],
    indirect=["target_server"],
)
def test_a_column_that_somebody_added_is_not_taken(
    followed: Followed, renames: tuple[tuple[str, str, str], ...]
) -> None:
    """The source gets a column of the name, or one gets the name: the message says whose it is."""
    followed.apply([Item(1, 1, 100, amount=7)])
    followed.rows("ALTER TABLE shop.items ADD COLUMN Price decimal(9,1)")
    columns = ITEMS.columns[:3] if renames else ITEMS.columns
    price = replace(ITEMS.columns[3], name="price") if renames else PRICE
    shape = replace(ITEMS, columns=(*columns, price))

    for _ in range(2):  # nothing of a first try lets a second one pass
        with pytest.raises(UsageError, match=r"items.* a column 'price' that was not made for"):
            followed.apply([Item(1, 2, 200, more={"price": 1})], shape=shape, renames=renames)
        followed.number -= 1

    followed.rows("ALTER TABLE shop.items DROP COLUMN Price")
    followed.apply([Item(2, 3, 300)], shape=shape, renames=renames)
    assert followed.rows("SELECT id, price FROM shop.items ORDER BY id") == [
        (1, 7 if renames else None),
        (2, None),
    ]


@ON_MARIADB_TOO
def test_a_batch_that_ended_behind_its_alters_is_run_again(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column gets a name, another one gets the name it had, and the target does not know yet."""
    followed.apply([Item(1, 1, 100, amount=7)])
    price = replace(ITEMS.columns[3], name="price")
    shape = replace(ITEMS, columns=(*ITEMS.columns[:3], price, ITEMS.columns[3]))
    more: dict[str, Any] = {"shape": shape, "renames": (("-80", "amount", "price"),)}

    with monkeypatch.context() as patch:
        patch.setattr(followed.database._catalog, "set_shape", _die)
        with pytest.raises(Died):
            followed.apply([Item(2, 2, 200, amount=1, more={"price": 2})], **more)
    followed.number -= 1
    followed.apply([Item(2, 2, 200, amount=1, more={"price": 2})], **more)

    found = followed.rows("SELECT id, price, amount FROM shop.items ORDER BY id")
    assert found == [(1, 7, None), (2, 2, 1)]


class Died(Exception):  # noqa: N818 - what happened to the driver
    """Raised where the driver is killed."""


def _die(*_: object) -> None:
    raise Died


@ON_MARIADB_TOO
def test_a_table_that_was_left_out_is_not_followed_again(followed: Followed) -> None:
    """Its rows lack the changes of the time between, so the run that names it again is refused."""

    def left_by(*tables: str) -> tuple[tuple[str, str], ...]:
        return left_tables(followed.url, replace(followed.options, tables=tables))

    followed.apply([Item(1, 1, 100, note="a")])
    assert left_by() == ()
    assert left_by(".".join(ITEMS_TABLE)) == ()
    left = left_by("shop.users")
    assert left == (ITEMS_TABLE,)

    # A run that has not applied anything has left nothing out.
    assert left_by() == ()
    other = SqlDatabase(followed.url, replace(followed.options, left=left))
    assert other.apply_arrow(batch(1), [])

    for tables in ((), (".".join(ITEMS_TABLE),)):
        with pytest.raises(UsageError, match=r"left out shop.items .*homes_1.*delete its row"):
            left_by(*tables)
    assert left_by("shop.users") == (ITEMS_TABLE,)
    assert followed.rows("SELECT state FROM _shardstream.tables") == [("left",)]
    session = ComparedTarget(VerifyTarget(followed.url, followed.options.follower))
    assert session.chosen([]) == {}
    with pytest.raises(UsageError, match=r"does not follow shop\.items any more"):
        session.chosen([ITEMS_TABLE])

    # What the message says.
    followed.rows("DROP TABLE shop.items")
    followed.rows("DROP TABLE _shardstream.homes_1")
    followed.rows("DELETE FROM _shardstream.tables WHERE source_table = 'items'")
    assert left_by() == ()
    assert followed.database.apply_arrow(batch(2), [changes([Item(2, 5, 300, note="b")])])
    assert followed.rows("SELECT id, note FROM shop.items") == [(2, "b")]


def test_the_key_range_cannot_change(followed: Followed) -> None:
    """Rows of the keys that are new in the range would be missing, and no position tells."""
    options = replace(followed.options, follower="part", key_range=KeyRange.parse("-40"))
    SqlDatabase(followed.url, options).prepare()

    for other in ("-", "-80"):
        wider = replace(options, key_range=KeyRange.parse(other))
        with pytest.raises(UsageError, match="cannot go on with"):
            SqlDatabase(followed.url, wider).prepare()
