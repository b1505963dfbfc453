"""Shows the position of a named reader as offsets of a consumer group.

Nothing reads them back: they are for the tools that show consumer lag.
"""

from concurrent.futures import Future, wait
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from event_token import StreamPosition
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.deadline import Deadline
from topics.kafka.errors import kafka_error, kafka_errors
from topics.names import ShardTopics, reader_group

# The next offsets follow within seconds.
REQUEST_S_MAX: Final = 10.0
# What brokers answer for a group that nobody has committed to.
_NO_GROUP: Final = "GROUP_ID_NOT_FOUND"


class GroupOffsets:
    """Writes the offsets of one group without waiting: at most one request is under way.

    When the shards of the position change, the group is deleted first, for offsets of a shard that
    the reader has left would look like a lag that never ends. Where that is refused, they stay.
    """

    def __init__(self, config: ClientConfig, keyspace: str, name: str) -> None:
        """Name the group; nothing is written."""
        self.group = reader_group(keyspace, name)
        self._config = config
        self._keyspace = keyspace
        self._admin: AdminClient | None = None
        self._topics: frozenset[str] = frozenset()  # that have offsets of this reader
        self._wanted: dict[str, int] = {}
        self._deleting: Future[Any] | None = None
        self._altering: Future[Any] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        return self._deleting is not None or self._altering is not None

    def commit(self, position: StreamPosition) -> None:
        """Begin to write the offsets, unless earlier ones are under way."""
        if self.is_busy:
            return
        if self._admin is None:
            self._admin = open_admin(self._config)
        self._wanted = {
            ShardTopics(self._keyspace, shard).log: at.offset
            for shard, at in position.shards.items()
        }
        if self._topics == self._wanted.keys():
            self._altering = self._alter(self._admin)
            return
        deleted = self._admin.delete_consumer_groups([self.group], request_timeout=REQUEST_S_MAX)
        self._deleting = deleted[self.group]

    def advance(self, timeout_s: float = 0) -> None:
        """Go on with what is under way, for that time at most; its error if it has failed."""
        deadline = Deadline(timeout_s)
        if self._deleting is not None and wait([self._deleting], deadline.left_s).done:
            self._deleting = None
            if self._admin is not None:
                self._altering = self._alter(self._admin)
        if self._altering is None or not wait([self._altering], deadline.left_s).done:
            return
        done, self._altering = self._altering, None
        with kafka_errors(f"writing the offsets of group {self.group}", self._config.brokers):
            for part in done.result().topic_partitions:
                if part.error is not None:
                    raise KafkaException(part.error)
        self._topics = frozenset(self._wanted)

    def _alter(self, admin: AdminClient) -> "Future[Any]":
        partitions = [TopicPartition(topic, 0, offset) for topic, offset in self._wanted.items()]
        altered = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(self.group, partitions)], request_timeout=REQUEST_S_MAX
        )
        return altered[self.group]


def delete_group(config: ClientConfig, keyspace: str, name: str) -> None:
    """Delete the group of a reader, if there is one."""
    group = reader_group(keyspace, name)
    admin = open_admin(config)
    deleted = admin.delete_consumer_groups([group], request_timeout=REQUEST_S_MAX)
    try:
        deleted[group].result()
    except KafkaException as error:
        if error.args[0].name() != _NO_GROUP:
            raise kafka_error(error, f"deleting group {group}", config.brokers) from error
