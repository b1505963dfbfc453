"""Rows of a hundred megabytes, and a backlog that grows while Kafka is away."""

from dataclasses import replace

from event_token import Halt
from producers.settings import ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.faults.listeners import ListeningCluster
from tests.faults.processes import sizes_kb
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    ProducerProcess,
    RunningProducer,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
    wait_for,
)
from topics.kafka.client import RECORD_BYTES_MAX, ClientConfig
from topics.kafka.partition_reader import read_tail
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.schemas.registry import open_schema_ids

# The record's envelope takes some hundred bytes.
LARGEST_BYTES = RECORD_BYTES_MAX - 4096
BACKLOG_ROWS = 24_000
ROW_BYTES = 16_000  # 384 MB in all
# The queue to Kafka has 112 MB, and the binlog is read in chunks of 16.
RSS_KB_MAX = 330 * 1024
# The client waits up to ten seconds before it tries again.
TRIES = 3


def test_rows_of_a_hundred_megabytes(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """F19: the largest row that Kafka takes goes through; a larger one stops the shard by name."""
    database = start_mysql(("--max-allowed-packet=256M",))
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    statements(database, f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v LONGTEXT)")
    producer = RunningProducer(settings)
    producer.wait_streaming()
    statements(
        database,
        f"INSERT INTO {name}.t VALUES (1, 'small')",
        f"INSERT INTO {name}.t VALUES (2, REPEAT('y', {LARGEST_BYTES}))",
        f"INSERT INTO {name}.t VALUES (3, REPEAT('z', {RECORD_BYTES_MAX}))",
    )
    error = producer.wait_error()
    log = read_log(settings)

    assert isinstance(error, Halt)
    for said in ("in transaction", f"{name}.t", str(RECORD_BYTES_MAX)):
        assert said in str(error)
    assert [len(str(e.after["v"])) for e in log.events if e.after] == [5, LARGEST_BYTES]
    assert log.progress[-1].last_seq == log.events[-1].seq


def test_backlog_of_an_outage_stays_on_the_server(
    mysql_a: DatabaseFixture, healed: ListeningCluster, keyspace: str
) -> None:
    """F06: while Kafka is away memory is bounded and the position is kept; then all is written."""
    name = mysql_a.new_database()
    direct = settings_of(mysql_a, healed, keyspace)
    proxied = replace(direct, kafka=ClientConfig({"bootstrap.servers": healed.proxied}))
    topics = ShardTopics(keyspace, direct.shard)
    statements(
        mysql_a,
        f"CREATE TABLE {name}.t (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR({ROW_BYTES}))",
        f"INSERT INTO {name}.t (v) VALUES ('first')",
    )
    with producing(direct):
        wait_caught_up(direct)
    producer = ProducerProcess(proxied)
    try:
        producer.wait_line("streaming")
        # With the table's schema registered, rows fill the queue to Kafka.
        statements(mysql_a, f"INSERT INTO {name}.t (v) VALUES ('second')")
        wait_caught_up(direct)
        rows = BACKLOG_ROWS // 8
        for number in range(8):
            statements(
                mysql_a,
                f"SET SESSION cte_max_recursion_depth = {rows}",
                f"INSERT INTO {name}.t (v) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL "
                f"SELECT i + 1 FROM n WHERE i < {rows}) SELECT REPEAT('x', {ROW_BYTES}) FROM n",
            )
            if number == 0:
                healed.proxy.refuse()
        proxy, accepted = healed.proxy, healed.proxy.accepted
        wait_for("they are tried", lambda: proxy.accepted > accepted + TRIES, said=producer.said)
        before = last_position(direct, topics)
        wait_for("and again", lambda: proxy.accepted > accepted + 2 * TRIES)
        assert last_position(direct, topics) == before
        proxy.heal()
        wait_caught_up(direct)
        peak_kb = sizes_kb(producer.pid)["VmHWM"]
        assert producer.end() == 0
    finally:
        producer.kill()
    last = read_tail(direct.kafka, topics.progress).last

    assert peak_kb < RSS_KB_MAX, f"{peak_kb} kB"
    assert last is not None
    assert decode_progress(last.value, open_schema_ids(direct.kafka, None)).last_seq >= BACKLOG_ROWS


def last_position(settings: ShardProducerSettings, topics: ShardTopics) -> str:
    """The committed position."""
    last = read_tail(settings.kafka, topics.progress).last
    assert last is not None
    return decode_progress(last.value, open_schema_ids(settings.kafka, None)).position
