"""Names of columns that differ in case, and columns that are renamed twice."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from tests.sinks.lake.state.batch_queries import Query
from tests.sinks.rule.batches import ORDERS, Source, change, statement
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import Row


def test_names_that_differ_in_case_are_one_column(tmp_path: Path) -> None:
    """MySQL takes `Note` and `note` for one column, and so does Delta, in every batch and task."""
    source = Source()
    query = Query(tmp_path, source)
    upper = replace(ORDERS, columns=(*ORDERS.columns, Column("Note", ValueKind.STRING, "text")))
    lower = replace(ORDERS, columns=(*ORDERS.columns, Column("note", ValueKind.STRING, "text")))
    shapes = [upper, lower] * 5
    query.run(source.rows([change("-80", 1, 90, None, {"id": 0, "value": 0})]))
    for first in (2, 12):
        events = [
            change("-80", first + i, 100 * first + i, None, row_of(i, shape), shape=shape)
            for i, shape in enumerate(shapes, start=first)
        ]
        query.run_until_done(source.rows(events))

    rows = pa.table(DeltaTable(str(tmp_path / "shop" / "orders")).scan()).to_pylist()
    assert {row["id"]: row.get("Note", row.get("note")) for row in rows} == {0: None} | {
        i: f"note {i}" for i in range(2, 22)
    }


def test_renames_in_one_batch(tmp_path: Path) -> None:
    """A column that is renamed twice keeps its values; a statement may spell it in another case."""
    source = Source()
    query = Query(tmp_path, source)
    query.run(source.rows([change("-80", 1, 100, None, {"id": 1, "value": 7})]))
    query.run_until_done(
        source.rows(
            [
                statement("-80", 2, 110, "ALTER TABLE orders RENAME COLUMN VALUE TO b"),
                statement("-80", 3, 120, "ALTER TABLE orders CHANGE B c BIGINT"),
                change("-80", 4, 130, None, {"id": 2, "c": 8}, shape=with_value("c")),
            ]
        )
    )

    rows = pa.table(DeltaTable(str(tmp_path / "shop" / "orders")).scan()).to_pylist()
    assert {row["id"]: row["c"] for row in rows} == {1: 7, 2: 8}


def test_a_rename_that_is_taken_back_in_one_batch(tmp_path: Path) -> None:
    """Rows from before, between and after it have their values in the one column, in one run."""
    source = Source()
    query = Query(tmp_path, source)
    query.run(source.rows([change("-80", 1, 100, None, {"id": 1, "value": 7})]))
    query.run(
        source.rows(
            [
                statement("-80", 2, 110, "ALTER TABLE orders RENAME COLUMN value TO b"),
                change("-80", 3, 120, None, {"id": 2, "b": 8}, shape=with_value("b")),
                statement("-80", 4, 130, "ALTER TABLE orders RENAME COLUMN b TO Value"),
                statement("-80", 5, 140, "ALTER TABLE orders RENAME COLUMN Value TO value"),
                change("-80", 6, 150, None, {"id": 3, "value": 9}),
            ]
        )
    )

    rows = pa.table(DeltaTable(str(tmp_path / "shop" / "orders")).scan()).to_pylist()
    assert {row["id"]: row["value"] for row in rows} == {1: 7, 2: 8, 3: 9}


def row_of(number: int, shape: TableShape) -> Row:
    """A row that has a note."""
    return {"id": number, "value": number, shape.columns[-1].name: f"note {number}"}


def with_value(name: str) -> TableShape:
    """The table with another name of its second column."""
    return replace(ORDERS, columns=(ORDERS.columns[0], replace(ORDERS.columns[1], name=name)))
