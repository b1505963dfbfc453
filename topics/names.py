"""Names of topics and transactional ids. No other module builds such a name."""

import re
from dataclasses import dataclass

from event_token import ShardName
from event_token.errors import UsageError

SCHEMAS_TOPIC = "_shardstream.schemas"
# Where queries that write to Kafka keep how far they have come.
POSITIONS_TOPIC = "_shardstream.positions"

# Without a dot in the keyspace, `<keyspace>.<shard>` is unambiguous.
_KEYSPACE = re.compile(r"[A-Za-z0-9_-]{1,100}")
# With a slash, which no reader's name has.
_APPLIER = "reshard/"
# With a dot, as in `billing.eu`: it is the last part of the group's name.
_READER = re.compile(r"[A-Za-z0-9._-]{1,100}")
_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
# Without dots, which separate the parts of the topic's name.
_TABLE_PART = re.compile(r"[A-Za-z0-9_-]+")
_TOPIC_CHARS_MAX = 249  # Kafka's
_TOPOLOGY = "topology"


def check_keyspace(keyspace: str) -> str:
    """Return `keyspace` unchanged; UsageError if it cannot be part of a topic name."""
    if not isinstance(keyspace, str) or not _KEYSPACE.fullmatch(keyspace):
        message = f"keyspace {keyspace!r}: use 1 to 100 of the characters A-Z a-z 0-9 _ -"
        raise UsageError(message)
    return keyspace


def topology_topic(keyspace: str) -> str:
    """Return the name of the compacted topic that lists the shards of a keyspace."""
    return f"{check_keyspace(keyspace)}.{_TOPOLOGY}"


def topology_transactional_id(keyspace: str) -> str:
    """Return the transactional id that fences writers of a keyspace's topology."""
    return topology_topic(keyspace)


def readers_topic(keyspace: str) -> str:
    """Return the name of the compacted topic in which named readers report their positions."""
    return f"{check_keyspace(keyspace)}.readers"


def audit_topic(keyspace: str) -> str:
    """Return the name of the topic that says who changed a keyspace by a command."""
    return f"{check_keyspace(keyspace)}.audit"


def check_reader_name(name: str) -> str:
    """Return the name of a reader unchanged; UsageError if it cannot be part of a group's name."""
    if not isinstance(name, str) or not _READER.fullmatch(name):
        message = f"reader name {name!r}: use 1 to 100 of the characters A-Z a-z 0-9 . _ -"
        raise UsageError(message)
    return name


@dataclass(frozen=True, slots=True)
class ApplierName:
    """The name under which the applier of a reshard's target reports; no reader can have it."""

    reshard_id: str
    target: str

    def __str__(self) -> str:
        return f"{_APPLIER}{self.reshard_id}/{self.target}"

    @classmethod
    def parse(cls, name: str) -> "ApplierName | None":
        """Return the name of an applier, None for that of a reader."""
        if not name.startswith(_APPLIER):
            return None
        reshard_id, _, target = name.removeprefix(_APPLIER).rpartition("/")
        return cls(reshard_id, target)


def reader_group(keyspace: str, name: str) -> str:
    """Return the consumer group whose offsets show the position of a named reader."""
    return f"shardstream.{check_keyspace(keyspace)}.{check_reader_name(name)}"


@dataclass(frozen=True, slots=True)
class ShardTopics:
    """The topics and the transactional id of one shard, e.g. `commerce` and `80-c0.2`."""

    keyspace: str
    shard: str

    def __post_init__(self) -> None:
        """Refuse names that cannot be parsed back."""
        check_keyspace(self.keyspace)
        if str(ShardName.parse(self.shard)) != self.shard:
            message = f"shard {self.shard!r} is not in canonical form {ShardName.parse(self.shard)}"
            raise UsageError(message)

    @property
    def log(self) -> str:
        """The shard log: one partition, whose offset order is binlog order."""
        return f"{self.keyspace}.{self.shard}"

    @property
    def progress(self) -> str:
        """The progress topic: one partition, compacted, with a single key."""
        return f"{self.log}.progress"

    @property
    def copy(self) -> str:
        """The copy topic: requests for copies (backfills), and the progress of each table's."""
        return f"{self.log}.copy"

    @property
    def written(self) -> tuple[str, str, str]:
        """All that a transaction of the shard's producer may have records in."""
        return self.log, self.progress, self.copy

    @property
    def transactional_id(self) -> str:
        """The id that fences: at most one producer of the shard can commit."""
        return self.log


def check_prefix(prefix: str) -> str:
    """Return the prefix of table topics unchanged; UsageError if it cannot be one."""
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(
            f"prefix {prefix!r}: use the characters A-Z a-z 0-9 _ - and dots between them"
        )
    return prefix


def table_topic(prefix: str, database: str, table: str) -> str:
    """Return the topic of a table, `<prefix>.<database>.<table>`; UsageError if there is none."""
    topic = f"{check_prefix(prefix)}.{database}.{table}"
    if not _TABLE_PART.fullmatch(database) or not _TABLE_PART.fullmatch(table):
        raise UsageError(
            f"table {database}.{table}: Kafka takes only A-Z a-z 0-9 _ - in the name of its topic; "
            "leave the table out: name the others with --table"
        )
    if len(topic) > _TOPIC_CHARS_MAX:
        raise UsageError(f"topic {topic}: Kafka allows {_TOPIC_CHARS_MAX} characters")
    return topic


def table_topics_transactional_id(keyspace: str, prefix: str, task: int) -> str:
    """Return the transactional id of a task that writes table topics."""
    return f"{check_keyspace(keyspace)}.table-topics.{check_prefix(prefix)}.{task}"
