"""Creates topics with the required settings, and refuses existing ones with others.

All existing topics are checked first; nothing is created while one of them is wrong.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

from confluent_kafka import OFFSET_END, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in __all__
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from event_token.errors import Retry, UsageError
from topics.errors import WrongTopic
from topics.kafka.client import (
    MESSAGE_BYTES_MAX,
    REQUEST_TIMEOUT_S,
    ClientConfig,
    Deadline,
    open_admin,
    open_reachable_admin,
    retry_request,
)
from topics.kafka.errors import TOPIC_GONE, kafka_error, kafka_errors
from topics.kafka.partition_reader import partitions_with_records
from topics.kafka.topic_settings import (
    BROKERS_DEFAULT,
    COMPACTION_LAG,
    KEEP_ALL,
    RECORD_BYTES_MIN,
    RECORD_BYTES_OFFERS,
    FoundTopic,
    TopicRules,
    TopicSettings,
    audit_rules,
    control_rules,
    costs_of,
    few_replicas,
    finite_retention,
    in_sync_rules,
    kept_rules,
    log_rules,
    positions_rules,
    problems_of,
    readers_rules,
    schemas_rules,
    shard_rules,
    table_rules,
)
from topics.names import (
    POSITIONS_TOPIC,
    SCHEMAS_TOPIC,
    ShardTopics,
    audit_topic,
    readers_topic,
    topology_topic,
)

# A new topic has a leader within a second; busy brokers take longer.
_CREATE_TIMEOUT_S: Final = 60.0
_CREATE_PAUSE_S: Final = 0.1

# Kafka's default of transaction.max.timeout.ms.
_TRANSACTION_TIMEOUT_DEFAULT_MS: Final = 15 * 60 * 1000

_LIMIT: Final = "max.message.bytes"

# How brokers and the policies of providers refuse a setting.
_SETTINGS_REFUSED: Final = frozenset({"INVALID_CONFIG", "POLICY_VIOLATION", "INVALID_REQUEST"})

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
    _provision(config, chosen, lambda found: shard_rules(topics, chosen, found), SCHEMAS_TOPIC)


def provision_keyspace(
    config: ClientConfig,
    keyspace: str,
    chosen: TopicSettings = _DEFAULTS,
) -> None:
    """Create the topology topic of a keyspace, or check the existing one."""
    _provision(config, chosen, lambda _found: [control_rules(topology_topic(keyspace))])


def provision_readers(
    config: ClientConfig,
    keyspace: str,
    chosen: TopicSettings = _DEFAULTS,
) -> None:
    """Create the topic in which named readers of a keyspace report, or check the existing one."""
    _provision(config, chosen, lambda _found: [readers_rules(readers_topic(keyspace))])


def provision_audit(
    config: ClientConfig,
    keyspace: str,
    chosen: TopicSettings = _DEFAULTS,
) -> None:
    """Create the topic of operators' acts on a keyspace, or check the existing one."""
    _provision(config, chosen, lambda _found: [audit_rules(audit_topic(keyspace))])


def provision_schemas_topic(config: ClientConfig, chosen: TopicSettings = _DEFAULTS) -> None:
    """Create the schema topic of the cluster, or check the existing one."""
    _provision(config, chosen, lambda _found: [schemas_rules(SCHEMAS_TOPIC)])


def provision_positions_topic(config: ClientConfig, chosen: TopicSettings = _DEFAULTS) -> None:
    """Create the topic of positions of the cluster, or check the existing one."""
    _provision(config, chosen, lambda _found: [positions_rules(POSITIONS_TOPIC)])


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
        found = _find(admin, config, [rules.topic for rules in shard_rules(topics, chosen, {})])
        problems += _problems(shard_rules(topics, chosen, found), found, config.brokers)
    return problems


def topic_warnings(
    config: ClientConfig,
    shards: Sequence[ShardTopics],
    chosen: TopicSettings = _DEFAULTS,
) -> list[str]:
    """Return warnings about shard logs that can lose records, and what topics lack."""
    admin = open_reachable_admin(config)
    warnings: list[str] = []
    for topics in shards:
        wanted = shard_rules(topics, chosen, {})
        found = _find(admin, config, [rules.topic for rules in wanted])
        for rules in shard_rules(topics, chosen, found):
            if rules.topic in found:
                warnings += costs_of(rules, found[rules.topic])
        log = found.get(topics.log)
        replicas = replicas_chosen(admin, config, chosen) if log is None else log.replicas
        warnings += few_replicas(topics.log, replicas)
        created = {"retention.bytes": str(KEEP_ALL), **log_rules(topics, chosen).settings()}
        warnings += finite_retention(topics.log, created if log is None else log.settings)
    return warnings


def message_bytes_max(config: ClientConfig, topic: str) -> int:
    """Return the largest message, or batch, that brokers and our own client take for a topic.

    Where the brokers do not report it, the least that a log may have.
    """
    resource = ConfigResource(ResourceType.TOPIC, topic)
    doing = f"reading {_LIMIT} of {topic}"
    admin = open_admin(config)

    def ask(_timeout_s: float) -> int | None:
        found = _describe_settings(admin, config, [resource], doing).get(topic)
        return None if found is None else int(found.get(_LIMIT, RECORD_BYTES_MIN))

    limit = retry_request(doing, config, ask)
    return min(limit, int(config.get("message.max.bytes", MESSAGE_BYTES_MAX)))


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


