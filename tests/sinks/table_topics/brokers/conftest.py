"""A task that writes table topics without Spark."""

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.sinks.table_topics.topic_tasks import PARTITIONS, TopicTask
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_positions_topic, provision_table_topics


@pytest.fixture
def task(kafka: KafkaCluster, keyspace: str) -> TopicTask:
    """The only task of a keyspace, whose topics are there and empty."""
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    made = TopicTask(config, keyspace)
    provision_positions_topic(config)
    provision_table_topics(config, [made.topic], PARTITIONS, None)
    return made
