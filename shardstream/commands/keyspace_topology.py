"""The topology of a keyspace: written once from the settings; vindexes may be added later."""

from dataclasses import replace

from event_token.errors import Rebuild, UsageError
from shardstream.settings.model import Settings
from shardstream.settings.producers import table_vindexes, topic_settings
from topics.errors import TopologyChanged
from topics.kafka.provisioning import provision_keyspace
from topics.keyspace.topology import (
    ShardEntry,
    TableVindex,
    Topology,
    read_topology,
    update_topology,
)

# Producers of all shards start at once and write the same; each try meets another's at most once.
TRIES_MAX = 5


def ensure_topology(settings: Settings, keyspace: str) -> Topology:
    """Write the topology of a new keyspace; for one that exists, check that the settings agree.

    Vindexes of tables that the topology does not know yet are added. UsageError when the settings
    name other serving shards than the topology has (shards change by a reshard, not by an edit of
    a file), or another vindex for a table that has one (its keyspace ids are in the logs).
    """
    shards = tuple(sorted(settings.keyspace(keyspace).shards))
    known = settings.keyspace(keyspace).all_shards
    wanted = Topology(keyspace, 0, tuple(ShardEntry(shard) for shard in shards))
    vindexes = table_vindexes(settings, keyspace)
    provision_keyspace(settings.kafka_client(), keyspace, topic_settings(settings))
    for _ in range(TRIES_MAX):
        found = read_topology(settings.kafka_client(), keyspace)
        if found is None or found != with_vindexes(found, vindexes):
            try:
                found = update_topology(
                    settings.kafka_client(),
                    keyspace,
                    lambda before: with_vindexes(before or wanted, vindexes),
                )
            except (TopologyChanged, Rebuild):
                # Fenced in the middle of its commit, the other's may be there: look again.
                continue
        serving = sorted(shard.name for shard in found.serving())
        if not known.keys() >= set(serving) or (found.epoch == 0 and serving != list(shards)):
            raise UsageError(
                f"keyspace {keyspace}: the settings name the shards {', '.join(shards)}, "
                f"the topology on Kafka has {', '.join(serving)}"
            )
        return found
    raise UsageError(f"keyspace {keyspace}: the topology was changed {TRIES_MAX} times meanwhile")


def with_vindexes(topology: Topology, vindexes: tuple[TableVindex, ...]) -> Topology:
    """The topology with the vindexes of more tables; UsageError where a table has another one."""
    known = {(v.database, v.table): v for v in topology.vindexes}
    for vindex in vindexes:
        table = (vindex.database, vindex.table)
        before = known.setdefault(table, vindex)
        if before != vindex:
            raise UsageError(
                f"keyspace {topology.keyspace}: the settings give table {'.'.join(table)} the "
                f"vindex {_shown(vindex)}, the topology has {_shown(before)}: the logs hold "
                f"keyspace ids of that one, so it stays"
            )
    return replace(topology, vindexes=tuple(known.values()))


def _shown(vindex: TableVindex) -> str:
    return f"{vindex.vindex}({', '.join(vindex.columns)})"
