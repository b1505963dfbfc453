"""The required settings of each topic, and checks of existing topics against them. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from topics.kafka.client import MESSAGE_BYTES_MAX
from topics.names import ShardTopics

FOREVER_MS: Final = 2**63 - 1
KEEP_ALL: Final = -1
# The replication factor for which brokers use their default.
BROKERS_DEFAULT: Final = -1

# Kafka's default: only closed segments are deleted, so records outlive the retention by up to one
# segment. Nobody needs them earlier; a log that has other segments is taken as it is.
SEGMENT_MS: Final = 7 * 24 * 3600 * 1000

# For the position of a server with many gaps, and one tick per cell of a transaction that catches
# up.
_PROGRESS_BYTES_MAX: Final = 16 * 1024 * 1024
_CONTROL_BYTES_MAX: Final = 16 * 1024 * 1024

# Whoever looks at the readers reads the open segment: a record per reader every 10 s. Compaction
# leaves one per reader of the others.
_READERS_SEGMENT_MS: Final = 3600 * 1000
# Transactions that are open in a partition hide what others have committed there: enough partitions
# that the tasks of a query have one each.
POSITIONS_PARTITIONS: Final = 64
_POSITIONS_SEGMENT_BYTES: Final = 16 * 1024 * 1024

_MAJORITY_OF_THREE: Final = 2
COMPACTION_LAG: Final = "min.compaction.lag.ms"

# One more than Kafka's default: a topic with that was created by a client that asked for it by
# mistake, and its records end after a week.
RECORD_BYTES_MIN: Final = 1024 * 1024 + 13
# What providers allow where they do not allow what we ask for: Confluent Cloud's dedicated
# clusters, and MSK Serverless and Confluent Cloud's others; at last the least that will do.
RECORD_BYTES_OFFERS: Final = (20 * 1024 * 1024, 8 * 1024 * 1024, RECORD_BYTES_MIN)
# Kafka's default since 4.0. Producers cut times that are further ahead than a minute.
_CLOCK_AHEAD_MS: Final = 3600 * 1000
# Brokers before 3.6 have one setting for both, without a limit by default.
_TIMES_UNKNOWN: Final = "a broker that limits the times of records stops the shard"
_BYTES_UNKNOWN: Final = "ask who runs Kafka whether records are deleted by size"
_DAY_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Rule:
    """A topic's setting and the value it is created with.

    `at_least`: larger numbers are right too, and -1 means unlimited. `checked` False: an operator
    may change it later. Where a provider does not let it be set, it is left out if it is
    `preferred` or has `without`, what that costs; a topic is not used without the others.
    `enough`: a smaller value that is used where a provider allows no more, at the same cost.
    """

    name: str
    value: str
    at_least: bool = False
    checked: bool = True
    preferred: bool = False
    without: str = ""
    enough: str = ""

    @property
    def is_required(self) -> bool:
        """Whether a topic must be created with it."""
        return not (self.preferred or self.without)

    def holds(self, found: str | None) -> bool:
        """Return whether a topic with this value is used; None: the broker does not report it."""
        if not self.checked:
            return True
        if found is None:
            return bool(self.without)
        if not self.at_least:
            return found == self.value
        return _endless(int(found)) >= _endless(int(self.enough or self.value))

    def cost(self, found: str | None) -> str:
        """Return what a topic with this value lacks, "" for nothing."""
        if found is None:
            return self.without and f"{self.name} is not reported by the broker: {self.without}"
        is_less = self.at_least and _endless(int(found)) < _endless(int(self.value))
        if not (self.without and is_less):
            return ""
        return f"{self.name} is {found}, wanted is {self.value}: {self.without}"


def _endless(number: int) -> int:
    return FOREVER_MS if number == KEEP_ALL else number


@dataclass(frozen=True, slots=True)
class TopicRules:
    """A topic, the settings it must have, and its number of partitions."""

    topic: str
    rules: tuple[Rule, ...]
    partitions: int = 1

    def settings(self) -> dict[str, str]:
        """Return the settings that the topic is created with."""
        return {rule.name: rule.value for rule in self.rules}


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings that an operator may choose. `replication_factor` -1 is the brokers' default.

    `retention_ms` is that of shard logs; -1 keeps them forever. Record timestamps are event times,
    so retention counts from the time of the change, not of its arrival.
    """

    replication_factor: int = BROKERS_DEFAULT
    retention_ms: int = KEEP_ALL


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """An existing topic: its partitions, its effective settings, and its fewest replicas.

    `foreign`: the partitions beside the first that hold records.
    """

    partitions: int
    settings: Mapping[str, str]
    replicas: int
    foreign: tuple[int, ...] = ()


