"""The topology that the settings declare: written once; vindexes may be added later."""

import logging
from dataclasses import replace
from typing import Final

from event_token.errors import Rebuild, ShardstreamError, UsageError
from shardstream.settings.model import Settings
from shardstream.settings.producer_settings import (
    filter_settings,
    table_vindexes,
    topic_settings,
)
from topics.errors import TopologyChanged
from topics.kafka.provisioning import provision_keyspace, provision_readers
from topics.keyspace.topology import (
    ShardEntry,
    TableVindex,
    Topology,
    read_topology,
    update_topology,
)

_LOG: Final = logging.getLogger("shardstream.commands")

# The producers of all shards may start at once and write the same; each attempt can collide once.
TRIES_MAX = 5


def ensure_topology(settings: Settings, keyspace: str) -> Topology:
    """Write the topology of a new keyspace, or check that the settings agree with the topology.

    Vindexes of tables that are new to the topology are added. UsageError when the settings name
    other serving shards than the topology (shards change by a reshard, not by editing a file),
    another vindex for a table that has one (its keyspace ids are in the logs), or another key for
    hmac masks (the logs have values made with it).
    """
    shards = tuple(sorted(settings.keyspace(keyspace).shards))
    known = settings.keyspace(keyspace).all_shards
    wanted = Topology(keyspace, 0, tuple(ShardEntry(shard) for shard in shards))
    vindexes = table_vindexes(settings, keyspace)
    mask_key = filter_settings(settings, keyspace).mask_key()

    def declared(topology: Topology) -> Topology:
        return with_mask_key(with_vindexes(topology, vindexes), mask_key)

    provision_keyspace(settings.kafka_client(), keyspace, topic_settings(settings))
    _provide_readers_topic(settings, keyspace)
    last: ShardstreamError | None = None
    for _ in range(TRIES_MAX):
        found = read_topology(settings.kafka_client(), keyspace)
        if found is None or found != declared(found):
            try:
                found = update_topology(
                    settings.kafka_client(),
                    keyspace,
                    lambda before: declared(before or wanted),
                )
            except (TopologyChanged, Rebuild) as fault:
                # Another writer was faster: look again.
                last = fault
                continue
        serving = sorted(shard.name for shard in found.serving())
        if not known.keys() >= set(serving) or (found.epoch == 0 and serving != list(shards)):
            raise UsageError(
                f"keyspace {keyspace}: the settings name the shards {', '.join(shards)}, "
                f"the topology on Kafka has {', '.join(serving)}"
            )
        return found
    raise TopologyChanged(
        f"keyspace {keyspace}: the topology changed {TRIES_MAX} times while it was read; try again"
    ) from last


def _provide_readers_topic(settings: Settings, keyspace: str) -> None:
    """Create the topic of named readers. Nobody depends on it, so a missing grant stops nobody."""
    try:
        provision_readers(settings.kafka_client(), keyspace, topic_settings(settings))
    except UsageError as error:
        _LOG.warning("keyspace %s: named readers cannot report: %s", keyspace, error)


def with_vindexes(topology: Topology, vindexes: tuple[TableVindex, ...]) -> Topology:
    """Return the topology with more vindexes; UsageError if a table already has another one."""
    known = {(v.database, v.table): v for v in topology.vindexes}
    for vindex in vindexes:
        table = (vindex.database, vindex.table)
        before = known.setdefault(table, vindex)
        if before != vindex:
            raise UsageError(
                f"keyspace {topology.keyspace}: the settings give table {'.'.join(table)} the "
                f"vindex {_shown(vindex)}, but the topology has {_shown(before)}, and the logs "
                f"contain its keyspace ids: change the settings"
            )
    return replace(topology, vindexes=tuple(known.values()))


def with_mask_key(topology: Topology, mask_key: str) -> Topology:
    """Return the topology with the fingerprint of a key; UsageError if it has another one."""
    if topology.mask_key and mask_key and topology.mask_key != mask_key:
        raise UsageError(
            f"keyspace {topology.keyspace}: hmac_key is not the key with which the masked values "
            f"in the logs were made, so equal values would not stay equal: put the old key back. "
            f"To begin with another key, start new logs: delete the topics of the keyspace, and "
            f"copy the tables"
        )
    return replace(topology, mask_key=topology.mask_key or mask_key)


def _shown(vindex: TableVindex) -> str:
    return f"{vindex.vindex}({', '.join(vindex.columns)})"
