"""Follows the ends of the shards' topics: each look reads what is new in all of them together."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from topics.kafka.client import ClientConfig
from topics.kafka.many_topics import bounds_of, read_ranges
from topics.kafka.partition_reader import PartitionReader, StoredRecord
from topics.progress.copy_topic import TableCopy, decode

# Offsets from which a rate is taken; commits and their markers share them. Some seconds of an idle
# shard's heartbeats, and a moment of a busy one.
RATE_OFFSETS: Final = 64
_TIMEOUT_S: Final = 30.0


class TopicEnds:
    """The last records of progress topics, and all present ones of copy topics."""

    def __init__(self, config: ClientConfig, consumer: Consumer, admin: AdminClient) -> None:
        """Nothing is read yet. The consumer stays its owner's, without an assignment."""
        self._config = config
        self._consumer = consumer
        self._admin = admin
        self._next: dict[str, int] = {}
        self._last: dict[str, list[StoredRecord]] = {}
        self._copies: dict[str, dict[tuple[str, str], TableCopy]] = {}

    def look(self, progress: Sequence[str], copy: Sequence[str]) -> None:
        """Read what has been committed to these topics since the last look.

        A topic that is named for the first time is read from its end, or, one of copies, from its
        beginning. Retry when brokers do not answer, CorruptRecord on what is no copy record.
        """
        bounds = bounds_of(self._admin, self._config, [*progress, *copy])
        of_copies = set(copy)
        for topic, (start, end) in bounds.items():
            if end < self._next.get(topic, 0):  # the topic was deleted and created again
                self._forget(topic)
            if topic not in self._next:
                self._next[topic] = start if topic in of_copies else end - RATE_OFFSETS
            self._next[topic] = max(start, self._next[topic])
        for topic in self._next.keys() - bounds.keys():
            self._forget(topic)
        found = self._new_records(bounds)
        for topic in progress:
            if topic in bounds:
                self._keep(topic, *bounds[topic], found.get(topic, []))
                self._next[topic] = bounds[topic][1]
        for topic in copy:
            if topic in bounds:
                self._take_copies(topic, found.get(topic, []))
                self._next[topic] = bounds[topic][1]

    def last_of(self, topic: str) -> Sequence[StoredRecord]:
        """Return the records of a progress topic's last RATE_OFFSETS offsets, at least its last."""
        return self._last.get(topic, ())

    def copies_of(self, topic: str) -> tuple[TableCopy, ...]:
        """Return the progress of each table's copy."""
        return tuple(self._copies.get(topic, {}).values())

    def _new_records(self, bounds: Mapping[str, tuple[int, int]]) -> dict[str, list[StoredRecord]]:
        ranges = {topic: (self._next[topic], end) for topic, (_, end) in bounds.items()}
        found: dict[str, list[StoredRecord]] = defaultdict(list)
        for topic, record in read_ranges(self._consumer, self._config, ranges, _TIMEOUT_S):
            found[topic].append(record)
        return found

    def _keep(self, topic: str, start: int, end: int, new: Sequence[StoredRecord]) -> None:
        records = [*self._last.get(topic, []), *new]
        if not records and start < end:  # what is last may lie before aborted transactions
            reader = PartitionReader(self._config, topic, 0, _TIMEOUT_S, self._consumer)
            with reader:
                last = reader.last_between(start, end)
            records = [] if last is None else [last]
        lower = max(start, end - RATE_OFFSETS)
        self._last[topic] = [r for r in records if r.offset >= lower] or records[-1:]

    def _take_copies(self, topic: str, new: Sequence[StoredRecord]) -> None:
        tables = self._copies.setdefault(topic, {})
        for record in new:
            if record.value is None:  # a request or an answer that is gone
                continue
            copy = decode(record.key, record.value, f"{topic}, offset {record.offset}")
            if isinstance(copy, TableCopy):
                tables[copy.database, copy.table] = copy

    def _forget(self, topic: str) -> None:
        self._next.pop(topic, None)
        self._last.pop(topic, None)
        self._copies.pop(topic, None)
