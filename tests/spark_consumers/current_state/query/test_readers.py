"""What readers see of the current state: delta-rs, delta-spark, a replay of the change log."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from event_token.errors import UsageError
from spark_consumers.change_log.replay import replay_changelog
from spark_consumers.current_state.query.as_of import table_as_of
from spark_consumers.current_state.query.frontiers import Frontiers
from spark_consumers.current_state.query.upkeep import maintain_state
from tests.shardstream.command_line import run
from tests.spark_consumers.current_state.history.versions import as_of
from tests.spark_consumers.current_state.query.delta_spark import Found, read_with_delta_spark
from tests.spark_consumers.current_state.query.sales import Sales
from tests.spark_consumers.current_state.query.states import rows_of, run_now, table_at
from tests.spark_consumers.queries import run_now as run_changelog_now
from tests.spark_consumers.shop import ORDERS, Shop

# A table of its own: typed columns are those of the newest version, and tests share the broker.
SALES = replace(ORDERS, table="sales")


def test_readers_agree_row_by_row(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """delta-rs, delta-spark 4.4 on Spark 4.2 and a replay of the change log give the true rows.

    So does a user's own MERGE, also of rows that move between the shards. A table as of the first
    batch's frontier has that batch's rows, also after maintenance; files without deletion vectors
    have the same rows. The history has them at any time.
    """
    sales = Sales(shop, seed=3, shape=SALES)
    for _ in range(2):
        sales.go_on(30)
        run_now(spark, shop, tmp_path, histories={"shop.sales": ()})
        if not sales.rows_then:
            sales.remember()
    (tmp_path / "plain").mkdir()
    run_now(spark, shop, tmp_path / "plain", deletion_vectors=False)
    run_changelog_now(spark, shop, tmp_path / "log")
    plain, path = (str(f / "state" / "shop" / "sales") for f in (tmp_path / "plain", tmp_path))

    own_options = shop.options(table="shop.sales", maxRowsPerBatch="60")
    history = str(tmp_path / "state" / "_shardstream_history" / "shop" / "sales")
    by_spark = read_with_delta_spark([path, plain], history, tmp_path / "read", own_options)
    replayed = replay_changelog(str(tmp_path / "log" / "log"))["shop", "sales"].rows()

    expected = sales.expected()
    assert rows_of(table_at(tmp_path, "shop/sales")) == expected
    assert [rows_of(table) for table in by_spark.tables] == [expected, expected, expected]
    assert {row["id"]: (row["note"], row["price"]) for row in replayed} == {
        key: (row["note"], str(row["price"])) for key, row in expected.items()
    }
    assert "deletionVectors" not in (DeltaTable(plain).protocol().reader_features or ())
    check_history(by_spark, history, str(tmp_path / "log" / "log"))
    check_earlier_state(tmp_path, sales)


def check_history(by_spark: Found, history: str, log: str) -> None:
    """delta-rs and delta-spark read the same versions: at any time, the rows of a replay.

    Those of the view have AUTO CDC's names.
    """
    versions = pa.table(DeltaTable(history).scan()).to_pylist()
    assert sorted(by_spark.history.to_pylist(), key=repr) == sorted(versions, key=repr)
    times = {row[name] for row in versions for name in ("_from_us", "_to_us")} - {None}
    for time_us in times:
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
    check_exact_times(target, str(tmp_path / "log" / "log"))

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


def check_exact_times(target: str, log: str) -> None:
    """Between two frontiers, a change log makes the rows exact to the microsecond."""
    frontiers = Frontiers(target, {})
    first, last = frontiers.first_at(0), frontiers.newest()
    assert first is not None
    assert last is not None
    begin_us, end_us = first.frontier_us, last.frontier_us
    times = [begin_us, *range(begin_us + 1, end_us, (end_us - begin_us) // 8), end_us - 1]
    for time_us in times:
        found = table_as_of(target, "shop.sales", time_us, changelog=log)
        rows = replay_changelog(log, until_us=time_us)["shop", "sales"].rows()

        assert found.frontier_us == time_us
        assert {
            key: (row["note"], str(row["price"])) for key, row in rows_of(found.rows).items()
        } == {row["id"]: (row["note"], row["price"]) for row in rows}
    at = datetime.fromtimestamp(times[3] / 1e6, tz=UTC).isoformat(timespec="microseconds")
    to = ("--to", f"{target}.parquet", "--changelog", log)
    done = run("state", "as-of", target, "shop.sales", at, *to)
    assert f"exact as of {at}" in done.stdout, done.stderr
    assert run("state", "as-of", target, "shop.sales", "latest", *to).returncode == 2
