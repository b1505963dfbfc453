"""What only executors in processes of their own can show; one cluster for all cases."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.postgres_servers import PostgresFixture
from tests.sinks.database.cluster_case import follow
from tests.sinks.lake.state.sales import Sales
from tests.sinks.lake.state.states import (
    history_at,
    on_a_cluster,
    rows_of,
    table_at,
)
from tests.sinks.table_topics.topic_queries import read_topic, rows_written
from tests.spark_consumers.executor_kills import is_executor, is_worker, killing
from tests.spark_consumers.local_cluster import LocalCluster
from tests.spark_consumers.shop import Shop

pytestmark = pytest.mark.full

KEYS = 40


@pytest.fixture(scope="module")
def cluster(real_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two executors, each with one core."""
    started = LocalCluster(tmp_path_factory.mktemp("cluster"))
    yield started
    started.close()


def in_second_batch(folder: Path) -> Callable[[], bool]:
    """Whether the second batch of the checkpoint of a folder is planned."""
    return (folder / "checkpoint" / "offsets" / "1").exists


def test_table_topics_are_written_by_executors_of_their_own(
    cluster: LocalCluster, shop: Shop, tmp_path: Path
) -> None:
    """F30: After kill -9 of tasks on two machines every change is in the topic once."""
    shop.write(60)
    options = shop.options(maxRowsPerBatch="50")

    with killing(cluster.process.pid, is_worker, 2, in_second_batch(tmp_path)) as killed:
        written = cluster.run(rows_written, folder=str(tmp_path), options=options)

    ids = [record.key["id"] for record in read_topic(shop.config, f"{shop.keyspace}.shop.orders")]
    assert len(killed) == 2
    assert written == 120
    assert len(ids) == len(set(ids)) == 120


def test_executors_keep_the_current_state(
    cluster: LocalCluster, shop: Shop, tmp_path: Path
) -> None:
    """F30: After kill -9 of a task and an executor the true rows are there."""
    sales = Sales(shop, seed=6)
    sales.go_on(60)
    pid, is_time = cluster.process.pid, in_second_batch(tmp_path)
    with (
        killing(pid, is_worker, 1, is_time) as workers,
        killing(pid, is_executor, 1, is_time) as executors,
    ):
        rows = cluster.run(
            on_a_cluster,
            folder=str(tmp_path),
            keyspace=shop.keyspace,
            options=shop.options(maxRowsPerBatch="15"),
        )

    assert (len(workers), len(executors)) == (1, 1)
    assert rows == len(sales.rows)
    assert rows_of(table_at(tmp_path)) == sales.expected() == history_at(tmp_path, None)


def test_executors_stage_and_the_driver_applies(
    cluster: LocalCluster, shop: Shop, postgres: PostgresFixture, tmp_path: Path
) -> None:
    """Connections, decoders and passwords reach executors of their own."""
    name = postgres.new_database()
    url = postgres.url(name, *postgres.new_login(name))
    shop.write(KEYS)

    applied = cluster.run(
        follow,
        keyspace=shop.keyspace,
        url=url,
        checkpoint=str(tmp_path / "checkpoint"),
        options=shop.options(),
    )

    assert applied == 2 * KEYS
    with postgres.connect(name) as connection:
        assert connection.execute("SELECT count(*) FROM shop.orders").fetchone() == (2 * KEYS,)
