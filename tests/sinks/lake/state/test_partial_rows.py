"""Row images that lack columns, where no stored row has their values."""

import itertools
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sinks.rule.policy import OnPartial
from tests.sinks.lake.state.batch_queries import Query
from tests.sinks.rule.batches import ORDERS, Source, change
from topics.errors import CannotApply
from topics.records.table_shape import Column, ValueKind

HOME = b"\x10"
NOTES = replace(ORDERS, columns=(*ORDERS.columns, Column("note", ValueKind.STRING, "varchar(10)")))
# Row 1 is deleted and changed again, row 2 is known, row 3 is not.
LOG = [
    change("-80", 1, 100, None, {"id": 1, "value": 1, "note": "a"}, ids=(None, HOME), shape=NOTES),
    change("-80", 2, 100, None, {"id": 2, "value": 2, "note": "b"}, ids=(None, HOME), shape=NOTES),
    change("-80", 3, 200, {"id": 1, "value": 1, "note": "a"}, None, ids=(HOME, None), shape=NOTES),
    *(
        change("-80", 3 + i, 300, {"id": i}, {"id": i, "note": "c"}, ids=(HOME, HOME), shape=NOTES)
        for i in (1, 2, 3)
    ),
]


@pytest.mark.parametrize(
    "cuts", [each for n in range(4) for each in itertools.combinations((2, 3, 4), n)]
)
def test_columns_that_no_stored_row_has_may_become_null(
    tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    """However the log is cut into batches; by default the query stops, and then goes on."""
    query = Query(tmp_path, Source())
    rows = query.source.rows(LOG)
    with pytest.raises(
        CannotApply, match=r"key \[1\], shard -80, seq 4: .*--partial insert-nulls.*--table"
    ):
        query.run(rows)
    query.choose(on_partial=OnPartial.INSERT_NULLS)
    for begin, end in itertools.pairwise((0, *cuts, len(rows))):
        query.run(rows[begin:end])

    found = pa.table(DeltaTable(str(tmp_path / "shop" / "orders")).scan()).to_pylist()
    assert {row["id"]: (row["value"], row["note"]) for row in found} == {
        1: (None, "c"),
        2: (2, "c"),
        3: (None, "c"),
    }
