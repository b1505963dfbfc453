"""Reads the markers of tasks back from the topic of positions."""

import time
from dataclasses import dataclass, field

from confluent_kafka import Consumer

from spark_consumers.sink_query.run import Applied
from spark_consumers.sink_query.same_keys import SameKeyWatch
from spark_consumers.table_topics.marker import Marker, marker_partition
from spark_consumers.table_topics.moves import RecentHomes
from spark_consumers.table_topics.options import TopicOptions
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import (
    TAIL_TIMEOUT_S,
    PartitionReader,
    StoredRecord,
    open_end_consumer,
)
from topics.kafka.stable_end import await_readable
from topics.names import POSITIONS_TOPIC, table_topics_transactional_id

# Progress is asked for several times per second; each answer reads one record per task.
LOOK_S = 2.0


def read_marker(config: ClientConfig, transactional_id: str, partition: int) -> Marker | None:
    """Return the last committed marker of a task, None before its first one.

    Only after fencing: until then a predecessor may commit. Retry while another producer's open
    transaction hides what may be the last one.
    """
    await_readable(config, POSITIONS_TOPIC, partition)
    return _last_marker(config, transactional_id, partition, None)


def _last_marker(
    config: ClientConfig, transactional_id: str, partition: int, consumer: Consumer | None
) -> Marker | None:
    key = transactional_id.encode()
    with PartitionReader(config, POSITIONS_TOPIC, partition, TAIL_TIMEOUT_S, consumer) as reader:
        for window in reader.windows_back():
            found: StoredRecord | None = None
            for record in window:
                if record.key == key:
                    found = record
            if found is not None:
                where = f"{POSITIONS_TOPIC}[{partition}], offset {found.offset}"
                return Marker.from_json(found.value, where)
    return None


@dataclass(slots=True)
class WrittenSoFar:
    """What all tasks of a prefix have committed: records, and the frontier up to which they have.

    Calls return what was found up to LOOK_S ago. SameKeys: a key has had several live rows for
    longer than the window of `options`.
    """

    config: ClientConfig
    options: TopicOptions
    _looked_s: float = float("-inf")
    _found: Applied = field(default_factory=lambda: Applied(0))
    _watches: list[SameKeyWatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin to watch each task's keys: tasks are a batch apart for a while."""
        where = f"table topics {self.options.envelope.prefix}"
        on_same_key = self.options.on_same_key
        self._watches = [SameKeyWatch(where, on_same_key) for _ in range(self.options.tasks)]

    def __call__(self) -> Applied:
        """Return it for a line of progress."""
        if time.monotonic() - self._looked_s >= LOOK_S:
            self.look()
        return self._found

    def look(self) -> Applied:
        """Ask the brokers."""
        consumer = open_end_consumer(self.config)
        try:
            markers = [self._marker(task, consumer) for task in range(self.options.tasks)]
        finally:
            consumer.close()
        ends = [None if m is None or m.end is None else m.end.frontier_us for m in markers]
        frontiers = [end for end in ends if end is not None]
        self._found = Applied(
            sum(0 if marker is None else marker.records for marker in markers),
            min(frontiers) if len(frontiers) == self.options.tasks else None,
        )
        self._looked_s = time.monotonic()
        for watch, marker in zip(self._watches, markers, strict=True):
            end_us = 0 if marker is None or marker.end is None else marker.end.frontier_us
            homes = RecentHomes(() if marker is None else marker.moves)
            watch.see(end_us, homes.same_keys(end_us - self.options.move_window_us))
        return self._found

    def check_end(self) -> None:
        """Take the end of a run that has read everything there was. SameKeys as `look`."""
        for watch in self._watches:
            watch.end()

    def _marker(self, task: int, consumer: Consumer) -> Marker | None:
        envelope = self.options.envelope
        name = table_topics_transactional_id(envelope.keyspace, envelope.prefix, task)
        partition = marker_partition(envelope.keyspace, envelope.prefix, task)
        return _last_marker(self.config, name, partition, consumer)
