"""Writing records to a real broker."""

from collections.abc import Iterable

from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from topics.kafka.client import ClientConfig, open_admin, open_consumer, open_producer
from topics.kafka.deadline import Deadline
from topics.kafka.partition_reader import partition_bounds

# Longer than any broker here takes to answer beside other work.
TIMEOUT_S = 150.0


def make_topic(
    config: ClientConfig,
    topic: str,
    settings: dict[str, str] | None = None,
    partitions: int = 1,
    replicas: int = 1,
) -> None:
    """Create a topic."""
    admin = open_admin(config)
    for future in admin.create_topics(
        [NewTopic(topic, partitions, replicas, config=settings or {})]
    ).values():
        future.result(TIMEOUT_S)


def transactional(config: ClientConfig, transactional_id: str) -> Producer:
    """Open a producer that has fenced its predecessors."""
    producer = open_producer(
        config,
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def write(producer: Producer, topic: str, values: Iterable[bytes], key: bytes = b"key") -> None:
    """Begin a transaction, write the values into it and leave it open."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, key, 0)
    assert producer.flush(TIMEOUT_S) == 0


def commit(config: ClientConfig, producer: Producer, topic: str) -> None:
    """Commit and wait until the marker has arrived, as the commit itself does not."""
    consumer = open_consumer(config)
    _, before = partition_bounds(consumer, config, topic)
    producer.commit_transaction(TIMEOUT_S)
    deadline = Deadline(TIMEOUT_S)
    while partition_bounds(consumer, config, topic)[1] == before:
        assert not deadline.passed
    consumer.close()
