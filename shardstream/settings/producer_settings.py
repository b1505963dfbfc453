"""From the settings file to what producers and topics take."""

from dataclasses import fields
from pathlib import Path

from databases.server import TlsSettings
from producers.filters.errors import RuleError
from producers.filters.masks import Mask, MaskKind
from producers.filters.rules import FilterSettings, Rule, TablePattern
from producers.options import ProducerOptions
from producers.preflight.typed_columns import TypedColumns
from producers.settings import ServerSettings, ShardProducerSettings
from shardstream.settings.model import (
    RuleSection,
    SecretSource,
    ServerSection,
    Settings,
    TlsSection,
    read_secret,
)
from topics.kafka.topic_settings import TopicSettings
from topics.keyspace.topology import TableVindex


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
        topics=topic_settings(settings),
        copy=settings.copying,
        vindexes=table_vindexes(settings, keyspace),
        filters=filter_settings(settings, keyspace),
        typed_columns=TypedColumns(settings.producer.typed_columns),
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
    key = section.hmac_key or SecretSource()
    secret = read_secret(f"{keyspace}: hmac_key", key.file, key.env, settings.folder)
    try:
        return FilterSettings(
            include=tuple(map(TablePattern, section.include)),
            exclude=tuple(map(TablePattern, section.exclude)),
            rules=tuple(map(_rule, section.rules)),
            hmac_key=secret.get_secret_value().encode(),
        )
    except RuleError as error:
        raise RuleError(f"keyspace {keyspace}, filter: {error}") from error


def _rule(section: RuleSection) -> Rule:
    masks = {
        column: Mask(MaskKind(mask))
        if isinstance(mask, str)
        else Mask(MaskKind.TRUNCATE, mask.truncate)
        for column, mask in section.mask.items()
    }
    return Rule(TablePattern(section.table), section.columns, section.where, masks)


def _server(section: ServerSection, settings: Settings) -> ServerSettings:
    tls = tls_settings(section.tls, settings.folder)

    def password() -> str:
        return section.password(settings.folder).get_secret_value()

    return ServerSettings(
        section.host,
        section.port,
        section.user,
        password(),
        tls,
        section.read,
        read_password=password,
    )


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
    """How topics are made."""
    return TopicSettings(
        replication_factor=settings.kafka.replication_factor,
        retention_ms=settings.kafka.retention_ms,
    )
