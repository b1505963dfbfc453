"""The topology of a keyspace whose shards are real servers."""

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import settings_of
from topics.kafka.provisioning import provision_keyspace
from topics.keyspace.topology import ShardEntry, ShardState, Topology, update_topology


def serve(kafka: KafkaCluster, keyspace: str, shards: dict[str, DatabaseFixture]) -> None:
    """A topology of these shards."""
    config = settings_of(next(iter(shards.values())), kafka, keyspace).kafka
    provision_keyspace(config, keyspace)
    entries = tuple(ShardEntry(shard, ShardState.SERVING) for shard in shards)
    topology = Topology(keyspace, 1, entries)
    update_topology(config, keyspace, lambda _: topology)
