"""Deletes topics, and the records of a topic."""

from collections.abc import Sequence

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from topics.kafka.client import REQUEST_TIMEOUT_S, ClientConfig, open_admin
from topics.kafka.errors import TOPIC_GONE, kafka_error


def delete_topics(config: ClientConfig, topics: Sequence[str]) -> tuple[str, ...]:
    """Delete topics one after the other; return those that existed. UsageError without a grant."""
    admin = open_admin(config)
    deleted = []
    for topic in topics:
        future = admin.delete_topics([topic], request_timeout=REQUEST_TIMEOUT_S)[topic]
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].name() not in TOPIC_GONE:
                raise kafka_error(error, f"deleting topic {topic}", config.brokers) from error
        else:
            deleted.append(topic)
    return tuple(deleted)


def empty_topic(config: ClientConfig, topic: str) -> int:
    """Delete the records of partition 0; return its new first offset. UsageError without a grant.

    Later records take later offsets, so that no position before is taken for one after.
    """
    admin = open_admin(config)
    wanted = TopicPartition(topic, 0, OFFSET_END)
    [future] = admin.delete_records([wanted], request_timeout=REQUEST_TIMEOUT_S).values()
    try:
        return int(future.result().low_watermark)
    except KafkaException as error:
        raise kafka_error(error, f"deleting the records of {topic}", config.brokers) from error