def _provision(
    config: ClientConfig,
    chosen: TopicSettings,
    rules_for: Callable[[Found], list[TopicRules]],
    example: str | None = None,
) -> None:
    """`example`: a topic that shows which settings brokers report, if it exists and may be seen."""
    admin = open_reachable_admin(config)
    names = [rules.topic for rules in rules_for({})]
    found = _find(admin, config, names)
    wanted = rules_for(found)
    _refuse_wrong(wanted, found, config.brokers)
    if all(rules.topic in found for rules in wanted):
        return
    if example is not None:
        with suppress(UsageError):  # not granted; it is not needed
            wanted = rules_for({**found, **_find(admin, config, [example])})
    missing = [rules for rules in wanted if rules.topic not in found]
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
    # Everything is tried first, so that the refusal of one topic leaves none of them behind.
    new = [_accepted_topic(admin, config, rules, replicas) for rules in missing]
    for topic, error in _refusals(admin, new, validate_only=False).items():
        raise kafka_error(error, f"creating topic {topic}", config.brokers) from error


def _accepted_topic(
    admin: AdminClient, config: ClientConfig, rules: TopicRules, replicas: int
) -> NewTopic:
    """Return a topic that the brokers accept, without the settings that a provider refuses.

    Which these are is asked of the brokers, one by one; what they cost stands in `topic_warnings`.
    """

    def topic(settings: dict[str, str]) -> NewTopic:
        return NewTopic(rules.topic, rules.partitions, replicas, config=settings)

    def refusal(settings: dict[str, str]) -> KafkaException | None:
        error = _refusals(admin, [topic(settings)], validate_only=True).get(rules.topic)
        if error is not None and error.args[0].name() not in _SETTINGS_REFUSED:
            raise kafka_error(error, f"creating topic {rules.topic}", config.brokers) from error
        return error

    wanted = (*rules.rules, *in_sync_rules(replicas))
    everything = {rule.name: rule.value for rule in wanted}
    first = refusal(everything)
    if first is None:
        return topic(everything)
    accepted = {rule.name: rule.value for rule in wanted if rule.is_required}
    lag = COMPACTION_LAG
    if lag in accepted and refusal(accepted) is not None:
        kept = {rule.name: rule.value for rule in kept_rules() if rule.is_required}
        accepted = {name: value for name, value in accepted.items() if name != lag} | kept
        wanted = (*(rule for rule in wanted if rule.name not in {lag, *kept}), *kept_rules())
    if refusal(accepted) is not None:
        raise kafka_error(first, f"creating topic {rules.topic}", config.brokers) from first
    for rule in wanted:
        if rule.name in accepted:
            continue
        offers = RECORD_BYTES_OFFERS if rule.name == _LIMIT else ()
        for value in (rule.value, *map(str, offers)):
            if refusal({**accepted, rule.name: value}) is None:
                accepted[rule.name] = value
                break
    if _LIMIT not in accepted:
        _refuse_small(admin, config, rules.topic)
    return topic(accepted)


def _refuse_small(admin: AdminClient, config: ClientConfig, topic: str) -> None:
    """Raise WrongTopic if what the brokers take, where nobody may say, is too little."""
    value = _broker_setting(admin, config, "message.max.bytes")
    if value is not None and int(value) < RECORD_BYTES_MIN:
        problem = (
            f"{topic}: the brokers would create it with {_LIMIT} {value}, and refuse "
            f"{RECORD_BYTES_MIN}, the least that is needed; it was not created: ask who runs "
            f"Kafka to allow that much"
        )
        raise WrongTopic([problem])


def _refusals(
    admin: AdminClient, new: Sequence[NewTopic], *, validate_only: bool
) -> dict[str, KafkaException]:
    """Create topics, or ask whether they could be; return the errors of those that cannot."""
    refused = {}
    futures = admin.create_topics(
        list(new), request_timeout=REQUEST_TIMEOUT_S, validate_only=validate_only
    )
    for topic, future in futures.items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                refused[topic] = error
    return refused


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
    beside = [TopicPartition(n, i) for n, (count, _) in partitions.items() for i in range(1, count)]
    foreign = partitions_with_records(admin, config, beside)
    return {
        name: FoundTopic(count, settings[name], replicas, foreign.get(name, ()))
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


def retentions_ms(
    admin: AdminClient, config: ClientConfig, topics: Sequence[str]
) -> dict[str, int]:
    """Return for how long topics keep a record, as the brokers say now.

    Left out are topics that keep every record, and those whose retention Kafka does not tell: they
    are gone, the account may not see their settings, the brokers cannot say or do not answer. It is
    for show, so whoever asks goes on without it.
    """
    found: dict[str, int] = {}
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    futures = admin.describe_configs(resources, request_timeout=config.answer_s) if topics else {}
    for resource, future in futures.items():
        try:
            entry = future.result().get("retention.ms")
        except KafkaException:
            continue
        if entry is not None and entry.value is not None and int(entry.value) != KEEP_ALL:
            found[resource.name] = int(entry.value)
    return found


def delete_topics(config: ClientConfig, topics: Sequence[str]) -> tuple[str, ...]:
    """Delete topics one after the other; return those that existed. UsageError without a grant."""
    admin = open_admin(config)
    deleted = []
    for topic in topics:
        future = admin.delete_topics([topic], request_timeout=REQUEST_TIMEOUT_S)[topic]
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].name() not in TOPIC_GONE:
                raise kafka_error(error, f"deleting topic {topic}", config.brokers) from error
        else:
            deleted.append(topic)
    return tuple(deleted)


def empty_topic(config: ClientConfig, topic: str) -> int:
    """Delete the records of partition 0; return its new first offset. UsageError without a grant.

    Later records take later offsets, so that no position before is taken for one after.
    """
    admin = open_admin(config)
    wanted = TopicPartition(topic, 0, OFFSET_END)
    [future] = admin.delete_records([wanted], request_timeout=REQUEST_TIMEOUT_S).values()
    try:
        return int(future.result().low_watermark)
    except KafkaException as error:
        raise kafka_error(error, f"deleting the records of {topic}", config.brokers) from error
