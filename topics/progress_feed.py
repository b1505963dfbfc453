"""Feeds a planner from the progress topics of all its shards, with one consumer."""

import time
from collections.abc import Iterable
from typing import Final

from event_token import StreamPosition
from topics.kafka_client import ClientConfig
from topics.names import ShardTopics
from topics.progress_codec import decode_progress
from topics.progress_history import ProgressHistory
from topics.reading.errors import PositionTooOld
from topics.reading.planner import Planner
from topics.schema_ids import SchemaIds
from topics.stream_consumer import BROKERS_DOWN_S_MAX, OffsetOutOfRangeError, StreamConsumer

# Progress records taken at a time; a shard that a planner no longer wants is paused after these.
TAKE_MAX: Final = 500
# Progress records are small: 1 MiB is a minute of eight busy shards.
QUEUE_KBYTES_MAX: Final = 1_024


def clock_ms() -> int:
    """The clock of `seen_at_ms` and of `Planner.next_batch`: milliseconds, never set back."""
    return time.monotonic_ns() // 1_000_000


class ProgressFeed:
    """Follows the progress topics of some shards. Not for two threads at once.

    No network before `seek`. Broker restarts are waited out; BrokersUnreachable (Retry) after
    `brokers_down_s_max`.
    """

    def __init__(
        self,
        config: ClientConfig,
        keyspace: str,
        shards: Iterable[str],
        schema_ids: SchemaIds,
        *,
        brokers_down_s_max: float = BROKERS_DOWN_S_MAX,
    ) -> None:
        """Say what to follow."""
        self._config = config
        self._keyspace = keyspace
        self._schema_ids = schema_ids
        self._brokers_down_s_max = brokers_down_s_max
        self._shard_of = {ShardTopics(keyspace, shard).progress: shard for shard in shards}
        self._paused: set[str] = set()
        self._consumer: StreamConsumer | None = None

    def seek(self, position: StreamPosition) -> None:
        """Begin where a new planner at `position` can begin.

        A planner that is fed from there raises PositionTooOld when no progress is that old.
        """
        offsets = {}
        for topic, shard in self._shard_of.items():
            with ProgressHistory(self._config, self._keyspace, shard, self._schema_ids) as history:
                seq = position.shards[shard].seq
                offsets[topic] = history.offset_for_position(seq, position.frontier_us)
        if self._consumer is None:
            self._consumer = StreamConsumer(
                self._config,
                f"the progress of keyspace {self._keyspace}",
                queue_kbytes_max=QUEUE_KBYTES_MAX,
                brokers_down_s_max=self._brokers_down_s_max,
            )
        self._consumer.assign(offsets)
        self._paused.clear()

    def poll(self, planner: Planner, timeout_s: float) -> int:
        """Give the planner what has come; return how many records that was.

        Waits up to `timeout_s` only where nothing is there. Errors of the planner's `observe`
        come through. LogShrank (Halt) when a progress topic is gone.
        """
        if self._consumer is None:
            self.seek(planner.position)
        consumer = self._consumer
        assert consumer is not None  # noqa: S101 - seek has just made it
        self._follow_wants(consumer, planner)
        try:
            messages = consumer.take(timeout_s, TAKE_MAX)
        except OffsetOutOfRangeError as error:
            raise PositionTooOld(
                f"{error}: progress that is still wanted was removed. Start again from earliest",
            ) from error
        seen_at_ms = clock_ms()
        for message in messages:
            topic = str(message.topic())
            where = f"{topic}, offset {message.offset()}"
            progress = decode_progress(message.value(), self._schema_ids, where)
            planner.observe(self._shard_of[topic], progress, seen_at_ms)
        return len(messages)

    def _follow_wants(self, consumer: StreamConsumer, planner: Planner) -> None:
        unwanted = {topic for topic, shard in self._shard_of.items() if not planner.wants(shard)}
        if unwanted == self._paused:
            return
        if pause := sorted(unwanted - self._paused):
            consumer.pause(pause)
        if resume := sorted(self._paused - unwanted):
            consumer.resume(resume)
        self._paused = unwanted

    def close(self) -> None:
        """Leave Kafka."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
