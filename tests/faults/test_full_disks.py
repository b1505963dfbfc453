"""The disk of a broker, or of the database, is full."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardstream.local.database_server import (
    NOT_DURABLE,
    MariadbServer,
)
from shardstream.local.kafka_cluster import KafkaBroker, KafkaCluster
from tests.database_servers import DatabaseFixture, own_account
from tests.faults.disks import filled, free_bytes, small_disk
from tests.producers.session.producing import producing, settings_of, wait_caught_up
from tests.producers.session.workload import Workload, check_all
from tests.waiting import wait_for
from topics.kafka.client import open_admin
from topics.names import ShardTopics

MB = 1 << 20
# A MySQL data folder has 100 MB; tmpfs takes no memory for what is not written.
SERVER_DISK_BYTES = 400 * MB
# Room for what a broker writes before its disk is filled up.
SPARE_BYTES = 64 * MB
LEFT_BYTES = MB // 2
# Hardly a page of a table, or a segment of a binlog or log, fits into less.
FULL_BYTES = 64 * 1024
# Between transactions: what is left is to be written full soon.
FAST_S = 0.005


@contextmanager
def on_small_disk(broker: KafkaBroker) -> Iterator[Path]:
    """A broker whose data lies on a small disk for the duration of a block, which it outlives."""
    data, aside = broker.folder / "data", broker.folder / "aside"
    broker.stop()
    data.rename(aside)
    used = sum(each.stat().st_blocks * 512 for each in aside.rglob("*") if each.is_file())
    try:
        with small_disk(data, used + SPARE_BYTES) as disk:
            shutil.copytree(aside, disk, dirs_exist_ok=True)
            broker.start()
            yield disk
            broker.stop()
            shutil.rmtree(aside)
            shutil.copytree(disk, aside)
    finally:
        broker.kill()
        data.rmdir()
        aside.rename(data)
        broker.start()


@pytest.mark.full
def test_full_disk_of_a_broker(
    mysql_a: DatabaseFixture, kafka3: KafkaCluster, keyspace: str
) -> None:
    """F08: the leader of the log runs out of disk; the stream goes on with two, later with it."""
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka3, keyspace)
    log = ShardTopics(keyspace, settings.shard).log
    with producing(settings):
        wait_caught_up(settings)
    admin = open_admin(settings.kafka)
    leader = admin.list_topics(log, timeout=30).topics[log].partitions[0].leader
    [broker] = [each for each in kafka3.brokers if each.node_id == leader]
    with on_small_disk(broker) as disk, producing(settings) as producer:
        with Workload(mysql_a, name, pause_s=FAST_S) as load:
            wait_for("rows went through", lambda: producer.rows > 50)
            with filled(disk, LEFT_BYTES):
                wait_for("the broker gives up", lambda: broker.pid is None)
                seen = load.committed
                wait_for("the load goes on", lambda: load.committed > seen + 50)
                rows = producer.rows
                wait_for("so does the log", lambda: producer.rows > rows + 50)
            broker.start()
            rows = producer.rows
            wait_for("rows go on", lambda: producer.rows > rows + 50)
        wait_caught_up(settings)

    check_all(settings, mysql_a, name)


def test_full_disk_of_the_database(
    real_servers: None, kafka: KafkaCluster, keyspace: str, tmp_path: Path
) -> None:
    """F15: writes fail or hang on a full disk, the server dies: the log has what it committed."""
    with small_disk(tmp_path / "disk", SERVER_DISK_BYTES) as disk:
        server = MariadbServer(
            disk / "server",
            server_id=9301,
            account=own_account(),
            extra_args=NOT_DURABLE,
            die_with_parent=True,
        )
        try:
            server.start()
            database = DatabaseFixture(server)
            name = database.new_database()
            settings = settings_of(database, kafka, keyspace)
            with producing(settings) as producer:
                with Workload(database, name, pause_s=FAST_S) as load:
                    wait_for("rows went through", lambda: producer.rows > 50)
                    with filled(disk, LEFT_BYTES):
                        wait_for("the disk is full", lambda: free_bytes(disk) < FULL_BYTES)
                        server.kill()
                    server.start()
                    seen = load.committed
                    wait_for("the load goes on", lambda: load.committed > seen + 50)
                wait_caught_up(settings)
            check_all(settings, database, name)
        finally:
            server.kill()
