"""Which tables and statements belong to online schema changes."""

import pytest

from sinks.rule.policy import is_shadow_table
from sinks.rule.statements import swap_of


@pytest.mark.parametrize(
    "name",
    ["_orders_gho", "_orders_ghc", "_orders_del", "_orders_new", "_orders_old", "__orders_old"],
)
def test_tables_of_online_schema_changes(name: str) -> None:
    """gh-ost and pt-online-schema-change name their tables after the one that they change."""
    assert is_shadow_table(name)


@pytest.mark.parametrize("name", ["orders", "orders_new", "_orders", "_new", "_orders_gho_2", "__"])
def test_other_tables(name: str) -> None:
    """Other names are those of tables like any other."""
    assert not is_shadow_table(name)


@pytest.mark.parametrize(
    ("statement", "refilled", "emptied"),
    [
        (
            "rename /* gh-ost */ table s.`orders` to s._orders_del, s.`_orders_gho` to s.orders",
            ["orders"],
            [],
        ),
        ("RENAME TABLE `s`.`orders` TO s._orders_old, s._orders_new TO s.orders", ["orders"], []),
        ("RENAME TABLE s._orders_gho TO s.orders, s.orders TO s._orders_del", ["orders"], []),
        ("rename /* gh-ost */ table `s`.`orders` to `s`.`_orders_del`", [], ["orders"]),
        ("rename /* gh-ost */ table `s`.`_orders_gho` to `s`.`orders`", ["orders"], []),
        ("RENAME TABLE `s`.`_orders_new` TO `s`.`orders`", ["orders"], []),
        ("alter /* gh-ost */ table `s`.`orders` rename `s`.`_orders_del`", [], ["orders"]),
        ("alter /* gh-ost */ table `s`.`_orders_gho` rename to `s`.`orders`", ["orders"], []),
    ],
)
def test_the_swap_of_a_shadow_table(
    statement: str, refilled: list[str], emptied: list[str]
) -> None:
    """The table is renamed away, and its copy gets its name: in one statement or two."""
    found = swap_of(statement, "shop")

    assert found is not None
    assert [table.table for table in found.refilled] == refilled
    assert [table.table for table in found.emptied] == emptied
    assert {table.database for table in (*found.refilled, *found.emptied)} == {"s"}


@pytest.mark.parametrize(
    "statement",
    [
        "RENAME TABLE orders TO sales, _orders_gho TO orders",
        "RENAME TABLE orders TO _orders_del, _lines_gho TO orders",
        "RENAME TABLE orders TO _orders_del, hr._orders_gho TO orders",
        "RENAME TABLE orders TO _orders_del, _orders_gho TO orders, a TO b",
        "ALTER TABLE _orders_gho RENAME orders, ADD COLUMN c INT",
        "ALTER TABLE _orders_gho RENAME COLUMN a TO b",
        "RENAME USER a TO b",
        "DROP TABLE _orders_del",
    ],
)
def test_other_statements(statement: str) -> None:
    """A table that is renamed in any other way has other rows afterwards."""
    assert swap_of(statement, "shop") is None
