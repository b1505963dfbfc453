"""What the demo's screen shows, read from the progress topics alone."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from event_token.errors import Halt
from topics.kafka.client import ClientConfig, open_consumer
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.progress.record import GRID_US, Mark, MarkKind, Progress
from topics.records.schema_ids import SchemaIds

# Rates are averaged over this window: long enough to be steady, short enough to follow.
RATE_WINDOW_S = 3.0
# Progress records per poll; a shard writes at most about 50 per second.
RECORDS_MAX = 2_000


@dataclass
class ShardView:
    """The newest progress of one shard and its recent rate.

    `is_target`: no reader reads its log before BEGIN. `end`: the progress record with its END, the
    last one that readers use.
    """

    shard: str
    is_target: bool = False
    progress: Progress | None = None
    begin: Mark | None = None
    end: Mark | None = None
    _skipped: int = 0  # records before BEGIN
    _history: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def state(self) -> str:
        """Return the shard's state as readers see it."""
        if self.end is not None:
            return "ended"
        return "filling" if self.is_target and self.begin is None else "serving"

    @property
    def rows(self) -> int:
        """Return how many records of the log belong to the stream so far."""
        if self.progress is None or self.state == "filling":
            return 0
        return self.progress.last_seq - self._skipped

    def take(self, progress: Progress) -> None:
        """Take the next progress record; records after the first END are ignored."""
        if self.end is not None:
            return
        self.progress = progress
        mark = progress.mark
        if mark is not None and mark.kind is MarkKind.BEGIN:
            # A mark ends its Kafka transaction: it is the last record, and part of the stream.
            self.begin, self._skipped = mark, progress.last_seq - 1
        elif mark is not None and mark.kind is MarkKind.END:
            self.end = mark

    @property
    def rows_per_s(self) -> float:
        """Return records per second over the last seconds."""
        if len(self._history) < 2:
            return 0.0
        (began_s, first), (ended_s, last) = self._history[0], self._history[-1]
        return (last - first) / max(ended_s - began_s, 1e-3)

    def note(self, now_s: float) -> None:
        """Remember the shard's count at this moment."""
        self._history.append((now_s, self.rows))
        while self._history[0][0] < now_s - RATE_WINDOW_S:
            self._history.popleft()


class ProgressWatch:
    """Follows the progress topics of all shards with one consumer."""

    def __init__(
        self, config: ClientConfig, keyspace: str, shards: Sequence[str], schema_ids: SchemaIds
    ) -> None:
        self.views: dict[str, ShardView] = {}
        self._keyspace = keyspace
        self._schema_ids = schema_ids
        self._shard_of: dict[str, str] = {}
        self._next: dict[str, int] = {}  # offset by topic
        self._consumer = open_consumer(config)
        for shard in shards:
            self._follow(ShardView(shard))

    def follow_target(self, shard: str) -> None:
        """Also follow a target of a reshard."""
        self._follow(ShardView(shard, is_target=True))

    def _follow(self, view: ShardView) -> None:
        self.views[view.shard] = view
        topic = ShardTopics(self._keyspace, view.shard).progress
        self._shard_of[topic] = view.shard
        self._next[topic] = OFFSET_BEGINNING
        # An assignment replaces the previous one, so each topic resumes at its offset.
        self._consumer.assign([TopicPartition(name, 0, at) for name, at in self._next.items()])

    def close(self) -> None:
        """Disconnect from the brokers."""
        self._consumer.close()

    def look(self, timeout_s: float) -> None:
        """Process what arrives within `timeout_s` seconds."""
        for message in self._consumer.consume(RECORDS_MAX, timeout=timeout_s):
            error = message.error()
            topic, offset = message.topic() or "", message.offset()
            if error is None and offset is not None:
                self._next[topic] = offset + 1
                progress = decode_progress(message.value(), self._schema_ids)
                self.views[self._shard_of[topic]].take(progress)
            elif error is not None and error.fatal():
                raise Halt(f"reading progress: {error.str()}")
        now_s = time.monotonic()
        for view in self.views.values():
            view.note(now_s)

    @property
    def frontier_us(self) -> int | None:
        """Return the lowest head (watermark) on the grid; None while a shard has no progress.

        A shard that has ended counts until all shards that replace it have begun.
        """
        heads = []
        for view in self.views.values():
            if view.state == "filling" or (view.end is not None and self._have_begun(view.end)):
                continue
            if view.progress is None:
                return None
            heads.append(view.progress.head_us)
        return min(heads) // GRID_US * GRID_US

    @property
    def newest_us(self) -> int:
        """Return the highest head: no record of any log so far is newer."""
        heads = [view.progress.head_us for view in self.views.values() if view.progress is not None]
        return max(heads, default=0)

    def _have_begun(self, end: Mark) -> bool:
        return all(self.views[target].begin is not None for target in end.targets)

    @property
    def rows(self) -> int:
        """Return how many records all logs contribute to the stream."""
        return sum(view.rows for view in self.views.values())
