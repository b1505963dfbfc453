"""A primary key whose DECIMAL gets another precision or scale."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.sinks.lake.state.batch_queries import Query, visible
from tests.sinks.rule.batches import Source
from tests.spark_consumers.changed_keys import FINER, FIRST, OTHERS, REFUSED, WIDER
from topics.errors import ShapeConflict


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
    query.choose(tables=OTHERS)
    query.run(rows)

    assert visible(tmp_path) == {"[1]": 1, "[2]": 2, "[3]": 3}
    prices = pa.table(DeltaTable(str(tmp_path / "shop" / "prices")).scan())
    assert prices["note"].to_pylist() == ["b"]
