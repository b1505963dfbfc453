"""Reads the state of keyspaces from the ends of their topics, and from no database."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Self

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from event_token.errors import Retry
from topics.errors import BrokersUnreachable
from topics.fleet.view import KeyspaceView, ShardEnds, keyspace_view, written_at_us
from topics.kafka.client import ClientConfig, open_admin, retry_request
from topics.kafka.partition_reader import (
    PartitionReader,
    StoredRecord,
    bounds_of,
    open_end_consumer,
    read_ranges,
)
from topics.kafka.provisioning import retentions_ms
from topics.keyspace.topology import (
    ReshardState,
    ShardState,
    Topology,
    read_topology,
    require_topology,
)
from topics.named_readers import NamedReader, ReadersFeed
from topics.names import ShardTopics, readers_topic
from topics.progress.codec import decode_progress
from topics.progress.copy_topic import TableCopy, decode
from topics.progress.record import JournalKind
from topics.records.table_shape import SchemaIds
from topics.stream.target_marks import marks_at_end

# Offsets over which a rate is measured, commit markers included. They span some seconds of an idle
# shard's heartbeats, and a moment of a busy one.
RATE_OFFSETS: Final = 64
_TIMEOUT_S: Final = 30.0
# Retention is changed by hand, and is asked for at one broker, for all logs of a keyspace.
RETENTION_S: Final = 60.0


class TopicEnds:
    """The last records of progress topics, and the present records of copy topics."""

    def __init__(self, config: ClientConfig, consumer: Consumer, admin: AdminClient) -> None:
        """Read nothing yet. The consumer, which is not closed here, keeps no assignment."""
        self._config = config
        self._consumer = consumer
        self._admin = admin
        self._next: dict[str, int] = {}
        self._last: dict[str, list[StoredRecord]] = {}
        self._copies: dict[str, dict[tuple[str, str], TableCopy]] = {}

    def look(self, progress: Sequence[str], copy: Sequence[str]) -> None:
        """Read the records committed to these topics since the last call.

        At its first call a progress topic is read from its end, and a copy topic from its
        beginning. Retry when brokers do not answer, CorruptRecord on an unknown copy record.
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
        if not records and start < end:  # the last record may lie before aborted transactions
            reader = PartitionReader(self._config, topic, 0, _TIMEOUT_S, self._consumer)
            with reader:
                last = reader.last_between(start, end)
            records = [] if last is None else [last]
        lower = max(start, end - RATE_OFFSETS)
        self._last[topic] = [r for r in records if r.offset >= lower] or records[-1:]

    def _take_copies(self, topic: str, new: Sequence[StoredRecord]) -> None:
        tables = self._copies.setdefault(topic, {})
        for record in new:
            if record.value is None:  # a removed request or answer
                continue
            copy = decode(record.key, record.value, f"{topic}, offset {record.offset}")
            if isinstance(copy, TableCopy):
                tables[copy.database, copy.table] = copy

    def _forget(self, topic: str) -> None:
        self._next.pop(topic, None)
        self._last.pop(topic, None)
        self._copies.pop(topic, None)


