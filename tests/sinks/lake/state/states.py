"""Runs the current state in tests, and reads its tables."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from sinks.lake.state.options import StateOptions
from spark_consumers.sink_query import SinkProgress
from spark_consumers.state import run_state
from tests.spark_consumers.shop import Shop

KEPT = ("_key", "_home", "_shard", "_seq", "_time_us")
HISTORY = {"shop.orders": ()}


def run_now(spark: SparkSession, shop: Shop, folder: Path, **more: Any) -> SinkProgress:
    """Apply what is on Kafka to the target `state` of a folder."""
    return run_state(
        spark,
        shop.keyspace,
        str(folder / "state"),
        str(folder / "checkpoint"),
        shop.options(),
        StateOptions(**more),
        trigger="availableNow",
    )


def on_a_cluster(spark: SparkSession, folder: str, keyspace: str, options: dict[str, str]) -> int:
    """Apply what is on Kafka; return the number of rows (a case of `local_cluster`)."""
    places = (f"{folder}/state", f"{folder}/checkpoint")
    return run_state(
        spark,
        keyspace,
        *places,
        options,
        StateOptions(history=HISTORY, partitions=4, buckets=8),
        trigger="availableNow",
    ).rows


def table_at(folder: Path, name: str = "shop/orders", version: int | None = None) -> pa.Table:
    """Return the visible rows of a table, read by delta-rs."""
    table = DeltaTable(str(folder / "state" / name), version=version)
    return pa.table(table.scan())


def history_at(folder: Path, time_us: int | None) -> dict[int, dict[str, Any]]:
    """Return the rows as of a time by id, of the history that delta-rs reads; None: the open ones.

    The rows have the table's own columns.
    """
    table = DeltaTable(str(folder / "state" / "_shardstream_history" / "shop" / "orders"))
    condition = "_to_us IS NULL"
    if time_us is not None:
        condition = f"_from_us <= {time_us} AND ({condition} OR {time_us} < _to_us)"
    query = QueryBuilder().register("history", table)
    found = pa.table(query.execute(f"SELECT * FROM history WHERE {condition}"))
    own = [name for name in found.column_names if not name.startswith("_")]
    return rows_of(found.select(own))


def rows_of(table: pa.Table) -> dict[int, dict[str, Any]]:
    """Return the rows by id, without the columns that keep the order."""
    own = table.drop_columns([name for name in KEPT if name in table.column_names])
    rows = own.to_pylist()
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found
