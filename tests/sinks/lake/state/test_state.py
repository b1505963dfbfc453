"""The current state: present rows of all shards in one table, after everything that can happen."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from event_token.errors import UsageError
from sinks.lake.state.frontiers import Frontiers
from spark_consumers.state import HistorySink, state_frame
from tests.sinks.lake.state.sales import Sales
from tests.sinks.lake.state.states import (
    HISTORY,
    history_at,
    rows_of,
    run_now,
    table_at,
)
from tests.spark_consumers.patience import patiently
from tests.spark_consumers.shop import Shop

pytestmark = pytest.mark.full

QUERY_S_MAX = 300


def test_random_changes_on_two_shards_leave_the_true_rows(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Rows that are inserted, updated, deleted and moved between shards whose clocks differ.

    After each run the table has one row per key, that of the databases; the frontiers name the
    versions that belong together. The history has the rows of each moment.
    """
    sales = Sales(shop, seed=1)
    moments = []
    for _ in range(2):
        sales.go_on(35)
        moments.append((sales.settled_us, sales.expected()))
        run_now(spark, shop, tmp_path, history=HISTORY)

        found = rows_of(table_at(tmp_path))
        assert found == sales.expected() == history_at(tmp_path, None)
        for at_us, rows in moments:
            assert history_at(tmp_path, at_us) == rows

    newest = Frontiers(str(tmp_path / "state"), {}).newest()
    assert newest is not None
    assert newest.rows == {"shop/orders": len(found)}
    then = table_at(tmp_path, version=newest.tables["shop/orders"])
    assert rows_of(then) == sales.expected()


def test_a_query_of_ones_own_keeps_a_history(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Format `shardstream_history` has the table's rows, and those of each moment."""
    sales = Sales(shop, seed=5)
    sales.go_on(10)
    first_us, first = sales.settled_us, sales.expected()
    sales.go_on(10)
    rows = state_frame(spark, shop.keyspace, shop.options(), ["shop.orders"], token=True)
    writer = (
        rows.writeStream.format("shardstream_history")
        .option("path", str(tmp_path / "state"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("kafka.bootstrap.servers", shop.bootstrap_servers)
        .option("table", "shop.orders")
        .trigger(availableNow=True)
    )

    assert patiently(lambda: writer.start().awaitTermination(QUERY_S_MAX))

    assert rows_of(table_at(tmp_path)) == sales.expected() == history_at(tmp_path, None)
    assert history_at(tmp_path, first_us) == first
    several = HistorySink({"path": "lake", "table": "shop.orders", "tables": "[]"})
    with pytest.raises(UsageError, match="shardstream_history: set option table to one table"):
        several.streamWriter(rows.schema, overwrite=False)