class FleetWatch:
    """Reads the state of keyspaces again and again, with one request per broker.

    A context manager.
    """

    def __init__(self, config: ClientConfig, schema_ids: SchemaIds) -> None:
        """Open a consumer; read nothing."""
        self._config = config
        self._schema_ids = schema_ids
        self._consumer = open_end_consumer(config)
        self._admin = open_admin(config)
        self._ends: dict[str, TopicEnds] = {}
        self._readers: dict[str, ReadersFeed] = {}
        self._before: dict[str, KeyspaceView] = {}
        # By keyspace, when to ask again, and the answer by log.
        self._retention: dict[str, tuple[float, Mapping[str, int]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._consumer.close()

    def look(self, keyspace: str) -> KeyspaceView:
        """Return the present state of a keyspace; UsageError if it has no topics.

        BrokersUnreachable when Kafka does not answer within the client's `answer_s`.
        """
        try:
            topology = read_topology(self._config, keyspace, self._consumer)
            known = retry_request("listing the topics", self._config, self._topics)
        except Retry as error:
            raise BrokersUnreachable(
                f"Kafka does not answer (brokers {self._config.brokers}): check that it runs, and "
                "that this host reaches it"
            ) from error
        topology = require_topology(topology, keyspace)
        looks = self._shard_looks(topology, known)
        self._look_for_ends(topology, looks)
        readers = self._named_readers(keyspace, known)
        view = keyspace_view(
            topology, looks, time.time_ns() // 1_000, readers, self._before.get(keyspace)
        )
        self._before[keyspace] = view
        return view

    def _shard_looks(self, topology: Topology, known: frozenset[str]) -> dict[str, ShardEnds]:
        """Return the ends of all shards' topics."""
        topics = {entry: ShardTopics(topology.keyspace, entry.name) for entry in topology.shards}
        live = {entry for entry in topics if entry.state != ShardState.RETIRED}
        ends = self._ends.get(topology.keyspace)
        if ends is None:
            ends = TopicEnds(self._config, self._consumer, self._admin)
            self._ends[topology.keyspace] = ends
        ends.look(
            [each.progress for each in topics.values() if each.progress in known],
            [each.copy for entry, each in topics.items() if entry in live and each.copy in known],
        )
        logs = [each.log for each in topics.values() if each.log in known]
        retention_ms = self._retentions_ms(topology.keyspace, logs)
        return {
            entry.name: replace(
                self._shard_look(each, ends, is_live=entry in live),
                retention_ms=retention_ms.get(each.log),
            )
            for entry, each in topics.items()
        }

    def _retentions_ms(self, keyspace: str, logs: Sequence[str]) -> Mapping[str, int]:
        now_s = time.monotonic()
        due_s, found = self._retention.get(keyspace, (now_s, {}))
        if now_s >= due_s:
            found = retentions_ms(self._admin, self._config, logs)
            self._retention[keyspace] = now_s + RETENTION_S, found
        return found

    def _look_for_ends(self, topology: Topology, looks: dict[str, ShardEnds]) -> None:
        """Add to the sources of running reshards when their writes were stopped, if they were."""
        for entry in topology.reshards:
            if entry.state != ReshardState.RUNNING.value:
                continue
            for source in entry.sources:
                if looks.get(source, ShardEnds()).progress is None:
                    continue
                mark = marks_at_end(
                    self._config,
                    ShardTopics(topology.keyspace, source),
                    self._schema_ids,
                    topology.sharded_databases.__contains__,
                    self._consumer,
                ).get(entry.reshard_id)
                if mark is not None and mark.kind is JournalKind.END:
                    ended_us = {**looks[source].ended_us, entry.reshard_id: mark.timestamp_us}
                    looks[source] = replace(looks[source], ended_us=ended_us)

    def _named_readers(self, keyspace: str, known: frozenset[str]) -> tuple[NamedReader, ...]:
        if readers_topic(keyspace) not in known:
            return ()
        feed = self._readers.setdefault(keyspace, ReadersFeed(self._config, keyspace))
        return feed.look(self._consumer)

    def _topics(self, timeout_s: float) -> frozenset[str]:
        return frozenset(self._consumer.list_topics(timeout=timeout_s).topics)

    def _shard_look(self, topics: ShardTopics, ends: TopicEnds, *, is_live: bool) -> ShardEnds:
        last = ends.last_of(topics.progress)
        if not last:
            return ShardEnds()
        newest = last[-1]
        where = f"{topics.progress}, offset {newest.offset}"
        progress = decode_progress(newest.value, self._schema_ids, where, newest.headers)
        oldest = decode_progress(last[0].value, self._schema_ids, where)
        us = progress.server_time_us - oldest.server_time_us
        rate = (progress.last_seq - oldest.last_seq) * 1_000_000 / us if us > 0 else 0.0
        copies = ends.copies_of(topics.copy) if is_live else ()
        written_us = written_at_us(progress, time.time_ns() // 1_000)
        return ShardEnds(progress, written_us, rate, copies)
