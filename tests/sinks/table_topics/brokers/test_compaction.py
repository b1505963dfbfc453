import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sinks.table_topics.positions import marker_partition
from tests.sinks.table_topics.brokers.altered import compacting, keys_of
from tests.sinks.table_topics.moving_orders import MovingOrders
from tests.sinks.table_topics.topic_queries import (
    PARTITIONS,
    last_rows,
    read_topic,
    topic_options,
    write_topics,
)
from tests.spark_consumers.shop import Shop
from tests.waiting import wait_for
from topics.kafka.provisioning import provision_positions_topic, provision_table_topics
from topics.names import POSITIONS_TOPIC

pytestmark = pytest.mark.full

STEPS = 50


def test_compaction_leaves_one_record_per_living_row_and_the_positions(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Updates, deletes, changed keys and moves; then a lost checkpoint, and the same again."""
    orders = MovingOrders(shop, seed=8)
    config, topic = shop.config, f"{shop.keyspace}.shop.orders"
    tasks = range(topic_options(shop.keyspace).tasks)
    markers = {marker_partition(shop.keyspace, shop.keyspace, task) for task in tasks}
    provision_positions_topic(config)
    provision_table_topics(config, [topic], PARTITIONS, None)

    def is_compacted() -> bool:
        rows = keys_of(config, topic, range(PARTITIONS))
        positions = keys_of(config, POSITIONS_TOPIC, markers)
        return len(rows) == len(set(rows)) and len(positions) == len(set(positions))

    with compacting(config, topic, POSITIONS_TOPIC):
        for _ in range(2):
            orders.run(STEPS)
            done = write_topics(spark, shop, tmp_path)
            wait_for("it is compacted", is_compacted)
            shutil.rmtree(tmp_path / "checkpoint")

            records = read_topic(config, topic)
            assert len(records) < done.rows
            assert last_rows(records).keys() == orders.rows.keys()
            living = [record.key["id"] for record in records if record.value is not None]
            assert sorted(living) == sorted(orders.rows)
            notes = {key: row["note"] for key, row in last_rows(records).items()}
            assert notes == {key: row["note"] for key, (_, row) in orders.rows.items()}