def log_rules(topics: ShardTopics, chosen: TopicSettings) -> TopicRules:
    """Return the rules of a shard log."""
    return TopicRules(
        topics.log,
        (
            Rule("cleanup.policy", "delete"),
            Rule("retention.ms", str(chosen.retention_ms), checked=False),
            Rule("segment.ms", str(SEGMENT_MS), checked=False, preferred=True),
            *_event_time_rules(),
            *_safety_rules(MESSAGE_BYTES_MAX, "a larger record goes in parts, which readers join"),
        ),
    )


def progress_rules(topics: ShardTopics, log_age_ms: int, *, can_lag: bool = True) -> TopicRules:
    """Return the rules of a progress topic, whose history is kept as long as the log's records.

    `can_lag` False: the provider has no compaction lag, so nothing is compacted or deleted.
    """
    kept = (
        (
            Rule("cleanup.policy", "compact"),
            Rule(COMPACTION_LAG, str(log_age_ms), at_least=True),
        )
        if can_lag
        else kept_rules()
    )
    return TopicRules(
        topics.progress,
        (
            *kept,
            *_event_time_rules(),
            *_safety_rules(_PROGRESS_BYTES_MAX),
        ),
    )


def control_rules(topic: str) -> TopicRules:
    """Return the rules of a compacted control topic: topology, copy progress."""
    return TopicRules(
        topic,
        (
            Rule("cleanup.policy", "compact"),
            *_event_time_rules(),
            *_safety_rules(_CONTROL_BYTES_MAX),
        ),
    )


def readers_rules(topic: str) -> TopicRules:
    """Return the rules of the compacted topic of named readers."""
    rules = control_rules(topic).rules
    segment = Rule("segment.ms", str(_READERS_SEGMENT_MS), checked=False, preferred=True)
    return TopicRules(topic, (*rules, segment))


def schemas_rules(topic: str) -> TopicRules:
    """Return the rules of the schema topic: nothing is ever deleted or compacted."""
    return TopicRules(
        topic,
        (
            *kept_rules(),
            *_safety_rules(_CONTROL_BYTES_MAX),
        ),
    )


def audit_rules(topic: str) -> TopicRules:
    """Return the rules of an audit topic; an operator may let old records go."""
    kept = tuple(replace(rule, checked=False) for rule in kept_rules())
    return TopicRules(topic, (*kept, *_safety_rules(_CONTROL_BYTES_MAX)))


def positions_rules(topic: str) -> TopicRules:
    """Return the rules of the topic of positions, which tasks read back from its ends."""
    return TopicRules(
        topic,
        (
            Rule("cleanup.policy", "compact"),
            # A task that finds no position of its own reads a whole partition.
            Rule("segment.bytes", str(_POSITIONS_SEGMENT_BYTES), checked=False, preferred=True),
            *_safety_rules(_CONTROL_BYTES_MAX),
        ),
        POSITIONS_PARTITIONS,
    )


def table_rules(topic: str, partitions: int, keep_ms: int | None) -> TopicRules:
    """Return the rules of a table's topic; `keep_ms` deletes records of that age, too."""
    policy = "compact" if keep_ms is None else "compact,delete"
    keep = () if keep_ms is None else (Rule("retention.ms", str(keep_ms), checked=False),)
    return TopicRules(
        topic,
        (
            # An operator may keep all changes, or fewer.
            Rule("cleanup.policy", policy, checked=False),
            *keep,
            *_safety_rules(MESSAGE_BYTES_MAX, "a larger record stops the query"),
        ),
        partitions,
    )


