"""The topology of a keyspace, written once from the settings."""

from event_token.errors import Rebuild, UsageError
from shardstream.settings import Settings
from shardstream.shard_settings import topic_settings
from topics.provisioning import provision_keyspace
from topics.topology import ShardEntry, Topology, TopologyChanged, read_topology, update_topology

# Producers of all shards start at once and write the same; each try meets another's at most once.
TRIES_MAX = 5


def ensure_topology(settings: Settings, keyspace: str) -> Topology:
    """Write the topology of a new keyspace; for one that exists, check that the settings agree.

    UsageError when the settings name other serving shards than the topology has: shards change
    by a reshard, not by an edit of a file.
    """
    shards = tuple(sorted(settings.keyspace(keyspace).shards))
    wanted = Topology(keyspace, 0, tuple(ShardEntry(shard) for shard in shards))
    provision_keyspace(settings.kafka_client(), keyspace, topic_settings(settings))
    for _ in range(TRIES_MAX):
        found = read_topology(settings.kafka_client(), keyspace)
        if found is None:
            try:
                found = update_topology(
                    settings.kafka_client(), keyspace, lambda before: before or wanted
                )
            except (TopologyChanged, Rebuild):
                # Fenced in the middle of its commit, the other's may be there: look again.
                continue
        serving = sorted(shard.name for shard in found.serving())
        if serving != list(shards):
            raise UsageError(
                f"keyspace {keyspace}: the settings name the shards {', '.join(shards)}, "
                f"the topology on Kafka has {', '.join(serving)}"
            )
        return found
    raise UsageError(f"keyspace {keyspace}: the topology was changed {TRIES_MAX} times meanwhile")
