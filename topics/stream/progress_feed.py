"""Feeds a planner from the progress topics of the shards that it needs, with one consumer."""

import time
from typing import Final

from topics.errors import PositionTooOld
from topics.kafka.client import ClientConfig
from topics.kafka.consumer import BROKERS_DOWN_S_MAX, OffsetOutOfRangeError, StreamConsumer
from topics.kafka.lookups import Lookup, Lookups
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.progress.history import ProgressHistory
from topics.reading.followed_shards import FollowedShards
from topics.records.table_shape import SchemaIds

# Progress records per poll; shards that the planner no longer wants are read no further.
TAKE_MAX: Final = 500
# Progress records are small: 1 MiB is a minute of eight busy shards.
QUEUE_KBYTES_MAX: Final = 1_024
# Of each topic in one fetch: so one that is far behind leaves room for the others.
_FETCH_BYTES: Final = 64 * 1024
# How often to look for the missing topics of a target: those of a cancelled reshard may be gone
# before a reader has reached the CANCEL.
ABSENT_RETRY_S: Final = 1.0


def clock_ms() -> int:
    """Return the time for `seen_at_ms` and `Planner.next_batch`: monotonic milliseconds."""
    return time.monotonic_ns() // 1_000_000


class ProgressFeed:
    """Follows the progress of a planner's shards and, at a reshard, of its targets.

    One feed per planner. Not thread-safe. No connection is made before `poll`. Broker restarts are
    waited out; BrokersUnreachable (Retry) after `brokers_down_s_max`.
    """

    def __init__(
        self,
        config: ClientConfig,
        keyspace: str,
        schema_ids: SchemaIds,
        *,
        brokers_down_s_max: float = BROKERS_DOWN_S_MAX,
    ) -> None:
        """Name the keyspace."""
        self._config = config
        self._keyspace = keyspace
        self._schema_ids = schema_ids
        self._brokers_down_s_max = brokers_down_s_max
        self._followed: dict[str, str | None] = {}  # shard: the reshard whose BEGIN is expected
        self._shard_of: dict[str, str] = {}
        self._next_offsets: dict[str, int] = {}
        self._absent_until_s: dict[str, float] = {}
        self._resting: set[str] = set()  # topics of which the planner has enough for now
        self._consumer: StreamConsumer | None = None

    def poll(self, planner: FollowedShards, timeout_s: float) -> int:
        """Pass new progress records to the planner; return their number.

        Waits up to `timeout_s` only if there are none. Raises the errors of
        `FollowedShards.observe`, such as PositionTooOld when progress does not reach back to its
        position, and LogShrank (Halt) when a progress topic is gone.
        """
        consumer = self._follow(planner)
        self._follow_wants(consumer, planner)
        try:
            messages = consumer.take(timeout_s, TAKE_MAX)
        except OffsetOutOfRangeError as error:
            raise PositionTooOld(
                f"{error}: progress still needed was removed. Start again from earliest",
            ) from error
        seen_at_ms = clock_ms()
        for message in messages:
            topic, offset = str(message.topic()), message.offset() or 0
            progress = decode_progress(
                message.value(), self._schema_ids, f"{topic}, offset {offset}"
            )
            self._next_offsets[topic] = offset + 1
            planner.observe(self._shard_of[topic], progress, seen_at_ms)
        return len(messages)

    def _follow(self, planner: FollowedShards) -> StreamConsumer:
        """Follow the shards that the planner wants now; a hop changes them."""
        wanted: dict[str, str | None] = dict.fromkeys(planner.position.shards)
        wanted |= {shard: target.reshard_id for shard, target in planner.targets.items()}
        now_s = time.monotonic()
        for shard, until_s in list(self._absent_until_s.items()):
            if until_s > now_s:
                wanted.pop(shard, None)
            else:
                del self._absent_until_s[shard]
        if self._consumer is not None and wanted == self._followed:
            return self._consumer
        if self._consumer is None:
            self._consumer = StreamConsumer(
                self._config,
                f"the progress of keyspace {self._keyspace}",
                queue_kbytes_max=QUEUE_KBYTES_MAX,
                fetch_bytes=_FETCH_BYTES,
                brokers_down_s_max=self._brokers_down_s_max,
            )
        # A target that has begun is followed as one of the shards.
        known = {
            shard
            for shard, reshard_id in wanted.items()
            if shard in self._followed and reshard_id in {None, self._followed[shard]}
        }
        with Lookups(self._config) as lookups:
            first = lookups.results(
                {s: self._first_offset(planner, s) for s in wanted if s not in known}
            )
        offsets: dict[str, int] = {}
        for shard in list(wanted):
            topic = ShardTopics(self._keyspace, shard).progress
            if shard in known:
                offsets[topic] = self._next_offsets[topic]
            elif (offset := first[shard]) is not None:
                offsets[topic] = offset
            else:
                del wanted[shard]
                self._absent_until_s[shard] = now_s + ABSENT_RETRY_S
        self._consumer.assign(offsets)
        self._followed, self._next_offsets = wanted, offsets
        self._shard_of = {ShardTopics(self._keyspace, shard).progress: shard for shard in wanted}
        self._resting.clear()
        return self._consumer

    def _first_offset(self, planner: FollowedShards, shard: str) -> Lookup[int | None]:
        """Return the first progress offset to read; None for a target that does not exist."""
        position = planner.position
        history = ProgressHistory(self._keyspace, shard, self._schema_ids)
        if shard in position.shards:
            at = position.shards[shard]
            yield from history.check_same_log(at, position.frontier_us)
            return (yield from history.offset_for_position(at, position.frontier_us))
        exists = yield from history.exists(gone_s=0.0)  # it is asked again
        if not exists:
            return None
        return (yield from history.offset_for_time(planner.targets[shard].from_us))

    def _follow_wants(self, consumer: StreamConsumer, planner: FollowedShards) -> None:
        unwanted = {topic for topic, shard in self._shard_of.items() if not planner.wants(shard)}
        if unwanted == self._resting:
            return
        if enough := unwanted - self._resting:
            consumer.remove(sorted(enough))
        if again := self._resting - unwanted:
            consumer.add({topic: self._next_offsets[topic] for topic in sorted(again)})
        self._resting = unwanted

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
