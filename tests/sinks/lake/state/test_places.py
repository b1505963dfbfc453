"""Which tables a query keeps, where they lie, and what it says when one was taken away."""

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from event_token.errors import Halt, UsageError
from sinks.lake.delta.stored_table import create_table
from sinks.lake.state.layout import TablePlace, place_of
from spark_consumers.state import parse_options
from tests.sinks.lake.delta.lake_rows import SCHEMA
from tests.sinks.lake.state.batch_queries import Query, visible
from tests.sinks.rule.batches import ORDERS, Source, change, statement
from topics.errors import CannotApply

NAMES = (
    "or der",
    "a%b",
    "a%20b",
    "a@2Fb",
    "ü😀",
    "a/b",
    "a#b?",
    "a~b",
    "x:*",
    "..",
    "_shardstream",
)


@pytest.mark.parametrize("name", NAMES)
def test_tables_of_any_name_can_be_read(tmp_path: Path, name: str) -> None:
    """Any name of a database or table makes a folder of its own that delta-rs reads."""
    place = TablePlace(str(tmp_path / "state"), name, name)
    create_table(place.visible, {}, SCHEMA, 1)

    assert pa.table(DeltaTable(place.visible).scan()).num_rows == 0
    assert place_of(place.target, place.name) == place
    assert Path(place.visible).resolve().parent.parent == tmp_path / "state"
    assert place.visible != TablePlace(place.target, "", name).hidden


def test_only_tables_that_are_kept_concern_the_query(tmp_path: Path) -> None:
    """A RENAME of another table does not stop the query; a table that is named is kept."""
    source = Source()
    query = Query(tmp_path, source)
    query.choose(tables=("shop.orders", "shop._orders_old"))
    old = replace(ORDERS, table="_orders_old")
    events = [
        change("-80", 1, 100, None, {"id": 1, "value": 7}),
        statement("-80", 2, 110, "RENAME TABLE goods TO items"),
        change("-80", 3, 120, None, {"id": 2, "value": 8}, shape=old),
    ]
    query.run(source.rows(events))

    assert visible(tmp_path) == {"[1]": 7}
    rows = pa.table(DeltaTable(str(tmp_path / "shop" / "_orders_old")).scan())
    assert rows["id"].to_pylist() == [2]
    renamed = statement("-80", 4, 130, "RENAME TABLE orders TO items")
    with pytest.raises(CannotApply, match=r"shop\.orders, .* Start a new target from a copy"):
        query.run(source.rows([renamed]))


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_table_that_was_removed_is_not_begun_again(tmp_path: Path, *, is_restored: bool) -> None:
    """A table that is gone, or of an earlier version, stops the query: it would lack rows."""
    source = Source()
    query = Query(tmp_path, source)
    folder = tmp_path / "shop" / "orders"
    query.run(source.rows([change("-80", 1, 100, None, {"id": 1, "value": 7})]))
    shutil.copytree(folder, tmp_path / "copy")
    query.run(source.rows([change("-80", 2, 200, None, {"id": 2, "value": 8})]))
    shutil.rmtree(folder)
    if is_restored:
        shutil.copytree(tmp_path / "copy", folder)

    with pytest.raises(Halt, match="restored to version 1" if is_restored else "was removed"):
        query.run(source.rows([change("-80", 3, 300, None, {"id": 3, "value": 9})]))


def test_a_table_is_named_with_its_database() -> None:
    """A name without a database would keep nothing."""
    options = {"path": "t", "checkpointLocation": "c", "tables": '["orders"]'}
    with pytest.raises(UsageError, match=r"'orders': name a table as database\.table"):
        parse_options(options)