def log_age_max_ms(retention_ms: int, segment_ms: int) -> int:
    """Return the greatest age that a record of a log can reach before it is deleted."""
    if retention_ms == KEEP_ALL:
        return FOREVER_MS
    return min(FOREVER_MS, retention_ms + segment_ms)


def log_age_found_ms(found: FoundTopic) -> int:
    """Return the same for an existing log.

    A retention that the broker does not report may be unlimited. Segments that it does not report
    are taken for what the log was created with, and Kafka's default.
    """
    settings = found.settings
    return log_age_max_ms(
        int(settings.get("retention.ms", KEEP_ALL)), int(settings.get("segment.ms", SEGMENT_MS))
    )


def keeps_all(found: FoundTopic) -> bool:
    """Whether an existing topic keeps every record."""
    return all(rule.holds(found.settings.get(rule.name)) for rule in kept_rules())


def shard_rules(
    topics: ShardTopics, chosen: TopicSettings, found: Mapping[str, FoundTopic]
) -> list[TopicRules]:
    """Return the rules of a shard; its progress topic follows the log's effective retention.

    Some brokers accept a compaction lag that they do not know and report: where a topic in `found`
    lacks it, a new progress topic goes without.
    """
    log = found.get(topics.log)
    log_age_ms = (
        log_age_max_ms(chosen.retention_ms, SEGMENT_MS) if log is None else log_age_found_ms(log)
    )
    progress = found.get(topics.progress)
    can_lag = (
        all(COMPACTION_LAG in topic.settings for topic in found.values())
        if progress is None
        else not keeps_all(progress)
    )
    return [
        log_rules(topics, chosen),
        progress_rules(topics, log_age_ms, can_lag=can_lag),
        control_rules(topics.copy),
    ]


def kept_rules() -> tuple[Rule, ...]:
    """Keep every record."""
    return (
        Rule("cleanup.policy", "delete"),
        Rule("retention.ms", str(KEEP_ALL)),
        Rule("retention.bytes", str(KEEP_ALL), without=_BYTES_UNKNOWN),
    )


def _event_time_rules() -> tuple[Rule, ...]:
    """Accept the time of the change as timestamp: clocks may be ahead, and logs may begin late."""
    return (
        Rule("message.timestamp.type", "CreateTime"),
        Rule(
            "message.timestamp.after.max.ms",
            str(FOREVER_MS),
            at_least=True,
            without=_TIMES_UNKNOWN,
            enough=str(_CLOCK_AHEAD_MS),
        ),
        Rule(
            "message.timestamp.before.max.ms",
            str(FOREVER_MS),
            at_least=True,
            without=_TIMES_UNKNOWN,
        ),
    )


def _safety_rules(
    record_bytes_max: int, without: str = "a larger record stops the shard"
) -> Iterator[Rule]:
    yield Rule(
        "max.message.bytes",
        str(record_bytes_max),
        at_least=True,
        without=without,
        enough=str(RECORD_BYTES_MIN),
    )
    # A leader that was not in sync would lose committed records.
    yield Rule(
        "unclean.leader.election.enable",
        "false",
        without="ask who runs Kafka whether a replica that lacks records may become the leader",
    )


def in_sync_rules(replicas: int) -> tuple[Rule, ...]:
    """Return the rule by which commits survive one broker, for a topic with three replicas."""
    if replicas <= _MAJORITY_OF_THREE:
        return ()  # a second required copy would stop writes with the loss of either broker
    in_sync = Rule(
        "min.insync.replicas",
        str(_MAJORITY_OF_THREE),
        at_least=True,
        without="ask who runs Kafka how many replicas confirm a commit",
    )
    return (in_sync,)


