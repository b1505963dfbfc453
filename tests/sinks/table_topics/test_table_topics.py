import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sinks.table_topics.options import OnTruncateTopic
from tests.sinks.table_topics.topic_queries import (
    PARTITIONS,
    last_rows,
    read_topic,
    topic_options,
    write_topics,
)
from tests.spark_consumers.shop import Change, Shop
from tests.topics.shard_writer import CELL_US
from topics.errors import CannotApply
from topics.kafka.provisioning import provision_table_topics
from topics.records.vevent import Row

pytestmark = pytest.mark.full


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
    """Inserts, updates, deletes and changed keys of two shards, whatever Spark loses.

    A DROP TABLE passes a topic without rows, which another task of the first batch has created.
    A batch that ran before its driver died runs again, and is dropped. With `stop` nothing of the
    batch of a TRUNCATE is written; with `keep` the next start goes on. A lost checkpoint continues
    where the topics end, whatever start is asked for.
    """
    topic = f"{shop.keyspace}.shop.orders"
    stop = topic_options(shop.keyspace, on_truncate=OnTruncateTopic.STOP)
    provision_table_topics(shop.config, [topic], PARTITIONS, None)
    left, right = shop.writers["-80"], shop.writers["80-"]
    now_us = shop.now_us
    left.write([Change(now_us, statement="DROP TABLE orders")])
    left.write([Change(now_us, after=order(1)), Change(now_us, after=order(2))])
    right.write([Change(now_us + 1, after=order(3)), Change(now_us + 1, after=order(4))])
    promise(shop)
    first = write_topics(spark, shop, tmp_path, topics=stop)
    now_us = shop.now_us
    left.write([Change(now_us, order(1), order(1, "changed")), Change(now_us, order(2))])
    right.write([Change(now_us + 1, order(3), order(33))])
    promise(shop)

    second = write_topics(spark, shop, tmp_path, topics=stop)

    records = read_topic(shop.config, topic)
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

    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    right.write([Change(shop.now_us, after=order(5))])
    left.write([Change(shop.now_us, statement="TRUNCATE TABLE shop.orders")])
    promise(shop)
    with pytest.raises(CannotApply, match=r"shop\.orders, shard -80, seq 6: .* stop"):
        write_topics(spark, shop, tmp_path, topics=stop)
    assert read_topic(shop.config, topic) == records

    kept = write_topics(spark, shop, tmp_path)

    after = read_topic(shop.config, topic)
    assert len(after) == kept.rows == 11
    assert last_rows(after).keys() == {1, 4, 5, 33}

    shutil.rmtree(tmp_path / "checkpoint")
    left.write([Change(shop.now_us, after=order(n)) for n in range(6, 16)])
    right.write([Change(shop.now_us + 1, after=order(n)) for n in range(16, 26)])
    promise(shop)

    done = write_topics(spark, shop, tmp_path, maxRowsPerBatch="12")

    found = read_topic(shop.config, topic)
    assert len(found) == done.rows == 31
    assert last_rows(found).keys() == {1, 4, 33, *range(5, 26)}
