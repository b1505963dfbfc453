"""A provisioned keyspace on the session's broker, and writers of its shards."""

from collections.abc import Callable, Iterator

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.topics_reading.shard_writer import ShardWriter, provision
from topics.kafka_client import ClientConfig

Writers = Callable[..., list[ShardWriter]]


@pytest.fixture
def config(kafka: KafkaCluster) -> ClientConfig:
    """Client settings of the session's broker."""
    return ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def writers(config: ClientConfig, keyspace: str) -> Iterator[Writers]:
    """Provision shards by name and give a writer for each."""
    made: list[ShardWriter] = []

    def make(*shards: str) -> list[ShardWriter]:
        provision(config, keyspace, shards)
        made.extend(ShardWriter(config, keyspace, shard) for shard in shards)
        return made

    yield make
    for writer in made:
        writer.close()
