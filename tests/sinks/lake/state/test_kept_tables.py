"""A target whose query is started again with other tables."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from event_token.errors import UsageError
from sinks.lake.state.frontiers import Frontiers, table_as_of
from tests.sinks.lake.state.batch_queries import Query, visible
from tests.sinks.rule.batches import Source, change
from tests.spark_consumers.changed_keys import FINER, FIRST, OTHERS, WIDER
from topics.errors import ShapeConflict

PRICES, ORDERS = "shop.prices", "shop.orders"
LATER = (change("-80", 7, 700, {"id": 1, "value": 1}, {"id": 1, "value": 9}),)
NEWEST_US = 2**62


def test_a_table_that_a_run_left_out_is_not_followed_again(tmp_path: Path) -> None:
    """It lacks the changes of that run: it is named, and nobody reads it as of a later time."""
    query = Query(tmp_path, Source())
    query.run_until_done(query.source.rows(FIRST))
    before_us = query.position.frontier_us
    query.choose(tables=OTHERS)
    query.run(query.source.rows(WIDER))
    query.choose(tables=())

    with pytest.raises(UsageError, match=r"left out shop\.prices, .* \(--table shop\.orders\)"):
        query.run(query.source.rows(LATER))
    with pytest.raises(UsageError, match=r"had no table shop\.prices then; it had: shop\.orders"):
        table_as_of(str(tmp_path), "shop.prices", NEWEST_US)
    assert table_as_of(str(tmp_path), "shop.prices", before_us).rows.num_rows == 1
    query.choose(tables=OTHERS)
    query.run(query.source.rows(LATER))

    assert visible(tmp_path) == {"[1]": 9, "[2]": 2}
    newest = Frontiers(str(tmp_path), {}).newest()
    assert newest is not None
    assert newest.left_out == {"shop/prices"}
    assert not [name for name in newest.tables if "prices" in name]


def test_a_table_that_stops_the_query_is_left_out_with_its_history(tmp_path: Path) -> None:
    """Its history cannot go on either, and must not keep the other tables from it."""
    query = Query(tmp_path, Source())
    query.choose(history={PRICES: (), ORDERS: ()})
    query.run_until_done(query.source.rows(FIRST))
    rows = query.source.rows(FINER)
    with pytest.raises(ShapeConflict, match=r"shop\.prices: the primary key"):
        query.run(rows)

    query.choose(tables=OTHERS, history={})
    with pytest.raises(UsageError, match=r"history of shop\.orders.*pass --history shop\.orders"):
        query.run(rows)
    query.choose(history={ORDERS: ()})
    query.run(rows)

    assert visible(tmp_path) == {"[1]": 1, "[3]": 3}
    versions = DeltaTable(str(tmp_path / "_shardstream_history" / "shop" / "orders"))
    assert versions.version() > 1


def test_a_table_that_a_target_never_had_may_join(tmp_path: Path) -> None:
    """A copy brings all of its rows, so nothing is missing."""
    query = Query(tmp_path, Source())
    query.choose(tables=OTHERS)
    query.run_until_done(query.source.rows(FIRST))
    query.choose(tables=(*OTHERS, PRICES))
    query.run(query.source.rows(WIDER))

    assert table_as_of(str(tmp_path), "shop.prices", NEWEST_US).rows.num_rows == 1
