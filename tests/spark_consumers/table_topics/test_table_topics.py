import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_consumers.errors import CannotApply, TargetConflict
from spark_consumers.table_topics.options import OnTruncate
from tests.spark_consumers.shop import ORDERS, Change, Shop
from tests.spark_consumers.table_topics.topic_queries import (
    PARTITIONS,
    last_rows,
    read_topic,
    topic_options,
    write_topics,
)
from tests.topics.shard_writer import CELL_US
from topics.kafka.provisioning import provision_table_topics
from topics.records.vevent import Row


def order(number: int, note: str = "") -> Row:
    """A row of shop.orders."""
    return {"id": number, "note": note, "price": None}


def promise(shop: Shop) -> None:
    """Let the frontier pass what is written."""
    shop.now_us += CELL_US
    for writer in shop.writers.values():
        writer.promise(shop.now_us)


def test_changes_of_all_shards_are_in_the_topic_once(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Inserts, updates, deletes and changed keys of two shards; then more, from the checkpoint."""
    left, right = shop.writers["-80"], shop.writers["80-"]
    now_us = shop.now_us
    left.write([Change(now_us, after=order(1)), Change(now_us, after=order(2))])
    right.write([Change(now_us + 1, after=order(3)), Change(now_us + 1, after=order(4))])
    promise(shop)
    first = write_topics(spark, shop, tmp_path)
    now_us = shop.now_us
    left.write([Change(now_us, order(1), order(1, "changed")), Change(now_us, order(2))])
    right.write([Change(now_us + 1, order(3), order(33))])
    promise(shop)

    second = write_topics(spark, shop, tmp_path)

    records = read_topic(shop.config, f"{shop.keyspace}.shop.orders")
    by_key: dict[int, list[object]] = {}
    for record in records:
        by_key.setdefault(record.key["id"], []).append(record.op)
    assert by_key == {1: ["c", "u"], 2: ["c", "d", None], 3: ["c", "d", None], 4: ["c"], 33: ["c"]}
    assert {key: row["note"] for key, row in last_rows(records).items()} == {
        1: "changed",
        4: "",
        33: "",
    }
    new = next(record for record in records if record.key["id"] == 33)
    assert new.headers == {"__debezium.oldkey": '{"id":3}'}
    assert (first.rows, second.rows) == (4, 10)


def test_a_lost_checkpoint_continues_where_the_topics_end(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Nothing is lost and nothing written twice, whatever start is asked for."""
    shop.write(20)
    write_topics(spark, shop, tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    shop.write(20)

    done = write_topics(spark, shop, tmp_path, maxRowsPerBatch="15")

    records = read_topic(shop.config, f"{shop.keyspace}.shop.orders")
    places = [tuple(record.value["source"]["sequence"].split(",")) for record in records]
    assert len(records) == len(set(places)) == done.rows == 80


def test_positions_that_are_gone_stop_the_query(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """The checkpoint has written batches that these topics do not know: a gap, not a new start."""
    shop.write(10)
    write_topics(spark, shop, tmp_path)
    shop.write(10)

    other = topic_options(shop.keyspace)
    other = replace(other, envelope=replace(other.envelope, prefix=f"{shop.keyspace}.other"))

    with pytest.raises(TargetConflict, match="of which the topics know nothing"):
        write_topics(spark, shop, tmp_path, topics=other)


def test_a_batch_that_spark_had_not_committed_writes_nothing_twice(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """The driver died after the tasks had committed: the batch runs again, and is dropped."""
    shop.write(20)
    first = write_topics(spark, shop, tmp_path)
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    shop.write(10)

    second = write_topics(spark, shop, tmp_path)

    records = read_topic(shop.config, f"{shop.keyspace}.shop.orders")
    keys = [record.key["id"] for record in records]
    assert (first.rows, second.rows) == (40, 60)
    assert len(keys) == len(set(keys)) == 60


def test_a_truncate_stops_until_records_are_to_be_kept(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """With `stop` nothing of the batch is written; with `keep` the next start goes on.

    A topic that another task of the first batch has created has no rows yet.
    """
    stop = topic_options(shop.keyspace, on_truncate=OnTruncate.STOP)
    provision_table_topics(shop.config, [f"{shop.keyspace}.shop.orders"], PARTITIONS, None)
    left, right = shop.writers["-80"], shop.writers["80-"]
    left.write(
        [Change(shop.now_us, statement="DROP TABLE orders"), Change(shop.now_us, after=order(1))]
    )
    promise(shop)
    first = write_topics(spark, shop, tmp_path, topics=stop)
    right.write([Change(shop.now_us, after=order(2))])
    left.write([Change(shop.now_us, statement="TRUNCATE TABLE shop.orders")])
    promise(shop)

    with pytest.raises(CannotApply, match=r"shop\.orders, shard -80, seq 3: .* stop"):
        write_topics(spark, shop, tmp_path, topics=stop)
    before = read_topic(shop.config, f"{shop.keyspace}.shop.orders")
    write_topics(spark, shop, tmp_path)

    after = read_topic(shop.config, f"{shop.keyspace}.shop.orders")
    assert first.rows == len(before) == 1
    assert last_rows(after).keys() == {1, 2}


def test_a_table_without_a_primary_key_is_refused_by_name(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Its messages would have no key; other tables can be named."""
    writer = shop.writers["-80"]
    keyless = replace(ORDERS, table="visits", primary_key=())
    writer.commit_events(
        [replace(writer.row(0, shape=shape), after=order(1)) for shape in (keyless, ORDERS)]
    )
    promise(shop)

    with pytest.raises(CannotApply, match=r"shop\.visits, .* has no primary key"):
        write_topics(spark, shop, tmp_path)