def problems_of(wanted: TopicRules, found: FoundTopic, brokers: str) -> list[str]:
    """Return the problems of an existing topic, each with the command that fixes it."""
    problems = []
    if wanted.partitions == 1:
        problems += [
            _foreign_records(wanted.topic, partition, brokers) for partition in found.foreign
        ]
    elif found.partitions != wanted.partitions:
        problems.append(
            f"{wanted.topic} has {found.partitions} partitions, not {wanted.partitions}, so the "
            f"records of a key have no order to rely on, and Kafka cannot remove partitions. If it "
            f"is not needed, delete it: "
            f"kafka-topics.sh --bootstrap-server {brokers} --delete --topic {wanted.topic}",
        )
    for rule in (*wanted.rules, *in_sync_rules(found.replicas)):
        value = found.settings.get(rule.name)
        if not rule.holds(value):
            must = f"at least {rule.enough or rule.value}" if rule.at_least else rule.value
            is_now = "is not reported by the broker" if value is None else f"is {value}"
            problems.append(
                f"{wanted.topic}: {rule.name} {is_now}, must be {must}: "
                f"kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics "
                f"--entity-name {wanted.topic} --add-config {rule.name}={rule.value}",
            )
    return problems


def _foreign_records(topic: str, partition: int, brokers: str) -> str:
    chosen = json.dumps(
        {"partitions": [{"topic": topic, "partition": partition, "offset": -1}], "version": 1}
    )
    return (
        f"{topic}: partition {partition} has records, and shardstream writes and reads partition 0 "
        f"alone: find out who writes them. Then remove them: write {chosen} to records.json, and "
        f"run kafka-delete-records.sh --bootstrap-server {brokers} --offset-json-file records.json"
    )


def costs_of(wanted: TopicRules, found: FoundTopic) -> list[str]:
    """Return what an existing topic lacks, or has that nobody uses, a sentence for each."""
    rules = (*wanted.rules, *in_sync_rules(found.replicas))
    costs = [rule.cost(found.settings.get(rule.name)) for rule in rules]
    if found.partitions > wanted.partitions == 1:
        costs.append(
            f"has {found.partitions} partitions: all but the first stay empty, and Kafka cannot "
            "remove them"
        )
    return [f"{wanted.topic}: {cost}" for cost in costs if cost]


def few_replicas(topic: str, replicas: int) -> list[str]:
    """Return a warning about a topic that does not survive the loss of a disk; [] if it does."""
    if replicas > 1:
        return []
    if replicas == BROKERS_DEFAULT:
        unknown = (
            f"{topic}: the broker does not report default.replication.factor: set "
            "replication_factor, or ask who runs Kafka how many replicas a new topic gets"
        )
        return [unknown]
    warning = (
        f"{topic}: it has one replica: the loss of that broker's disk loses records that readers "
        f"have seen. In production use three brokers, and replication factor 3"
    )
    return [warning]


def finite_retention(topic: str, settings: Mapping[str, str]) -> list[str]:
    """Return warnings about an existing log with retention by age or size; [] for none.

    A setting that the broker does not report gets a warning, too: its effect is unknown.
    """
    warnings = [
        f"{topic}: the broker does not report {name}: ask who runs Kafka when records are deleted"
        for name in ("retention.ms", "retention.bytes", "segment.ms")
        if name not in settings
    ]
    retention_ms = int(settings.get("retention.ms", KEEP_ALL))
    retention_bytes = int(settings.get("retention.bytes", KEEP_ALL))
    limits = []
    if retention_ms != KEEP_ALL:
        limits.append(f"retention.ms is {retention_ms} ({retention_ms / _DAY_MS:.3g} days)")
    if retention_bytes != KEEP_ALL:
        limits.append(f"retention.bytes is {retention_bytes}")
    return warnings + [
        f"{topic}: {limit}: a reader that is away for longer loses records and stops. Age counts "
        "from the change, so a log that begins in the past may be deleted before it is read"
        for limit in limits
    ]
