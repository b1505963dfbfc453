"""Columns that get the name of a dropped one, which a sink's table still has."""

from dataclasses import replace

import pytest

from sinks.rule.columns import KnownTable, check_renames
from tests.sinks.rule.batches import Source, change, statement
from topics.errors import ShapeConflict
from topics.records.table_shape import Column, TableShape, ValueKind

BOTH = TableShape(
    "shop", "items", tuple(Column(n, ValueKind.INT, "int") for n in ("id", "price", "new")), (0,)
)


def test_the_name_of_a_dropped_column_is_refused() -> None:
    """DROP COLUMN price, RENAME COLUMN new TO price: stored rows have the old price under it."""
    with pytest.raises(ShapeConflict, match="shard 80-: column 'new' was renamed to 'price'"):
        check_renames(KnownTable(BOTH), [("80-", "new", "price")])


def test_a_rename_that_another_shard_repeats_is_not_refused() -> None:
    """RENAME price TO new and ADD price: the other shard does the same later."""
    check_renames(KnownTable(BOTH, {"price": "new"}), [("80-", "price", "new")])


def test_a_chain_of_renames_is_not_refused() -> None:
    """RENAME price TO old, then RENAME new TO price."""
    check_renames(KnownTable(BOTH), [("-80", "price", "old"), ("-80", "new", "price")])


@pytest.mark.parametrize("first", ["DROP COLUMN price", "RENAME COLUMN price TO old"])
def test_a_batch_with_rows_from_before_both_is_refused(first: str) -> None:
    """A new target, whose first batch has rows, the two ALTERs of such a column, and more rows."""
    events = [
        change("-80", 1, 100, None, {"id": 1, "price": 5, "new": 6}, shape=BOTH),
        statement("-80", 2, 110, f"ALTER TABLE items {first}"),
        statement("-80", 3, 120, "ALTER TABLE items RENAME COLUMN new TO price"),
    ]

    with pytest.raises(
        ShapeConflict, match="shard -80, seq 3: column 'new' was renamed to 'price'"
    ):
        Source().changes(events)


def test_a_name_that_is_given_again_after_a_rename_is_not_refused() -> None:
    """RENAME price TO new, then ADD price: rows that have both came after the rename."""
    before, after = (replace(BOTH, columns=BOTH.columns[:2]), BOTH)
    events = [
        change("-80", 1, 100, None, {"id": 1, "price": 5}, shape=before),
        statement("-80", 2, 110, "ALTER TABLE items RENAME COLUMN price TO new"),
        statement("-80", 3, 120, "ALTER TABLE items ADD COLUMN price INT"),
        change("-80", 4, 130, None, {"id": 2, "price": 7, "new": 6}, shape=after),
    ]

    [found] = Source().changes(events)

    rows = found.rows.select(["id", "price", "new"]).to_pylist()
    assert sorted(map(repr, rows)) == [
        "{'id': 1, 'price': None, 'new': 5}",
        "{'id': 2, 'price': 7, 'new': 6}",
    ]
