"""Producers that start while a server or the broker is away."""

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.session.producing import (
    RunningProducer,
    settings_of,
    wait_caught_up,
    wait_for,
)


def wait_noted(producer: RunningProducer, text: str) -> None:
    """Wait until the producer reports a text while it goes on running."""

    def is_noted() -> bool:
        producer.check()
        return any(text in status.note for status in list(producer.statuses))

    wait_for(f"{text!r} is reported", is_noted)


def test_server_that_is_away_at_the_start_is_waited_for(
    start_server: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """B25: the producer reports the server, and streams once it is there."""
    database = start_server()
    settings = settings_of(database, kafka, keyspace)
    database.server.kill()

    producer = RunningProducer(settings)
    wait_noted(producer, settings.servers[0].name)
    database.server.start()
    producer.wait_streaming()
    wait_caught_up(settings)
    producer.end()


def test_broker_that_is_away_at_the_start_is_waited_for(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B25: the producer reports the brokers, and streams once one is there."""
    settings = settings_of(mysql_a, kafka, keyspace)
    [broker] = kafka.brokers
    broker.stop()
    try:
        producer = RunningProducer(settings)
        wait_noted(producer, kafka.bootstrap_servers)
    finally:
        broker.start()
    producer.wait_streaming()
    wait_caught_up(settings)
    producer.end()


def test_stop_is_heard_while_a_server_is_waited_for(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B25: a stop ends the wait."""
    [broker] = kafka.brokers
    broker.stop()
    try:
        producer = RunningProducer(settings_of(mysql_a, kafka, keyspace))
        wait_noted(producer, kafka.bootstrap_servers)
        producer.end()
    finally:
        broker.start()
