import pyarrow as pa
import pytest

from sinks.rule.statements import TableName
from sinks.table_topics.task_rows import check_truncates, is_among
from tests.sinks.rule.batches import Source, change, routed, statement
from topics.errors import CannotApply

ORDERS = TableName("shop", "orders")


def batch(text: str, *, rows_before: bool) -> pa.Table:
    """A batch of a row of shop.orders and a statement, in either order."""
    seqs = (1, 2) if rows_before else (2, 1)
    row = change("-80", seqs[0], 100, None, {"id": 1, "value": 1})
    events = [row, statement("-80", seqs[1], 100, text)]
    return routed(Source().rows(sorted(events, key=lambda event: event.seq)), 1, 0)


@pytest.mark.parametrize(
    "text",
    ["TRUNCATE orders", "DROP TABLE IF EXISTS shop.orders", "DROP DATABASE shop"],
)
@pytest.mark.parametrize(("has_topic", "rows_before"), [(True, False), (False, True)])
def test_a_statement_that_empties_a_table_stops(
    text: str, *, has_topic: bool, rows_before: bool
) -> None:
    """The table has a topic, or will have one with the rows that come before in the batch."""
    with pytest.raises(CannotApply, match=r"shop\.(orders|\*), shard -80, seq [12]: "):
        check_truncates(batch(text, rows_before=rows_before), (), lambda _: has_topic)


@pytest.mark.parametrize(
    ("text", "tables", "topics"),
    [
        ("TRUNCATE orders", ("shop.items",), {ORDERS}),
        ("DROP DATABASE shop", ("other.items",), {TableName("shop", None)}),
        ("DROP TABLE _orders_del", (), {TableName("shop", "_orders_del")}),
        ("RENAME TABLE orders TO _orders_del, _orders_gho TO orders", (), {ORDERS}),
        ("CREATE TABLE orders (id INT)", (), {ORDERS}),
        ("DROP TABLE orders", (), set()),
    ],
)
def test_other_statements_do_not(
    text: str, tables: tuple[str, ...], topics: set[TableName]
) -> None:
    """Tables that are not written, the tables of an online schema change, a table without rows."""
    check_truncates(batch(text, rows_before=False), tables, topics.__contains__)


@pytest.mark.parametrize(
    ("what", "found"),
    [
        (ORDERS, True),
        (TableName("shop", None), True),
        (TableName("shop", "order"), False),
        (TableName("sho", None), False),
    ],
)
def test_tables_are_found_by_name_or_database(what: TableName, *, found: bool) -> None:
    """Whole names only."""
    assert is_among(what, ("other.items", "shop.orders")) is found
