"""A primary key whose DECIMAL gets another precision or scale."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_consumers.current_state.query.task import TaskTables
from spark_consumers.errors import ShapeConflict
from tests.spark_consumers.applying.batches import Source
from tests.spark_consumers.changed_keys import FINER, FIRST, OTHERS, REFUSED, WIDER
from tests.spark_consumers.current_state.query.batch_queries import PARTITIONS, Query, visible


def test_a_wider_key_is_followed_and_one_of_another_scale_leaves_the_others_to_go_on(
    tmp_path: Path,
) -> None:
    """Key changed: equal keys stay equal, or the table is named and the others go on without it."""
    query = Query(tmp_path, Source())
    query.run_until_done(query.source.rows(FIRST))
    query.run_until_done(query.source.rows(WIDER))
    rows = query.source.rows(FINER)

    with pytest.raises(ShapeConflict, match=REFUSED):
        query.run(rows)
    query.target = replace(query.target, tables=OTHERS)
    query.tasks = [TaskTables(query.target) for _ in range(PARTITIONS)]
    query.run(rows)

    assert visible(tmp_path) == {"[1]": 1, "[2]": 2, "[3]": 3}
    prices = pa.table(DeltaTable(str(tmp_path / "shop" / "prices")).scan())
    assert prices["note"].to_pylist() == ["b"]
