"""The required settings of each topic, and checks of existing topics against them. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from topics.kafka.client import RECORD_BYTES_MAX
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
_DAY_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Rule:
    """A topic's setting and the value it is created with.

    `at_least`: larger numbers are right too, and -1 means unlimited. `checked` False: an operator
    may change it later.
    """

    name: str
    value: str
    at_least: bool = False
    checked: bool = True

    def holds(self, found: str | None) -> bool:
        """Tell whether the value found on a topic is right; None: the broker does not report it."""
        if not self.checked:
            return True
        if found is None:
            return False
        if not self.at_least:
            return found == self.value
        return _endless(int(found)) >= _endless(int(self.value))


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
    """An existing topic: its partitions, its effective settings, and its fewest replicas."""

    partitions: int
    settings: Mapping[str, str]
    replicas: int


def log_rules(topics: ShardTopics, chosen: TopicSettings) -> TopicRules:
    """Return the rules of a shard log."""
    return TopicRules(
        topics.log,
        (
            Rule("cleanup.policy", "delete"),
            Rule("retention.ms", str(chosen.retention_ms), checked=False),
            Rule("segment.ms", str(SEGMENT_MS), checked=False),
            *_event_time_rules(),
            *_safety_rules(RECORD_BYTES_MAX),
        ),
    )


def progress_rules(topics: ShardTopics, log_age_ms: int) -> TopicRules:
    """Return the rules of a progress topic, whose history is kept as long as the log's records."""
    return TopicRules(
        topics.progress,
        (
            Rule("cleanup.policy", "compact"),
            Rule("min.compaction.lag.ms", str(log_age_ms), at_least=True),
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
    segment = Rule("segment.ms", str(_READERS_SEGMENT_MS), checked=False)
    return TopicRules(topic, (*rules, segment))


def schemas_rules(topic: str) -> TopicRules:
    """Return the rules of the schema topic: nothing is ever deleted or compacted."""
    return TopicRules(
        topic,
        (
            Rule("cleanup.policy", "delete"),
            Rule("retention.ms", str(KEEP_ALL)),
            Rule("retention.bytes", str(KEEP_ALL)),
            *_safety_rules(_CONTROL_BYTES_MAX),
        ),
    )


def positions_rules(topic: str) -> TopicRules:
    """Return the rules of the topic of positions, which tasks read back from its ends."""
    return TopicRules(
        topic,
        (
            Rule("cleanup.policy", "compact"),
            # A task that finds no position of its own reads a whole partition.
            Rule("segment.bytes", str(_POSITIONS_SEGMENT_BYTES), checked=False),
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
            *_safety_rules(RECORD_BYTES_MAX),
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


def _event_time_rules() -> tuple[Rule, ...]:
    """Accept the time of the change as timestamp: clocks may be ahead, and logs may begin late."""
    return (
        Rule("message.timestamp.type", "CreateTime"),
        Rule("message.timestamp.after.max.ms", str(FOREVER_MS), at_least=True),
        Rule("message.timestamp.before.max.ms", str(FOREVER_MS), at_least=True),
    )


def _safety_rules(record_bytes_max: int) -> Iterator[Rule]:
    yield Rule("max.message.bytes", str(record_bytes_max), at_least=True)
    # A leader that was not in sync would lose committed records.
    yield Rule("unclean.leader.election.enable", "false")


def in_sync_rules(replicas: int) -> tuple[Rule, ...]:
    """Return the rule by which commits survive one broker, for a topic with three replicas."""
    if replicas <= _MAJORITY_OF_THREE:
        return ()  # a second required copy would stop writes with the loss of either broker
    return (Rule("min.insync.replicas", str(_MAJORITY_OF_THREE), at_least=True),)


def problems_of(wanted: TopicRules, found: FoundTopic, brokers: str) -> list[str]:
    """Return the problems of an existing topic, each with the command that fixes it."""
    problems = []
    if found.partitions != wanted.partitions:
        problems.append(
            f"{wanted.topic} has {found.partitions} partitions, not {wanted.partitions}, so its "
            f"records have no order to rely on, and Kafka cannot remove partitions. If it is not "
            f"needed, delete it: "
            f"kafka-topics.sh --bootstrap-server {brokers} --delete --topic {wanted.topic}",
        )
    for rule in (*wanted.rules, *in_sync_rules(found.replicas)):
        value = found.settings.get(rule.name)
        if not rule.holds(value):
            least = "at least " if rule.at_least else ""
            is_now = "is not reported by the broker" if value is None else f"is {value}"
            problems.append(
                f"{wanted.topic}: {rule.name} {is_now}, must be {least}{rule.value}: "
                f"kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics "
                f"--entity-name {wanted.topic} --add-config {rule.name}={rule.value}",
            )
    return problems


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

    What the broker does not report is warned of, too: nobody can tell what is deleted when.
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
