"""Creates topics with the required settings, and refuses existing ones with others.

All existing topics are checked first; nothing is created while one of them is wrong.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in __all__
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from event_token.errors import Retry
from topics.errors import WrongTopic
from topics.kafka.client import (
    REQUEST_TIMEOUT_S,
    ClientConfig,
    open_admin,
    open_reachable_admin,
)
from topics.kafka.deadline import Deadline
from topics.kafka.errors import kafka_error, kafka_errors
from topics.kafka.topic_settings import (
    BROKERS_DEFAULT,
    KEEP_ALL,
    SEGMENT_MS,
    FoundTopic,
    TopicRules,
    TopicSettings,
    control_rules,
    few_replicas,
    finite_retention,
    in_sync_rules,
    log_age_found_ms,
    log_age_max_ms,
    log_rules,
    positions_rules,
    problems_of,
    progress_rules,
    readers_rules,
    schemas_rules,
    table_rules,
)
from topics.names import (
    POSITIONS_TOPIC,
    SCHEMAS_TOPIC,
    ShardTopics,
    readers_topic,
    topology_topic,
)

__all__ = [
    "TopicSettings",
    "broker_transaction_timeout_ms",
    "provision_keyspace",
    "provision_readers",
    "provision_positions_topic",
    "provision_schemas_topic",
    "provision_shard",
    "provision_table_topics",
    "topic_warnings",
    "wrong_topics",
]

# A new topic has a leader within a second; busy brokers take longer.
_CREATE_TIMEOUT_S: Final = 60.0
_CREATE_PAUSE_S: Final = 0.1

# Kafka's default of transaction.max.timeout.ms.
_TRANSACTION_TIMEOUT_DEFAULT_MS: Final = 15 * 60 * 1000

_DEFAULTS: Final = TopicSettings()

Found = Mapping[str, FoundTopic]


def provision_shard(
    config: ClientConfig,
    topics: ShardTopics,
    chosen: TopicSettings = _DEFAULTS,
) -> None:
    """Create the log, progress and copy topics of a shard, or check those that exist.

    WrongTopic when one has other settings, UsageError when a grant is missing.
    """
    _provision(config, chosen, lambda found: _shard_rules(topics, chosen, found))


def provision_keyspace(
    config: ClientConfig,
    keyspace: str,
    chosen: TopicSettings = _DEFAULTS,
) -> None:
    """Create the topology topic of a keyspace, or check the existing one."""
    rules = control_rules(topology_topic(keyspace))
    _provision(config, chosen, lambda _found: [rules])


def provision_readers(
    config: ClientConfig,
    keyspace: str,
    chosen: TopicSettings = _DEFAULTS,
) -> None:
    """Create the topic in which named readers of a keyspace report, or check the existing one."""
    rules = readers_rules(readers_topic(keyspace))
    _provision(config, chosen, lambda _found: [rules])


def provision_schemas_topic(config: ClientConfig, chosen: TopicSettings = _DEFAULTS) -> None:
    """Create the schema topic of the cluster, or check the existing one."""
    rules = schemas_rules(SCHEMAS_TOPIC)
    _provision(config, chosen, lambda _found: [rules])


def provision_positions_topic(config: ClientConfig, chosen: TopicSettings = _DEFAULTS) -> None:
    """Create the topic of positions of the cluster, or check the existing one."""
    rules = positions_rules(POSITIONS_TOPIC)
    _provision(config, chosen, lambda _found: [rules])


def provision_table_topics(
    config: ClientConfig,
    topics: Collection[str],
    partitions: int,
    keep_ms: int | None,
    chosen: TopicSettings = _DEFAULTS,
) -> None:
    """Create topics of tables, or check those that exist; `keep_ms` None keeps the last records."""
    rules = [table_rules(topic, partitions, keep_ms) for topic in topics]
    _provision(config, chosen, lambda _found: rules)


def wrong_topics(
    config: ClientConfig,
    shards: Sequence[ShardTopics],
    chosen: TopicSettings = _DEFAULTS,
) -> list[str]:
    """Return the problems of the existing topics of a keyspace; creates nothing."""
    admin = open_reachable_admin(config)
    problems = []
    keyspaces = sorted({s.keyspace for s in shards})
    wanted = [control_rules(topology_topic(k)) for k in keyspaces]
    wanted.append(schemas_rules(SCHEMAS_TOPIC))
    found = _find(admin, config, [rules.topic for rules in wanted])
    problems += _problems(wanted, found, config.brokers)
    for topics in shards:
        found = _find(admin, config, [rules.topic for rules in _shard_rules(topics, chosen, {})])
        problems += _problems(_shard_rules(topics, chosen, found), found, config.brokers)
    return problems


def topic_warnings(
    config: ClientConfig,
    shards: Sequence[ShardTopics],
    chosen: TopicSettings = _DEFAULTS,
) -> list[str]:
    """Return warnings about shard logs that can lose records: retention, a single replica."""
    admin = open_reachable_admin(config)
    found = _find(admin, config, [topics.log for topics in shards])
    warnings: list[str] = []
    for topics in shards:
        log = found.get(topics.log)
        replicas = replicas_chosen(admin, config, chosen) if log is None else log.replicas
        warnings += few_replicas(topics.log, replicas)
        created = {"retention.bytes": str(KEEP_ALL), **log_rules(topics, chosen).settings()}
        warnings += finite_retention(topics.log, created if log is None else log.settings)
    return warnings


def broker_transaction_timeout_ms(config: ClientConfig) -> int:
    """Return the longest transaction that the brokers allow.

    Producers use it as their timeout, because long database transactions need the time, while a
    dead producer only delays its own shard, until its successor aborts the transaction.
    """
    value = _broker_setting(open_admin(config), config, "transaction.max.timeout.ms")
    return _TRANSACTION_TIMEOUT_DEFAULT_MS if value is None else int(value)


def replicas_chosen(admin: AdminClient, config: ClientConfig, chosen: TopicSettings) -> int:
    """Return the number of replicas of a topic created now; -1 is the brokers' default."""
    if chosen.replication_factor != BROKERS_DEFAULT:
        return chosen.replication_factor
    value = _broker_setting(admin, config, "default.replication.factor")
    return BROKERS_DEFAULT if value is None else int(value)


