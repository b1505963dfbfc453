"""Outages and transactions beyond Kafka's limits end with a clear error and without loss."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from event_token import Halt
from producers.session import restarts, supervisor, waiting
from producers.session.status import STREAMS
from producers.settings import ProducerState
from producers.shard_log import publisher
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
    wait_for,
)
from topics.kafka.client import open_admin
from topics.kafka.provisioning import topic_warnings
from topics.kafka.topic_settings import TopicSettings
from topics.names import ShardTopics
from topics.schemas.registry import TopicSchemaIds

TIMEOUT_MS = 1_000
ROWS = 5_000  # of 200 bytes: more than is read at once, so that the limit is looked at inside


@contextmanager
def short_limits() -> Iterator[None]:
    """Limits of a second where minutes are usual: also a broker that is there may need longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restarts, "RESTARTS_IN_PLACE_MAX", 2)
        patch.setattr(waiting, "BACKOFF_S_MAX", 0.1)
        patch.setattr(publisher, "FENCE_S_MAX", 1.0)
        patch.setattr(publisher, "ABORT_S_MAX", 0.5)
        yield


def clients() -> set[int]:
    """Return the Kafka producers of this process but those of schemas, which fence nobody."""
    found = gc.get_objects()
    of_schemas = {id(each._producer) for each in found if type(each) is TopicSchemaIds}
    return {id(each) for each in found if type(each) is Producer} - of_schemas


def test_outage_beyond_all_limits_ends_in_a_halt_and_loses_nothing(
    mysql_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F06: If Kafka stays away the producer ends by name; the next one writes the rest."""
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
    finally:
        broker.start()
    with producing(settings):
        wait_caught_up(settings)
    log = read_log(settings)

    assert isinstance(error, Halt)
    assert "before they got on" in str(error)
    assert kafka.bootstrap_servers in str(error)
    check_log(log)
    check_progress(log)
    assert replay(log, name, "t") == table_rows(mysql_a, name, "t")


def test_producer_says_that_it_waits_for_kafka(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F06: While no broker answers its status names them, and an age that is not 0 ms."""
    settings = settings_of(mysql_a, kafka, keyspace)
    [broker] = kafka.brokers
    with mysql_a.one_table() as (_name, cursor), producing(settings) as producer:
        wait_caught_up(settings)
        broker.stop()
        try:
            wait_for(
                "it says so",
                lambda: producer.has_been(ProducerState.WAITING_FOR_KAFKA),
                said=lambda: producer.statuses[-3:],
            )
        finally:
            broker.start()
        cursor.execute("INSERT INTO t VALUES (1)")
        wait_caught_up(settings)
        states = [status.state for status in producer.statuses]
        waited = [s for s in producer.statuses if s.state is ProducerState.WAITING_FOR_KAFKA]

    assert all(kafka.bootstrap_servers in status.note for status in waited)
    assert all(status.lag_ms >= publisher.SILENCE_SHOWN_S * 1_000 for status in waited)
    assert states[-1] in STREAMS


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
