"""What only executors in processes of their own can show; one cluster for all cases."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres_servers import PostgresFixture
from tests.spark_consumers.current_state.query.sales import Sales
from tests.spark_consumers.current_state.query.states import (
    history_at,
    on_a_cluster,
    rows_of,
    table_at,
)
from tests.spark_consumers.executor_kills import is_executor, is_worker, killing
from tests.spark_consumers.local_cluster import LocalCluster
from tests.spark_consumers.second_database.cluster_case import follow
from tests.spark_consumers.shop import SHARDS, Change, Shop
from tests.spark_consumers.sink_query.seen_rows import seen_rows
from tests.spark_consumers.table_topics.topic_queries import read_topic, rows_written
from tests.topics.shard_writer import CELL_US
from topics.records.vevent import Row

PARTITIONS = 4
KEYS = 40


@pytest.fixture(scope="module")
def cluster(real_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two executors, each with one core."""
    started = LocalCluster(tmp_path_factory.mktemp("cluster"))
    yield started
    started.close()


def order(number: int, note: str) -> Row:
    return {"id": number, "note": note, "price": None}


def test_a_task_sees_all_changes_of_its_keys_and_all_statements(
    cluster: LocalCluster, shop: Shop, tmp_path: Path
) -> None:
    """Changes of a key from all shards meet in one task, a moved key's in two; DDL in each."""
    for step in range(3):
        for shard in SHARDS:
            # Each key is on both shards; in the last step it changes on both.
            images = [(order(key, f"{step - 1}"), order(key, f"{step}")) for key in range(KEYS)]
            if step == 0:
                images = [({}, after) for _, after in images]
            elif step == 2:
                images = [(old, {**new, "id": 100 + i}) for i, (old, new) in enumerate(images)]
            changes = [Change(shop.now_us, old or None, new) for old, new in images]
            statement = Change(shop.now_us, statement=f"ALTER TABLE orders COMMENT '{step}'")
            shop.writers[shard].write([*changes, statement])
        shop.now_us += CELL_US
    for writer in shop.writers.values():
        writer.promise(shop.now_us)

    rows = cluster.run(
        seen_rows,
        folder=str(tmp_path),
        options=shop.options(maxRowsPerBatch="100"),
        partitions=PARTITIONS,
    )

    tasks_of_key = defaultdict(set)
    routes = defaultdict(list)
    for row in rows:
        place = (row["shard"], row["seq"])
        routes[place].append(row["route"])
        assert row["task"] == row["route"] % PARTITIONS
        if row["type"] == "ROW":
            assert row["route"] in {row["key_hash"], row["old_key_hash"]}
            tasks_of_key[row["route"]].add(row["task"])
    assert {len(tasks) for tasks in tasks_of_key.values()} == {1}
    assert len(tasks_of_key) == 2 * KEYS
    assert {task for tasks in tasks_of_key.values() for task in tasks} == set(range(PARTITIONS))
    for shard in SHARDS:
        for seq in range(1, 3 * (KEYS + 1) + 1):
            found = routes.pop((shard, seq))
            if seq % (KEYS + 1) == 0:
                assert sorted(found) == list(range(PARTITIONS))
            else:
                is_moved = seq > 2 * (KEYS + 1)
                assert len(set(found)) == len(found) == (2 if is_moved else 1)
    assert routes == {}
    assert len({row["batch"] for row in rows}) > 1


def test_table_topics_are_written_by_executors_of_their_own(
    cluster: LocalCluster, shop: Shop, tmp_path: Path
) -> None:
    """F30: After kill -9 of tasks on two machines every change is in the topic once."""
    shop.write(60)
    options = shop.options(maxRowsPerBatch="50")

    first = cluster.run(rows_written, folder=str(tmp_path), options=options)
    shop.write(10)
    with killing(cluster.process.pid, is_worker, 2) as killed:
        second = cluster.run(rows_written, folder=str(tmp_path), options=options)
    assert len(killed) == 2

    ids = [record.key["id"] for record in read_topic(shop.config, f"{shop.keyspace}.shop.orders")]
    assert (first, second) == (120, 140)
    assert len(ids) == len(set(ids)) == 140


def test_executors_keep_the_current_state(
    cluster: LocalCluster, shop: Shop, tmp_path: Path
) -> None:
    """F30: After kill -9 of a task and, in the second run, an executor the true rows are there."""
    sales = Sales(shop, seed=6)
    cluster_pid = cluster.process.pid
    offsets = tmp_path / "checkpoint" / "offsets"
    for executors in range(2):
        batches = len(list(offsets.glob("[0-9]*")))
        sales.go_on(40)

        def is_in_second_batch(before: int = batches) -> bool:
            return len(list(offsets.glob("[0-9]*"))) > before + 1

        with (
            killing(cluster_pid, is_worker, 1, is_in_second_batch),
            killing(cluster_pid, is_executor, executors, is_in_second_batch) as killed,
        ):
            rows = cluster.run(
                on_a_cluster,
                folder=str(tmp_path),
                keyspace=shop.keyspace,
                options=shop.options(maxRowsPerBatch="15"),
            )

        assert len(killed) == executors
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