def _broker_setting(admin: AdminClient, config: ClientConfig, name: str) -> str | None:
    doing = f"reading {name} of a broker"
    with kafka_errors(doing, config.brokers):
        cluster = admin.list_topics(timeout=REQUEST_TIMEOUT_S)
    resource = ConfigResource(ResourceType.BROKER, str(min(cluster.brokers)))
    return _describe_settings(admin, config, [resource], doing)[resource.name].get(name)


def _shard_rules(topics: ShardTopics, chosen: TopicSettings, found: Found) -> list[TopicRules]:
    """Return the rules of a shard; its progress topic follows the log's effective retention."""
    log = found.get(topics.log)
    log_age_ms = (
        log_age_max_ms(chosen.retention_ms, SEGMENT_MS) if log is None else log_age_found_ms(log)
    )
    return [
        log_rules(topics, chosen),
        progress_rules(topics, log_age_ms),
        control_rules(topics.copy),
    ]


def _provision(
    config: ClientConfig,
    chosen: TopicSettings,
    rules_for: Callable[[Found], list[TopicRules]],
) -> None:
    admin = open_reachable_admin(config)
    names = [rules.topic for rules in rules_for({})]
    found = _find(admin, config, names)
    wanted = rules_for(found)
    _refuse_wrong(wanted, found, config.brokers)
    missing = [rules for rules in wanted if rules.topic not in found]
    if not missing:
        return
    _create(admin, config, missing, replicas_chosen(admin, config, chosen))
    found = _await_topics(admin, config, names)
    # Another process may have created one of them in between.
    _refuse_wrong(rules_for(found), found, config.brokers)


def _refuse_wrong(wanted: list[TopicRules], found: Found, brokers: str) -> None:
    problems = _problems(wanted, found, brokers)
    if problems:
        raise WrongTopic(problems)


def _problems(wanted: list[TopicRules], found: Found, brokers: str) -> list[str]:
    return [
        problem
        for rules in wanted
        if rules.topic in found
        for problem in problems_of(rules, found[rules.topic], brokers)
    ]


def _create(
    admin: AdminClient,
    config: ClientConfig,
    missing: list[TopicRules],
    replicas: int,
) -> None:
    in_sync = {rule.name: rule.value for rule in in_sync_rules(replicas)}
    new = [
        NewTopic(r.topic, r.partitions, replicas, config={**r.settings(), **in_sync})
        for r in missing
    ]
    # The first pass only validates, so that the refusal of one topic leaves none of them behind.
    for validate_only in (True, False):
        futures = admin.create_topics(
            new,
            request_timeout=REQUEST_TIMEOUT_S,
            validate_only=validate_only,
        )
        for topic, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    raise kafka_error(error, f"creating topic {topic}", config.brokers) from error


def _await_topics(admin: AdminClient, config: ClientConfig, names: list[str]) -> Found:
    """Return the topics once each has a leader; Retry when this takes too long."""
    deadline = Deadline(_CREATE_TIMEOUT_S)
    while True:
        found = _find(admin, config, names)
        missing = [name for name in names if name not in found]
        if not missing:
            return found
        if deadline.passed:
            raise Retry(
                f"topics {', '.join(missing)} were created and have no leader after "
                f"{_CREATE_TIMEOUT_S:g} s (brokers {config.brokers})",
            )
        time.sleep(_CREATE_PAUSE_S)


def _find(admin: AdminClient, config: ClientConfig, names: list[str]) -> Found:
    """Return the topics that exist and have a leader, with their settings."""
    partitions = {}
    futures = admin.describe_topics(
        TopicCollection(names),
        request_timeout=REQUEST_TIMEOUT_S,
    )
    for name, future in futures.items():
        try:
            description: TopicDescription = future.result()
        except KafkaException as error:
            if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                raise kafka_error(error, f"describing topic {name}", config.brokers) from error
            continue
        if all(partition.leader is not None for partition in description.partitions):
            found = description.partitions
            partitions[name] = (len(found), min(len(p.replicas) for p in found))
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in partitions]
    if not resources:
        return {}
    settings = _describe_settings(admin, config, resources, "describing topics' settings")
    return {
        name: FoundTopic(count, settings[name], replicas)
        for name, (count, replicas) in partitions.items()
        if name in settings
    }


def _describe_settings(
    admin: AdminClient,
    config: ClientConfig,
    resources: list[ConfigResource],
    doing: str,
) -> dict[str, dict[str, str]]:
    """Return the settings by name, without topics that the queried broker does not know."""
    answers = {}
    futures = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
    for resource, future in futures.items():
        try:
            entries = future.result()
        except KafkaException as error:
            # Another broker described the topic; this one does not know it yet.
            if error.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
                continue
            raise kafka_error(error, f"{doing} ({resource.name})", config.brokers) from error
        answers[resource.name] = {e.name: e.value for e in entries.values() if e.value is not None}
    return answers
