"""Writing records to a real broker."""

from collections.abc import Collection, Iterable, Sequence

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public
    ConfigResource,
    PartitionMetadata,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from topics.kafka.client import ClientConfig, Deadline, open_admin, open_consumer, open_producer
from topics.kafka.partition_reader import partition_bounds
from topics.kafka.provisioning import delete_topics

# Longer than any broker here takes to answer beside other work.
TIMEOUT_S = 150.0
# A transaction that a test leaves open for a while must not be aborted on a busy machine.
TRANSACTION_MS_MAX = 600_000


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
    # A broker hears of it a little later than the controller that has answered.
    deadline = Deadline(TIMEOUT_S)
    while sum(each.leader >= 0 for each in partitions_of(config, topic)) < partitions:
        assert not deadline.passed


def remove_topics(config: ClientConfig, topics: Sequence[str]) -> None:
    """Delete topics, and wait until the broker knows them no more."""
    delete_topics(config, topics)
    deadline = Deadline(TIMEOUT_S)
    while any(partitions_of(config, topic) for topic in topics):
        assert not deadline.passed


def partitions_of(config: ClientConfig, topic: str) -> Collection[PartitionMetadata]:
    """The partitions of a topic that a broker knows."""
    known = open_admin(config).list_topics(topic, timeout=TIMEOUT_S).topics
    return known[topic].partitions.values()


def transactional(config: ClientConfig, transactional_id: str) -> Producer:
    """Open a producer that has fenced its predecessors."""
    producer = open_producer(
        config,
        transactional_id=transactional_id,
        transaction_timeout_ms=TRANSACTION_MS_MAX,
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


def topic_setting(config: ClientConfig, topic: str, name: str) -> str | None:
    """The effective value of a topic's setting."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = open_admin(config)  # its answers end with it
    deadline = Deadline(TIMEOUT_S)
    while True:
        [answer] = admin.describe_configs([resource]).values()
        try:
            value: str | None = answer.result(TIMEOUT_S)[name].value
        except KafkaException:  # not every broker has heard of the topic
            assert not deadline.passed
        else:
            return value
