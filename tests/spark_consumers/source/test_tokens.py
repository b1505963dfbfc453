"""Tasks of Spark on brokers that want tokens."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.listeners import ListeningCluster
from tests.faults.tokens import with_tokens
from tests.spark_consumers.patience import patiently
from tests.spark_consumers.shop import Shop

pytestmark = pytest.mark.full


@pytest.fixture
def listening(real_servers: None, tmp_path: Path) -> Iterator[ListeningCluster]:
    """A broker with a listener that takes tokens alone."""
    cluster = ListeningCluster(tmp_path / "listening")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        cluster.proxy.close()


def test_tasks_log_in_with_tokens_of_their_own(
    spark: SparkSession, listening: ListeningCluster, keyspace: str, tmp_path: Path
) -> None:
    """The command of the options runs in the processes of tasks too, and every row is read."""
    folder = tmp_path / "tokens"
    folder.mkdir()
    shop = Shop(listening.bootstrap_servers, keyspace)
    shop.write(30)
    settings = {f"kafka.{name}": text for name, text in with_tokens(listening, folder).items()}

    rows = patiently(shop.batch(spark, **settings).select("shard", "seq").collect)

    shop.close()
    assert sorted((row.shard, row.seq) for row in rows) == [
        (shard, seq) for shard in ("-80", "80-") for seq in range(1, 31)
    ]
    askers = set((folder / "askers").read_text().split())
    assert askers - {str(os.getpid())}
