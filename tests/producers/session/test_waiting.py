"""Producers whose server, broker or topics are away."""

from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient

from producers import publisher
from producers.errors import LogDisagrees
from producers.session.supervisor import run_shard
from producers.settings import ProducerState, ProducerStatus
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.local_server import HOST, free_ports
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.session.producing import (
    SHARD,
    Running,
    RunningProducer,
    producing,
    settings_of,
    wait_caught_up,
    wait_noted,
)
from tests.waiting import WAIT_S, wait_for
from topics.kafka import client
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.provisioning import provision_shard
from topics.names import ShardTopics

# A broker that is away does not answer later either.
REACH_S = 2.0


def test_server_that_is_away_at_the_start_is_waited_for(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """B25: the producer reports the server, and streams once it is there."""
    database = start_mysql()
    settings = settings_of(database, kafka, keyspace)
    database.server.kill()

    producer = RunningProducer(settings)
    wait_noted(producer, settings.servers[0].name)
    database.server.start()
    producer.wait_streaming()
    wait_caught_up(settings)
    producer.end()


def test_stop_is_heard_while_a_broker_is_waited_for(
    mysql_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B25: a stop ends the wait."""
    monkeypatch.setattr(client, "REACH_S_MAX", REACH_S)
    nowhere = ClientConfig({"bootstrap.servers": f"{HOST}:{free_ports(1)[0]}"})
    settings = replace(settings_of(mysql_a, kafka, keyspace), kafka=nowhere)

    producer = RunningProducer(settings)
    wait_noted(producer, nowhere["bootstrap.servers"])
    producer.end()


COMPARING = "comparing the log with the servers"


def is_unknown(admin: AdminClient, topic: str) -> bool:
    """Whether the broker denies a topic; it answers a deletion before it has heard of it itself."""
    return admin.list_topics(topic, timeout=WAIT_S).topics[topic].error is not None


def test_topics_that_a_broker_does_not_know_yet_are_waited_for(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F05: the producer goes on once a broker that has just started knows its topics."""
    settings, topics = settings_of(mysql_a, kafka, keyspace), ShardTopics(keyspace, SHARD)
    admin, seen = open_admin(settings.kafka), list[ProducerState]()

    def on_status(status: ProducerStatus) -> None:
        if status.note == COMPARING and ProducerState.RECONNECTING not in seen:
            for future in admin.delete_topics([topics.log, topics.progress]).values():
                future.result(WAIT_S)
            for gone in (topics.log, topics.progress):
                wait_for("it is gone", lambda gone=gone: is_unknown(admin, gone))  # type: ignore[misc]
        elif "the topic does not exist" in status.note:
            provision_shard(settings.kafka, topics)
        seen.append(status.state)

    producer = Running("the producer", lambda stop: run_shard(settings, stop, on_status))
    wait_for("it streams", lambda: not producer.runs or ProducerState.STREAMING in seen)
    producer.end()

    assert seen.index(ProducerState.RECONNECTING) < seen.index(ProducerState.STREAMING)


def test_a_start_says_what_it_does(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Each step that may take seconds has a line before it; a new session says why it is there."""
    settings = settings_of(mysql_a, kafka, keyspace)
    with producing(settings) as producer:
        notes = [s.note for s in producer.statuses if s.state is ProducerState.STARTING]

    assert notes[:5] == [
        f"checking the topics on {kafka.bootstrap_servers}",
        f"checking {mysql_a.host}:{mysql_a.port}",
        "taking over the log from the producer before",
        "reading the end of the log",
        COMPARING,
    ]


def test_a_log_that_is_recreated_under_its_producer_is_not_begun_again(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F09: the producer says that its topics are gone, and does not take new ones for a new log."""
    monkeypatch.setattr(publisher, "TOPICS_LOOK_S", 0.5)
    settings, topics = settings_of(mysql_a, kafka, keyspace), ShardTopics(keyspace, SHARD)
    producer = RunningProducer(settings)
    producer.wait_streaming()
    wait_caught_up(settings)
    admin = open_admin(settings.kafka)
    for future in admin.delete_topics([topics.log, topics.progress]).values():
        future.result(WAIT_S)
    wait_noted(producer, "the topic does not exist")
    provision_shard(settings.kafka, topics)

    error = producer.wait_error()

    assert isinstance(error, LogDisagrees)
    assert f"{topics.log} is empty, but this producer has written to it" in str(error)
