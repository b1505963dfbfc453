"""Outages and transactions beyond Kafka's limits end with a clear error and without loss."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from event_token import Halt
from producers import publisher
from producers.session import supervisor
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    RunningProducer,
    check_log,
    check_progress,
    producing,
    read_log,
    replay,
    settings_of,
    table_rows,
    wait_caught_up,
    wait_noted,
)
from tests.topics.shard_writer import limit_messages, provision
from topics.kafka import client
from topics.kafka.client import open_admin
from topics.kafka.provisioning import topic_warnings
from topics.kafka.topic_settings import RECORD_BYTES_MIN, TopicSettings
from topics.names import ShardTopics
from topics.schemas import TopicSchemaIds

TIMEOUT_MS = 1_000
REACH_S = 2.0  # a broker that is away does not answer later either
ROWS = 5_000  # of 200 bytes: more than is read at once, so that the limit is looked at inside


@contextmanager
def short_limits() -> Iterator[None]:
    """Limits of a second where minutes are usual: also a broker that is there may need longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "RESTARTS_IN_PLACE_MAX", 2)
        patch.setattr(supervisor, "BACKOFF_S_MAX", 0.1)
        patch.setattr(publisher, "FENCE_S_MAX", 1.0)
        patch.setattr(publisher, "ABORT_S_MAX", 0.5)
        yield


def clients() -> set[int]:
    """Return the Kafka producers of this process but those of schemas, which fence nobody."""
    found = gc.get_objects()
    of_schemas = {id(each._producer) for each in found if type(each) is TopicSchemaIds}
    return {id(each) for each in found if type(each) is Producer} - of_schemas


@pytest.mark.full
def test_outage_beyond_all_limits_ends_in_a_halt_and_loses_nothing(
    mysql_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F06: If Kafka stays away the producer ends by name; the next one writes the rest.

    B25: one that is started meanwhile reports the brokers, and streams once they are there.
    """
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace)
    statements(mysql_a, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    [broker] = kafka.brokers
    gc.collect()  # what earlier tests have left
    clients_before = clients()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(supervisor, "broker_transaction_timeout_ms", lambda _: TIMEOUT_MS)
            producer = RunningProducer(settings)
            producer.wait_streaming()
        statements(mysql_a, f"INSERT INTO {name}.t VALUES (1)")
        wait_caught_up(settings)
        with short_limits():
            broker.stop()
            statements(mysql_a, f"INSERT INTO {name}.t VALUES (2)")
            error = producer.wait_error()
        # One that lived on, held by the error, would fence the next when the broker is back.
        assert clients() <= clients_before
        with monkeypatch.context() as patch:
            patch.setattr(client, "REACH_S_MAX", REACH_S)
            waiting = RunningProducer(settings)
            wait_noted(waiting, kafka.bootstrap_servers)
    finally:
        broker.start()
    waiting.wait_streaming()
    wait_caught_up(settings)
    waiting.end()
    log = read_log(settings)

    assert isinstance(error, Halt)
    assert "before they got on" in str(error)
    assert kafka.bootstrap_servers in str(error)
    check_log(log)
    check_progress(log)
    assert replay(log, name, "t") == table_rows(mysql_a, name, "t")


def test_transaction_beyond_the_brokers_limit_is_named(
    mysql_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F07: A transaction twice too long in one place ends with GTID and setting to raise."""
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace)
    with producing(settings):
        wait_caught_up(settings)
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, pad VARCHAR(200))")
        cursor.execute(f"SET SESSION cte_max_recursion_depth = {ROWS}")
        cursor.execute(
            "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n "
            f"WHERE i < {ROWS}) SELECT i, REPEAT('x', 200) FROM n"
        )
        cursor.execute("SELECT @@server_uuid")
        [(uuid,)] = cursor.fetchall()
    with monkeypatch.context() as patch:
        # A share of the time that the brokers allow: the rows do not pass within it.
        patch.setattr(publisher, "TIMEOUT_SHARE", 1e-6)
        error = RunningProducer(settings).wait_error()
    with producing(settings):
        wait_caught_up(settings)
    log = read_log(settings)

    assert isinstance(error, Halt)
    assert "transaction.max.timeout.ms" in str(error)
    assert f"transaction {uuid}:" in str(error)
    check_log(log)
    assert len(replay(log, name, "t")) == ROWS


def test_batches_of_many_rows_fit_the_topic(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A backlog of small rows that no compression helps goes through a topic of one MiB."""
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace)
    provision(settings.kafka, keyspace, [settings.shard])
    limit_messages(settings.kafka, settings.shard_topics.log, RECORD_BYTES_MIN)
    with producing(settings):
        statements(
            mysql_a,
            f"CREATE TABLE {name}.t (id INT PRIMARY KEY, pad VARBINARY(1024))",
            f"SET SESSION cte_max_recursion_depth = {ROWS}",
            f"INSERT INTO {name}.t WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 "
            f"FROM n WHERE i < {ROWS}) SELECT i, RANDOM_BYTES(1024) FROM n",
        )
        wait_caught_up(settings)
    log = read_log(settings)

    check_log(log)
    assert len(replay(log, name, "t")) == ROWS
    assert not any(progress.in_parts for progress in log.progress)


def test_log_that_does_not_live_for_ever_is_warned_of(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A log with finite retention is warned about by name, and no other is."""
    day_ms = 24 * 3600 * 1000
    settings = settings_of(mysql_a, kafka, keyspace, topics=TopicSettings(retention_ms=7 * day_ms))
    with producing(settings):
        pass
    kept = settings_of(mysql_a, kafka, f"{keyspace}k")
    with producing(kept):
        pass
    topics = [ShardTopics(each.keyspace, "-") for each in (settings, kept)]

    [warning] = [w for w in topic_warnings(settings.kafka, topics) if "retention" in w]
    assert warning.startswith(f"{topics[0].log}: retention.ms is {7 * day_ms} (7 days)")
    assert topics[1].log in open_admin(settings.kafka).list_topics(timeout=30).topics
