"""Asks for the ids of topics: one that was deleted and created again has another id."""

from collections.abc import Sequence

from confluent_kafka import KafkaException, TopicCollection

from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.errors import TOPIC_GONE
from topics.kafka.requests import retry_request


def topic_ids(config: ClientConfig, topics: Sequence[str]) -> dict[str, str]:
    """Return the id of each topic that exists, by name. Retry when no broker answers in time."""
    admin = open_admin(config)

    def ask(timeout_s: float) -> dict[str, str]:
        found = {}
        futures = admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s)
        for topic, future in futures.items():
            try:
                found[topic] = str(future.result().topic_id)
            except KafkaException as error:
                if error.args[0].name() not in TOPIC_GONE:
                    raise
        return found

    return retry_request(f"asking for the ids of {', '.join(topics)}", config, ask)
