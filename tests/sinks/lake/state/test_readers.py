"""What readers see of the current state: delta-rs, delta-spark, a replay of the change log."""

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from event_token.errors import UsageError
from sinks.lake.change_log.reading import check_changelog, replay_changelog
from sinks.lake.state.frontiers import maintain_state, table_as_of
from tests.shardstream.command_line import run
from tests.sinks.lake.state.delta_spark import Found, read_with_delta_spark
from tests.sinks.lake.state.sales import Sales
from tests.sinks.lake.state.states import rows_of, run_now, table_at
from tests.sinks.lake.state.versions import as_of
from tests.spark_consumers.queries import rows_of_batches
from tests.spark_consumers.shop import ORDERS, Shop

pytestmark = pytest.mark.full

# A table of its own: typed columns are those of the newest version, and tests share the broker.
SALES = replace(ORDERS, table="sales")
# As many replays of the change log; `test_any_time` compares all times, without Spark.
TIMES = 8


def test_readers_agree_row_by_row(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """delta-rs, delta-spark 4.4 on Spark 4.2 and a replay of the change log give the true rows.

    So does a user's own MERGE, also of rows that move between the shards. A table as of the first
    batch's frontier has that batch's rows, also after maintenance. The history has them at any
    time. With PySpark 4.2, the oldest supported version, the stream is read whole, batches are
    bounded, and the change log has each change once after a restart.
    """
    sales = Sales(shop, seed=3, shape=SALES)
    for _ in range(2):
        sales.go_on(30)
        run_now(spark, shop, tmp_path, history={"shop.sales": ()})
        if not sales.rows_then:
            sales.remember()
    path = str(tmp_path / "state" / "shop" / "sales")

    own_options = shop.options(table="shop.sales", maxRowsPerBatch="30")
    history = str(tmp_path / "state" / "_shardstream_history" / "shop" / "sales")
    by_spark = read_with_delta_spark([path], history, tmp_path / "read", own_options)
    log = str(tmp_path / "read" / "log")
    replayed = replay_changelog(log)["shop", "sales"].rows()

    expected = sales.expected()
    assert rows_of(table_at(tmp_path, "shop/sales")) == expected
    assert [rows_of(table) for table in by_spark.tables] == [expected, expected]
    assert {row["id"]: (row["note"], row["price"]) for row in replayed} == {
        key: (row["note"], str(row["price"])) for key, row in expected.items()
    }
    check_old_spark(by_spark, shop, tmp_path / "read")
    check_history(by_spark, history, log)
    check_earlier_state(tmp_path, sales)


def check_old_spark(by_spark: Found, shop: Shop, folder: Path) -> None:
    """The batch read and the change log have the whole stream, the log in bounded batches."""
    written = [(s, seq) for s, each in shop.writers.items() for seq in range(1, each.seq + 1)]
    read = [(row["shard"], row["seq"]) for row in by_spark.read.to_pylist()]
    batches = rows_of_batches(folder / "checkpoint")
    report = check_changelog(str(folder / "log"))

    assert sorted(read) == sorted(written)
    assert (report.changes, report.lost, report.repeated) == (len(written), 0, 0)
    assert report.out_of_order == 0
    assert sum(batches) == len(written)
    assert max(batches) <= 30


def check_history(by_spark: Found, history: str, log: str) -> None:
    """delta-rs and delta-spark read the same versions: at any time, the rows of a replay.

    Those of the view have AUTO CDC's names.
    """
    versions = pa.table(DeltaTable(history).scan()).to_pylist()
    assert sorted(by_spark.history.to_pylist(), key=repr) == sorted(versions, key=repr)
    times = {row[name] for row in versions for name in ("_from_us", "_to_us")} - {None}
    for time_us in random.Random(4).sample(sorted(times), TIMES):
        replayed = replay_changelog(log, until_us=time_us + 1)["shop", "sales"].rows()
        assert {
            row["id"]: (row["note"], str(row["price"])) for row in as_of(versions, time_us).values()
        } == {row["id"]: (row["note"], row["price"]) for row in replayed}

    kept = [row for row in versions if row["_to_us"] != row["_from_us"]]
    expected = [(row["id"], row["_from_us"], row["_to_us"]) for row in kept]
    view = by_spark.view
    for name in ("__START_AT", "__END_AT"):
        microseconds = view[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        view = view.set_column(view.column_names.index(name), name, microseconds)
    assert view.column_names == ["id", "note", "price", "__START_AT", "__END_AT"]
    found = [(row["id"], row["__START_AT"], row["__END_AT"]) for row in view.to_pylist()]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def check_earlier_state(tmp_path: Path, sales: Sales) -> None:
    """The first batches' rows, by the Python function and by the command."""
    target = str(tmp_path / "state")
    maintain_state(target, tombstones_s=0, keep_s=3600)
    first_us = sales.then_us

    before = table_as_of(target, "shop.sales", first_us)
    assert before.frontier_us <= first_us
    assert rows_of(before.rows) == sales.rows_then
    done = run("state", "as-of", target, "shop.sales", "latest", "--to", str(tmp_path / "now"))
    assert f"{len(sales.rows)} rows of shop.sales, exact as of" in done.stdout, done.stderr
    assert run("state", "maintain", target).returncode == 0
    with pytest.raises(UsageError, match="its frontiers begin later"):
        table_as_of(target, "shop.sales", 1)
    with pytest.raises(UsageError, match=r"it had: shop\.sales"):
        table_as_of(target, "shop.items", first_us)
