"""From the settings file to what producers and topics take."""

from event_token import Flavor
from producers.settings import CopySettings, ServerSettings, ShardProducerSettings, TlsSettings
from shardstream.settings import ServerSection, Settings
from topics.topic_rules import TopicSettings


def shard_producer_settings(
    settings: Settings, keyspace: str, shard: str, start: str = "tail"
) -> ShardProducerSettings:
    """The settings of one shard's producer; UsageError when the shard or a secret is unknown."""
    section = settings.shard(keyspace, shard)
    return ShardProducerSettings(
        keyspace=keyspace,
        shard=shard,
        flavor=Flavor(section.flavor),
        servers=tuple(_server(server, settings) for server in section.servers),
        kafka=settings.kafka_client(),
        registry_url=settings.kafka.schema_registry_url,
        start=start,
        replication_factor=settings.kafka.replication_factor,
        retention_ms=settings.kafka.retention_ms,
        copy=CopySettings(**settings.copying.model_dump()),
        **settings.producer.model_dump(),
    )


def _server(section: ServerSection, settings: Settings) -> ServerSettings:
    tls = None
    if section.tls is not None:
        paths = section.tls
        tls = TlsSettings(
            ca=str(settings.folder / paths.ca),
            cert=None if paths.cert is None else str(settings.folder / paths.cert),
            key=None if paths.key is None else str(settings.folder / paths.key),
        )
    password = section.password(settings.folder).get_secret_value()
    return ServerSettings(section.host, section.port, section.user, password, tls, section.read)


def topic_settings(settings: Settings) -> TopicSettings:
    """How topics are made."""
    return TopicSettings(
        replication_factor=settings.kafka.replication_factor,
        retention_ms=settings.kafka.retention_ms,
    )
