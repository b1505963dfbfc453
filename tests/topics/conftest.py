"""Settings of clients of the session's broker."""

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from topics.kafka.client import ClientConfig


@pytest.fixture
def config(kafka: KafkaCluster) -> ClientConfig:
    """Client settings of the session's broker."""
    return ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
