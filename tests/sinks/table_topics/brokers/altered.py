"""Settings of topics and brokers that are changed for a while, such as those of compaction."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from tests.waiting import wait_for
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.partition_reader import read_to_end

REQUEST_S_MAX = 60.0
# Every append begins a segment, and a segment with anything to remove is compacted at once.
_AT_ONCE = {"segment.ms": "1", "min.cleanable.dirty.ratio": "0", "min.compaction.lag.ms": "0"}
# Kafka's default is a look every 15 s.
_LOOK_MS = "100"
# Where the value of a setting comes from that was altered.
_SET = {ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG}


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
        _wait_applied(config, kind, name, settings, applied=True)
        yield
    finally:
        _alter(config, kind, name, dict.fromkeys(settings))
        _wait_applied(config, kind, name, settings, applied=False)


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


def _wait_applied(
    config: ClientConfig,
    kind: ResourceType,
    name: str,
    settings: Iterable[str],
    *,
    applied: bool,
) -> None:
    """Wait until the brokers, which the controller tells later, go by all settings or by none."""
    admin = open_admin(config)
    resource = ConfigResource(kind, name)

    def is_told() -> bool:
        found = admin.describe_configs([resource], request_timeout=REQUEST_S_MAX)
        values = found[resource].result(REQUEST_S_MAX)
        return all((ConfigSource(values[key].source) in _SET) is applied for key in settings)

    wait_for(f"settings of {name}", is_told)
