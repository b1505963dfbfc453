"""What the demo's screen shows, read from the progress topics alone: no producer is asked."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from event_token.errors import Halt
from topics.kafka_client import ClientConfig, open_consumer
from topics.names import ShardTopics
from topics.progress import GRID_US, Progress
from topics.progress_codec import decode_progress
from topics.schema_ids import SchemaIds

# Rates are taken over this window: long enough to be calm, short enough to follow.
RATE_WINDOW_S = 3.0
# Progress records taken in one look; a shard writes at most some 50 a second.
RECORDS_MAX = 2_000


@dataclass
class ShardView:
    """The newest progress of one shard and its recent rate."""

    shard: str
    progress: Progress | None = None
    _history: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def seq(self) -> int:
        """Records in the shard's log so far."""
        return 0 if self.progress is None else self.progress.last_seq

    @property
    def rows_per_s(self) -> float:
        """Records a second over the last seconds."""
        if len(self._history) < 2:
            return 0.0
        (began_s, first), (ended_s, last) = self._history[0], self._history[-1]
        return (last - first) / max(ended_s - began_s, 1e-3)

    def note(self, now_s: float) -> None:
        """Remember where the shard stands at this moment."""
        self._history.append((now_s, self.seq))
        while self._history[0][0] < now_s - RATE_WINDOW_S:
            self._history.popleft()


class ProgressWatch:
    """Follows the progress topics of all shards with one consumer."""

    def __init__(
        self, config: ClientConfig, keyspace: str, shards: Sequence[str], schema_ids: SchemaIds
    ) -> None:
        self.views = {shard: ShardView(shard) for shard in shards}
        self._schema_ids = schema_ids
        self._shard_of = {ShardTopics(keyspace, shard).progress: shard for shard in shards}
        self._consumer = open_consumer(config)
        self._consumer.assign(
            [TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in self._shard_of]
        )

    def close(self) -> None:
        """Let go of the brokers."""
        self._consumer.close()

    def look(self, timeout_s: float) -> None:
        """Take what has come within `timeout_s` seconds."""
        for message in self._consumer.consume(RECORDS_MAX, timeout=timeout_s):
            error = message.error()
            if error is None:
                shard = self._shard_of[message.topic() or ""]
                self.views[shard].progress = decode_progress(message.value(), self._schema_ids)
            elif error.fatal():
                raise Halt(f"reading progress: {error.str()}")
        now_s = time.monotonic()
        for view in self.views.values():
            view.note(now_s)

    @property
    def frontier_us(self) -> int | None:
        """The smallest head, rounded down to the grid; None while a shard has said nothing."""
        heads = [view.progress.head_us for view in self.views.values() if view.progress]
        if len(heads) < len(self.views):
            return None
        return min(heads) // GRID_US * GRID_US

    @property
    def rows(self) -> int:
        """Records in all logs."""
        return sum(view.seq for view in self.views.values())
