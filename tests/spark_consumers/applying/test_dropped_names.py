"""Columns that get the name of a dropped one, which a sink's table still has."""

import pytest

from spark_consumers.applying.changes import KnownTable
from spark_consumers.applying.evolution import check_renames
from spark_consumers.errors import ShapeConflict
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
