"""The servers behind the fixtures are real, distinct, and set as the producers need."""

import os
import signal

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from event_token import Flavor
from shardstream.local import database_server
from shardstream.local.database_server import DatabaseConnection
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.stopped_process import stop
from tests.topics.shard_writer import TIMEOUT_S
from tests.waiting import wait_for
from topics.kafka.client import Deadline


def _ask(database: DatabaseFixture, sql: str, **arguments: object) -> tuple[object, ...]:
    with database.connect(**arguments) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        row = cursor.fetchone()
    assert row is not None
    return tuple(row)


def test_server_settings_suit_the_producer(database: DatabaseFixture) -> None:
    """Both families log full rows with full metadata."""
    assert _ask(database, "SELECT @@binlog_format, @@binlog_row_image, @@binlog_row_metadata") == (
        "ROW",
        "FULL",
        "FULL",
    )


def test_replication_account_has_exactly_its_grants(database: DatabaseFixture) -> None:
    """The account can read binlogs, tables and the server's own state, and nothing else."""
    login = {"user": database.user, "password": database.password}

    (grants,) = _ask(database, "SHOW GRANTS", **login)

    granted = (
        str(grants)
        .split("GRANT ")[1]
        .split(" ON ")[0]
        .replace("BINLOG MONITOR", "REPLICATION CLIENT")
    )
    wanted = {"SELECT", "PROCESS", "REPLICATION SLAVE", "REPLICATION CLIENT"}
    if database.flavor is Flavor.MARIADB:
        wanted.add("SLAVE MONITOR")
    assert set(granted.split(", ")) == wanted


def test_two_mysql_servers_are_two(mysql_a: DatabaseFixture, mysql_b: DatabaseFixture) -> None:
    """Servers made from one data folder template differ in what identifies them."""
    identity = "SELECT @@server_uuid, @@server_id, @@port"

    first, second = _ask(mysql_a, identity), _ask(mysql_b, identity)

    assert all(one != other for one, other in zip(first, second, strict=True))


def test_a_server_that_answers_late_is_asked_again(
    mysql_a: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes a connection and then stands still does not serve yet, which is no error."""
    server, connect = mysql_a.server, mysql_a.server.connect
    pid = server.pid
    assert pid is not None

    def connect_and_stop(**arguments: object) -> DatabaseConnection:
        connection = connect(**arguments)
        stop(pid)
        return connection

    try:
        with monkeypatch.context() as patch:
            patch.setattr(database_server, "ANSWER_S_MAX", 0.5)
            patch.setattr(server, "connect", connect_and_stop)
            assert not server.serves()
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for("it serves", server.serves)


def test_starting_server_leaves_the_temporary_tables_of_others(
    mariadb_a: DatabaseFixture, start_mariadb: StartServer
) -> None:
    """A MariaDB deletes what it finds in its folder for temporary tables when it starts."""
    name = mariadb_a.new_database()
    with mariadb_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE t(id INT) ENGINE=Aria")
        start_mariadb()
        cursor.execute("FLUSH TABLES")
        cursor.execute("INSERT INTO t VALUES (1)")
        cursor.execute("DROP TEMPORARY TABLE t")


def test_broker_carries_a_record(kafka: KafkaCluster, keyspace: str) -> None:
    """A consumer reads what a producer writes."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(keyspace, 1, 1)])[keyspace].result()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(keyspace, b"value")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": keyspace,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([keyspace])

    deadline = Deadline(TIMEOUT_S)
    while (message := consumer.poll(1)) is None or message.error() is not None:
        assert not deadline.passed
    consumer.close()

    assert message.value() == b"value"
