"""Fixtures: a keyspace on the session's broker, and writers of its shards."""

from collections.abc import Iterator

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.topics.shard_writer import Writers, filling, serving
from topics.kafka.client import ClientConfig


@pytest.fixture
def config(kafka: KafkaCluster) -> ClientConfig:
    """Client settings of the session's broker."""
    return ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def writers(config: ClientConfig, keyspace: str) -> Iterator[Writers]:
    """Provision the shards named, with a writer for each."""
    with serving(config, keyspace) as make:
        yield make


@pytest.fixture
def targets(config: ClientConfig, keyspace: str) -> Iterator[Writers]:
    """Create the topics of shards that do not serve yet, with a writer for each."""
    with filling(config, keyspace) as make:
        yield make
