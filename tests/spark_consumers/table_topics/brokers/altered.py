"""Settings of topics and brokers that are changed for a while, such as those of compaction."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.partition_reader import read_to_end

REQUEST_S_MAX = 60.0
# Every append begins a segment, and a segment with anything to remove is compacted at once.
_AT_ONCE = {"segment.ms": "1", "min.cleanable.dirty.ratio": "0", "min.compaction.lag.ms": "0"}
# Kafka's default is a look every 15 s.
_LOOK_MS = "100"


@contextmanager
def compacting(config: ClientConfig, *topics: str) -> Iterator[None]:
    """Compact topics at once for the duration of a block."""
    brokers = open_admin(config).list_topics(timeout=REQUEST_S_MAX).brokers
    with ExitStack() as stack:
        for topic in topics:
            stack.enter_context(altered(config, ResourceType.TOPIC, topic, _AT_ONCE))
        for number in brokers:
            settings = {"log.cleaner.backoff.ms": _LOOK_MS}
            stack.enter_context(altered(config, ResourceType.BROKER, str(number), settings))
        yield


@contextmanager
def altered(
    config: ClientConfig, kind: ResourceType, name: str, settings: Mapping[str, str]
) -> Iterator[None]:
    """Change settings of a topic or broker for the duration of a block."""
    _alter(config, kind, name, settings)
    try:
        yield
    finally:
        _alter(config, kind, name, dict.fromkeys(settings))


def keys_of(config: ClientConfig, topic: str, partitions: Iterable[int]) -> list[bytes | None]:
    """The key of each record in some partitions."""
    return [
        record.key
        for partition in partitions
        for record in read_to_end(config, topic, partition=partition)
    ]


def _alter(
    config: ClientConfig, kind: ResourceType, name: str, settings: Mapping[str, str | None]
) -> None:
    """Set settings, or remove those that are None."""
    entries = [
        ConfigEntry(
            key,
            value,
            incremental_operation=(
                AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            ),
        )
        for key, value in settings.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin = open_admin(config)
    found = admin.incremental_alter_configs([resource], request_timeout=REQUEST_S_MAX)
    found[resource].result(REQUEST_S_MAX)
