import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark_consumers.log_writer import NewRow
from tests.spark_consumers.shop import CELL_US, ORDERS, T0_US, Shop

WAIT_S = 120.0


def run_available(stream: Any, checkpoint: Path) -> list[list[Any]]:
    """Run a query over what is there; return its batches' rows in merged order."""
    batches: list[list[Any]] = []

    def collect(frame: DataFrame, _batch_id: int) -> None:
        batches.append(frame.orderBy("timestamp_us", "shard", "offset").collect())

    query = (
        stream.writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return batches


def order_of(rows: list[Any]) -> list[tuple[int, str, int]]:
    """The merged order of rows."""
    return [(row.timestamp_us, row.shard, row.offset) for row in rows]


def seqs(rows: list[Any]) -> dict[str, list[int]]:
    """The seqs of each shard, as they came."""
    return {s: [r.seq for r in rows if r.shard == s] for s in sorted({r.shard for r in rows})}


def test_batches_are_bounded_disjoint_and_whole(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Option maxRowsPerBatch bounds each batch; together they are every row once, in order."""
    shop.write(60)

    batches = run_available(shop.stream(spark, maxRowsPerBatch="50"), tmp_path)

    rows = [row for batch in batches for row in batch]
    assert len(batches) >= 3
    assert max(map(len, batches)) <= 50
    assert order_of(rows) == sorted(order_of(rows))
    assert seqs(rows) == {"-80": list(range(1, 61)), "80-": list(range(1, 61))}
    assert {row.late for row in rows} == {False}


def test_restart_goes_on_from_the_checkpoint(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """A second run reads what has come since, and nothing again; a third one finds nothing."""
    shop.write(20)
    first = run_available(shop.stream(spark), tmp_path)
    shop.write(15)
    second = run_available(shop.stream(spark), tmp_path)
    third = run_available(shop.stream(spark), tmp_path)

    assert seqs([row for batch in first for row in batch])["-80"] == list(range(1, 21))
    assert seqs([row for batch in second for row in batch])["80-"] == list(range(21, 36))
    assert third == []


def test_silent_shard_holds_back_only_what_is_ahead_of_it(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Rows beyond the frontier wait for the shard that is behind."""
    shop.write(10)
    shop.write(10, shards=("-80",))

    held = run_available(shop.stream(spark), tmp_path)
    shop.writers["80-"].heartbeat(shop.now_us)
    released = run_available(shop.stream(spark), tmp_path)

    assert seqs([r for b in held for r in b]) == {
        "-80": list(range(1, 11)),
        "80-": list(range(1, 11)),
    }
    assert seqs([r for b in released for r in b]) == {"-80": list(range(11, 21))}


def test_big_ranges_are_split_over_tasks(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """A shard's range is read by several tasks, each row once, whatever bounds are chosen."""
    shop.write(25_000, shards=("-80",), chunk=5_000)
    shop.writers["80-"].heartbeat(shop.now_us)

    frame = shop.batch(spark, maxRowsPerTask="11000", columns="shard,seq,offset,timestamp_us")
    rows = frame.collect()

    assert frame.rdd.getNumPartitions() >= 2
    assert seqs(rows) == {"-80": list(range(1, 25_001))}


def test_batch_read_between_times(spark: SparkSession, shop: Shop) -> None:
    """spark.read has the rows of [start, end) by their token's time."""
    shop.write(50)

    rows = shop.batch(spark, start=str(T0_US + CELL_US), end=str(T0_US + 3 * CELL_US)).collect()

    assert seqs(rows) == {"-80": list(range(11, 31)), "80-": list(range(11, 31))}


def test_typed_table(spark: SparkSession, shop: Shop) -> None:
    """With option table the images are structs with the table's own types."""
    after = {"id": 7, "note": "x", "price": Decimal("12.50")}
    shop.writers["-80"].commit(
        [
            NewRow(T0_US, ORDERS, after=after),
            NewRow(T0_US + 1, None, statement="CREATE TABLE other (id INT)"),
        ]
    )
    for writer in shop.writers.values():
        writer.heartbeat(T0_US + CELL_US)

    rows = shop.batch(spark, table="shop.orders", columns="seq,before,after,op").collect()

    assert [row.asDict(recursive=True) for row in rows] == [
        {"before": None, "after": after, "op": "INSERT", "seq": 1}
    ]


def test_statement_and_json_text(spark: SparkSession, shop: Shop) -> None:
    """Without option table the images are JSON text, and statements come too."""
    shop.writers["-80"].commit(
        [
            NewRow(T0_US, ORDERS, after={"id": 7, "note": None, "price": Decimal("12.50")}),
            NewRow(T0_US + 1, None, statement="CREATE TABLE other (id INT)"),
        ]
    )
    for writer in shop.writers.values():
        writer.heartbeat(T0_US + CELL_US)

    rows = shop.batch(spark).orderBy("seq").collect()

    assert [(row.type, row.after, row.key, row.statement) for row in rows] == [
        ("ROW", '{"id":7,"note":null,"price":"12.50"}', "[7]", None),
        ("DDL", None, None, "CREATE TABLE other (id INT)"),
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"colums": "seq"}, "unknown options colums"),
        ({"table": "orders"}, "not database.table"),
        ({"table": "shop.missing"}, "no row of shop.missing"),
        ({"mode": "max_hold"}, "maxHoldMs"),
        ({"start": "nonsense"}, "not a stream position"),
    ],
)
def test_bad_options_are_named(
    spark: SparkSession, shop: Shop, more: dict[str, str], message: str
) -> None:
    """What cannot work is said in words before anything is read."""
    with pytest.raises(PySparkException, match=message):
        shop.batch(spark, **more).collect()


def test_max_hold_goes_on_and_marks_late_rows(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """A silent shard is left out after maxHoldMs; what it logs later comes once, marked late."""
    shop.write(10)
    late_us = shop.now_us
    shop.write(10, shards=("-80",))
    rows: list[Any] = []
    query = (
        shop.stream(spark, mode="max_hold", maxHoldMs="300")
        .writeStream.foreachBatch(lambda frame, _batch_id: rows.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        wait_until(lambda: len(rows) == 30, query)
        shop.writers["80-"].commit([NewRow(late_us, ORDERS, after={"id": 1, "note": None})])
        wait_until(lambda: len(rows) == 31, query)
    finally:
        query.stop()

    assert seqs(rows) == {"-80": list(range(1, 21)), "80-": list(range(1, 12))}
    assert [(row.shard, row.seq) for row in rows if row.late] == [("80-", 11)]


def wait_until(is_so: Callable[[], bool], query: StreamingQuery) -> None:
    """Poll a condition while a query runs."""
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline_s, query.lastProgress
        time.sleep(0.1)
