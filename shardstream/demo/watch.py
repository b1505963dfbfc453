"""What the demo's screen shows, read from the progress topics alone: no producer is asked."""

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

# Rates are taken over this window: long enough to be calm, short enough to follow.
RATE_WINDOW_S = 3.0
# Progress records taken in one look; a shard writes at most some 50 a second.
RECORDS_MAX = 2_000


@dataclass
class ShardView:
    """The newest progress of one shard and its recent rate.

    `is_target`: its log is nobody's to read before BEGIN. `end`: its END, behind which no reader
    goes, with the progress of that moment.
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
        """What the shard is to readers."""
        if self.end is not None:
            return "ended"
        return "filling" if self.is_target and self.begin is None else "serving"

    @property
    def rows(self) -> int:
        """Records of the shard's log that belong to the stream so far."""
        if self.progress is None or self.state == "filling":
            return 0
        return self.progress.last_seq - self._skipped

    def take(self, progress: Progress) -> None:
        """Take the next progress record; the first END is the last word."""
        if self.end is not None:
            return
        self.progress = progress
        mark = progress.mark
        if mark is not None and mark.kind is MarkKind.BEGIN:
            # A mark ends its Kafka transaction: it is the last record there, and read itself.
            self.begin, self._skipped = mark, progress.last_seq - 1
        elif mark is not None and mark.kind is MarkKind.END:
            self.end = mark

    @property
    def rows_per_s(self) -> float:
        """Records a second over the last seconds."""
        if len(self._history) < 2:
            return 0.0
        (began_s, first), (ended_s, last) = self._history[0], self._history[-1]
        return (last - first) / max(ended_s - began_s, 1e-3)

    def note(self, now_s: float) -> None:
        """Remember where the shard stands at this moment."""
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
        """Follow a shard that a reshard fills, too."""
        self._follow(ShardView(shard, is_target=True))

    def _follow(self, view: ShardView) -> None:
        self.views[view.shard] = view
        topic = ShardTopics(self._keyspace, view.shard).progress
        self._shard_of[topic] = view.shard
        self._next[topic] = OFFSET_BEGINNING
        # An assignment replaces the one before: each topic goes on where it is.
        self._consumer.assign([TopicPartition(name, 0, at) for name, at in self._next.items()])

    def close(self) -> None:
        """Let go of the brokers."""
        self._consumer.close()

    def look(self, timeout_s: float) -> None:
        """Take what has come within `timeout_s` seconds."""
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
        """The smallest head, rounded down to the grid; None while a shard has said nothing.

        A shard that has ended counts until all shards that take its place have begun.
        """
        heads = []
        for view in self.views.values():
            if view.state == "filling" or (view.end is not None and self._have_begun(view.end)):
                continue
            if view.progress is None:
                return None
            heads.append(view.progress.head_us)
        return min(heads) // GRID_US * GRID_US

    def _have_begun(self, end: Mark) -> bool:
        return all(self.views[target].begin is not None for target in end.targets)

    @property
    def rows(self) -> int:
        """Records of the stream in all logs."""
        return sum(view.rows for view in self.views.values())
