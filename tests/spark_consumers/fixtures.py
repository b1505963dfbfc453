"""One Spark session for all tests that use Spark: starting one takes longer than most tests."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from shardstream.local.kafka_cluster import KafkaCluster
from spark_consumers.session import build_session
from tests.spark_consumers.shop import Shop


@pytest.fixture(scope="session")
def spark(real_servers: None) -> Iterator[SparkSession]:
    """A local session with both formats."""
    session = build_session(
        "tests",
        "local[2]",
        {
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    yield session
    session.stop()


@pytest.fixture
def shop(kafka: KafkaCluster, keyspace: str) -> Iterator[Shop]:
    """A keyspace of two shards whose logs are empty."""
    made = Shop(kafka.bootstrap_servers, keyspace)
    yield made
    made.close()
