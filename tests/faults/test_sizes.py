"""Rows of a hundred megabytes, and a backlog that grows while Kafka is away."""

import random
import signal
from dataclasses import replace

import pytest

from event_token import Flavor, Halt
from producers.settings import ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.faults.listeners import ListeningCluster
from tests.faults.processes import sizes_kb
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    ProducerProcess,
    RunningProducer,
    check_log,
    limited,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.topics.shard_writer import limit_messages, provision
from tests.topics.subscribing import taken
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import open_range, read_tail
from topics.kafka.topic_settings import RECORD_BYTES_MIN
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.schemas import open_schema_ids
from topics.stream.subscriber import StreamSubscriber

MIB = 1024 * 1024
ROW_BYTES_MAX = 96 * MIB
LIMIT_BYTES = 112 * MIB
BACKLOG_ROWS = 18_000
ROW_BYTES = 16_000  # 288 MB in all
# The queue to Kafka has 112 MB, and the binlog is read in chunks of 16.
RSS_KB_MAX = 330 * 1024
# What limits the depth of a recursive query.
RECURSION = {Flavor.MYSQL: "cte_max_recursion_depth", Flavor.MARIADB: "max_recursive_iterations"}
# The client waits up to ten seconds before it tries again.
TRIES = 3


@pytest.mark.full
@pytest.mark.parametrize("flavor", [Flavor.MYSQL, Flavor.MARIADB], ids=str)
def test_rows_of_a_hundred_megabytes(
    request: pytest.FixtureRequest, kafka: KafkaCluster, keyspace: str, flavor: Flavor
) -> None:
    """F19: rows beyond the topic's limit go in parts; one beyond our own stops the shard by name.

    The parts of the first one take several offsets; a producer that resumes behind them finds its
    place, and readers get it whole.
    """
    start_server: StartServer = request.getfixturevalue(f"start_{flavor}")
    database = start_server(("--max-allowed-packet=256M",))
    name = database.new_database()
    settings = limited(settings_of(database, kafka, keyspace), LIMIT_BYTES)
    provision(settings.kafka, keyspace, [settings.shard])
    limit_messages(settings.kafka, ShardTopics(keyspace, settings.shard).log, 8 * MIB)
    statements(database, f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v LONGTEXT)")
    with producing(settings):
        statements(database, f"INSERT INTO {name}.t VALUES (1, 'small')")
        # In one session. Random digits: zstd leaves half of them.
        statements(
            database,
            f"SET SESSION group_concat_max_len = {ROW_BYTES_MAX}",
            f"SET SESSION {RECURSION[flavor]} = {ROW_BYTES_MAX}",
            f"INSERT INTO {name}.t WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 "
            f"FROM n WHERE i < {ROW_BYTES_MAX // 2048}) SELECT 2, GROUP_CONCAT(HEX("
            "RANDOM_BYTES(1024)) SEPARATOR '') FROM n",
            f"INSERT INTO {name}.t VALUES (3, 'between')",
        )
        wait_caught_up(settings)
    producer = RunningProducer(settings)
    producer.wait_streaming()
    statements(
        database,
        f"INSERT INTO {name}.t VALUES (4, REPEAT('y', {ROW_BYTES_MAX}))",
        f"INSERT INTO {name}.t VALUES (5, REPEAT('z', {LIMIT_BYTES}))",
    )
    error = producer.wait_error()
    log = read_log(settings)
    parts = {each.seq: each.parts for progress in log.progress for each in progress.in_parts}
    with StreamSubscriber(keyspace, start="earliest", config=settings.kafka) as stream:
        rows = [event for event in taken(stream, len(log.events)) if event.after]

    assert isinstance(error, Halt)
    for said in ("in transaction", f"{name}.t (id=5)", str(LIMIT_BYTES), "record_bytes_max"):
        assert said in str(error)
    sizes = [5, ROW_BYTES_MAX, 7, ROW_BYTES_MAX]
    assert [len(str((event.after or {})["v"])) for event in log.events if event.after] == sizes
    assert [len(str((event.after or {})["v"])) for event in rows] == sizes
    large, repetitive = (event.seq for event in rows[1::2])
    assert parts[large] >= ROW_BYTES_MAX // 2 // (8 * MIB)
    assert parts[repetitive] == 2
    assert log.progress[-1].last_seq == log.events[-1].seq


def test_a_producer_killed_between_parts_leaves_none_of_them(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F19: a record of which some parts are stored is not seen; its successor writes it once."""
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace)
    log_topic = ShardTopics(keyspace, settings.shard).log
    provision(settings.kafka, keyspace, [settings.shard])
    limit_messages(settings.kafka, log_topic, RECORD_BYTES_MIN)
    statements(mysql_a, f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v LONGTEXT)")
    with producing(settings):
        statements(mysql_a, f"INSERT INTO {name}.t VALUES (1, 'small')")
        wait_caught_up(settings)
    text = random.Random(1).randbytes(6 * MIB).hex()
    with mysql_a.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {name}.t VALUES (2, %s)", (text,))
    assert ProducerProcess(settings, kill_at="first_stored").wait() == -signal.SIGKILL
    assert open_range(settings.kafka, log_topic, 0) is not None
    with producing(settings):
        wait_caught_up(settings)
    log = read_log(settings)

    check_log(log)
    rows = {event.after["id"]: event.after["v"] == text for event in log.events if event.after}
    assert rows == {1: False, 2: True}
    assert sum(each.parts for progress in log.progress for each in progress.in_parts) >= 6


@pytest.mark.full
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
