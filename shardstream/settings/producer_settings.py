"""From the settings file to the settings of producers and topics, and to the topology."""

import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from databases.server import TlsSettings
from event_token.errors import Rebuild, ShardstreamError, UsageError
from producers.filters.conditions import RuleError
from producers.filters.rules import FilterRule, FilterSettings, Mask, MaskKind, TablePattern
from producers.settings import ProducerOptions, ServerSettings, ShardProducerSettings
from producers.typed_columns import TypedColumns
from shardstream.settings.model import (
    HmacKeySource,
    RuleSection,
    ServerSection,
    Settings,
    TlsSection,
)
from topics.errors import TopologyChanged
from topics.kafka.provisioning import provision_keyspace, provision_readers
from topics.kafka.topic_settings import TopicSettings
from topics.keyspace.topology import (
    ShardEntry,
    TableVindex,
    Topology,
    read_topology,
    update_topology,
)


def shard_producer_settings(
    settings: Settings, keyspace: str, shard: str, start: str | None = None
) -> ShardProducerSettings:
    """The settings of one shard's producer; UsageError when the shard or a secret is unknown."""
    section = settings.shard(keyspace, shard)
    return ShardProducerSettings(
        keyspace=keyspace,
        shard=shard,
        flavor=section.flavor,
        servers=tuple(_server(server, settings) for server in section.servers),
        kafka=settings.kafka_client(),
        registry_url=settings.kafka.schema_registry_url,
        start=start,
        platform=section.platform,
        topics=topic_settings(settings),
        copy=settings.copying,
        vindexes=table_vindexes(settings, keyspace),
        filters=filter_settings(settings, keyspace),
        typed_columns=TypedColumns(settings.producer.typed_columns),
        host_clock=settings.host_clock(),
        **{f.name: getattr(settings.producer, f.name) for f in fields(ProducerOptions)},
    )


def table_vindexes(settings: Settings, keyspace: str) -> tuple[TableVindex, ...]:
    """The vindexes that the settings declare; the topology may have more."""
    return tuple(
        TableVindex(v.database, v.table, (v.column,), v.vindex)
        for v in settings.keyspace(keyspace).vindexes
    )


def filter_settings(settings: Settings, keyspace: str) -> FilterSettings:
    """The filter rules of a keyspace; UsageError where one cannot be read."""
    section = settings.keyspace(keyspace).filter
    key = section.hmac_key or HmacKeySource()
    secret = key.secret(f"{keyspace}: hmac_key", settings.folder)
    try:
        return FilterSettings(
            include=tuple(map(TablePattern, section.include)),
            exclude=tuple(map(TablePattern, section.exclude)),
            rules=tuple(map(_rule, section.rules)),
            hmac_key=secret.read().encode(),
            hmac_key_id=key.id,
        )
    except RuleError as error:
        raise RuleError(f"keyspace {keyspace}, filter: {error}") from error


def _rule(section: RuleSection) -> FilterRule:
    masks = {
        column: Mask(MaskKind(mask))
        if isinstance(mask, str)
        else Mask(MaskKind.TRUNCATE, mask.truncate)
        for column, mask in section.mask.items()
    }
    return FilterRule(TablePattern(section.table), section.columns, section.where, masks)


def _server(section: ServerSection, settings: Settings) -> ServerSettings:
    password = section.password(settings.folder)
    password.read()  # a source that is wrong is found before anything starts
    tls = tls_settings(section.tls, settings.folder)
    return ServerSettings(section.host, section.port, section.user, password, tls, section.read)


def tls_settings(section: TlsSection | None, folder: Path) -> TlsSettings | None:
    """TLS to a server, with paths relative to the settings file; None for clear text."""
    if section is None:
        return None
    return TlsSettings(
        ca=str(folder / section.ca),
        cert=None if section.cert is None else str(folder / section.cert),
        key=None if section.key is None else str(folder / section.key),
    )


def topic_settings(settings: Settings) -> TopicSettings:
    """How topics are created."""
    return TopicSettings(
        replication_factor=settings.kafka.replication_factor,
        retention_ms=settings.kafka.retention_ms,
    )


_LOG: Final = logging.getLogger("shardstream.commands")

# The producers of all shards may start at once and write the same; each attempt can collide once.
TRIES_MAX = 5


def ensure_topology(settings: Settings, keyspace: str) -> Topology:
    """Write the topology of a new keyspace, or check that the settings agree with the topology.

    Vindexes of tables that are new to the topology are added. UsageError when the settings name
    other serving shards than the topology (shards change by a reshard, not by editing a file),
    another vindex for a table that has one (its keyspace ids are in the logs), or another key of
    hmac masks under an id that has one (the logs have values made with it).
    """
    shards = tuple(sorted(settings.keyspace(keyspace).shards))
    known = settings.keyspace(keyspace).all_shards
    wanted = Topology(keyspace, 0, tuple(ShardEntry(shard) for shard in shards))
    vindexes = table_vindexes(settings, keyspace)
    filters = filter_settings(settings, keyspace)
    mask_key = filters.mask_key()

    def declared(topology: Topology) -> Topology:
        return with_mask_key(with_vindexes(topology, vindexes), filters.hmac_key_id, mask_key)

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
                # Another writer was faster: read it again.
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
        f"keyspace {keyspace}: the topology changed {TRIES_MAX} times while it was read; run the "
        f"command again"
    ) from last


def _provide_readers_topic(settings: Settings, keyspace: str) -> None:
    """Create the topic of named readers. Warn of a missing grant: nothing depends on the topic."""
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


# Whoever watches the topology reads its record every second. A key a month lasts eight years.
MASK_KEYS_MAX: Final = 100


def with_mask_key(topology: Topology, key_id: str, mask_key: str) -> Topology:
    """Return the topology with the fingerprint of a key, if it is not "".

    UsageError if it has another one under that id, or MASK_KEYS_MAX others.
    """
    if not mask_key:
        return topology
    known = topology.mask_keys.get(key_id, mask_key)
    if known != mask_key:
        under = f" under the id {key_id}" if key_id else ""
        raise UsageError(
            f"keyspace {topology.keyspace}: hmac_key is not the key with which the masked values "
            f"in the logs were made{under}, so equal values would not stay equal: restore the old "
            f"key, or give the new one an id of its own"
        )
    keys = {**topology.mask_keys, key_id: mask_key}
    if len(keys) > MASK_KEYS_MAX:
        raise UsageError(
            f"keyspace {topology.keyspace}: its logs have values of {MASK_KEYS_MAX} keys of hmac "
            f"masks, and {key_id} would be one more: use one of {', '.join(topology.mask_keys)}"
        )
    return replace(topology, mask_keys=keys)


def _shown(vindex: TableVindex) -> str:
    return f"{vindex.vindex}({', '.join(vindex.columns)})"
