"""Names of everything that lies on Kafka. Nothing else in the project puts such a name together."""

import re
from dataclasses import dataclass

from event_token import ShardName
from event_token.errors import UsageError

SCHEMAS_TOPIC = "_shardstream.schemas"

# A keyspace name carries no dot, so that `<keyspace>.<shard>` splits in one way only.
_KEYSPACE = re.compile(r"[A-Za-z0-9_-]{1,100}")


def check_keyspace(keyspace: str) -> str:
    """Return `keyspace` unchanged, or raise UsageError when it cannot be part of a topic name."""
    if not _KEYSPACE.fullmatch(keyspace):
        message = f"keyspace {keyspace!r}: use 1 to 100 of the characters A-Z a-z 0-9 _ -"
        raise UsageError(message)
    return keyspace


def topology_topic(keyspace: str) -> str:
    """Name of the compacted control topic that says which shards a keyspace has."""
    return f"{check_keyspace(keyspace)}.topology"


def topology_transactional_id(keyspace: str) -> str:
    """Fencing id of whoever writes the topology of a keyspace."""
    return topology_topic(keyspace)


@dataclass(frozen=True, slots=True)
class ShardTopics:
    """The topics and the fencing id of one shard, e.g. `commerce` and `80-c0.2`."""

    keyspace: str
    shard: str

    def __post_init__(self) -> None:
        """Refuse names that could not be read back."""
        check_keyspace(self.keyspace)
        if str(ShardName.parse(self.shard)) != self.shard:
            message = f"shard {self.shard!r} is not in canonical form {ShardName.parse(self.shard)}"
            raise UsageError(message)

    @property
    def log(self) -> str:
        """The shard log: one partition, offset order is binlog order."""
        return f"{self.keyspace}.{self.shard}"

    @property
    def progress(self) -> str:
        """The progress topic: one partition, compacted, one key."""
        return f"{self.log}.progress"

    @property
    def copy(self) -> str:
        """The control topic with copy progress by table."""
        return f"{self.log}.copy"

    @property
    def transactional_id(self) -> str:
        """The id that fences: at most one producer of this shard can commit."""
        return self.log
