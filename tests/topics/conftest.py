"""A provisioned keyspace on the session's broker, and writers of its shards."""

from collections.abc import Iterator

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.topics.shard_writer import ShardWriter, Writers, provision
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_shard
from topics.names import ShardTopics


@pytest.fixture
def config(kafka: KafkaCluster) -> ClientConfig:
    """Client settings of the session's broker."""
    return ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def targets(config: ClientConfig, keyspace: str) -> Iterator[Writers]:
    """Create the topics of shards that do not serve yet, with a writer for each."""
    made: list[ShardWriter] = []

    def make(*shards: str) -> list[ShardWriter]:
        for shard in shards:
            provision_shard(config, ShardTopics(keyspace, shard))
        new = [ShardWriter(config, keyspace, shard) for shard in shards]
        made.extend(new)
        return new

    yield make
    for writer in made:
        writer.close()


@pytest.fixture
def writers(config: ClientConfig, keyspace: str) -> Iterator[Writers]:
    """Provision the shards named, with a writer for each."""
    made: list[ShardWriter] = []

    def make(*shards: str) -> list[ShardWriter]:
        provision(config, keyspace, shards)
        made.extend(ShardWriter(config, keyspace, shard) for shard in shards)
        return made

    yield make
    for writer in made:
        writer.close()
