"""Reads the ends of all progress topics of a keyspace: no database is asked."""

import time
from dataclasses import replace
from typing import Final, Self

from event_token.errors import UsageError
from topics.fleet.view import KeyspaceView, ShardLook, keyspace_view, written_at_us
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import PartitionReader, StoredRecord, open_end_consumer
from topics.kafka.requests import retry_request
from topics.keyspace.topology import ReshardState, ShardState, Topology, read_topology
from topics.names import ShardTopics, readers_topic
from topics.progress.codec import decode_progress
from topics.progress.copy_topic import TableCopy, read_copies
from topics.progress.record import MarkKind
from topics.readers.feed import ReadersFeed
from topics.readers.record import NamedReader
from topics.records.schema_ids import SchemaIds
from topics.stream.log_marks import marks_at_end

# Offsets from which a rate is taken; commits and their markers share them. Some seconds of an idle
# shard's heartbeats, and a moment of a busy one.
_RATE_OFFSETS: Final = 64
_TIMEOUT_S: Final = 30.0


class FleetWatch:
    """Looks at keyspaces again and again with one consumer. A context manager."""

    def __init__(self, config: ClientConfig, schema_ids: SchemaIds) -> None:
        """Open a consumer; nothing is read."""
        self._config = config
        self._schema_ids = schema_ids
        self._consumer = open_end_consumer(config)
        self._readers: dict[str, ReadersFeed] = {}
        self._before: dict[str, KeyspaceView] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._consumer.close()

    def look(self, keyspace: str) -> KeyspaceView:
        """Return how the shards are now; UsageError for a keyspace without topics."""
        topology = read_topology(self._config, keyspace)
        if topology is None:
            raise UsageError(f"keyspace {keyspace} has no topology: start a producer of it first")
        known = retry_request("listing the topics", self._config, self._topics)
        looks = {
            entry.name: self._shard_look(
                ShardTopics(keyspace, entry.name), known, is_live=entry.state != ShardState.RETIRED
            )
            for entry in topology.shards
        }
        self._look_for_ends(topology, looks)
        readers = self._named_readers(keyspace, known)
        view = keyspace_view(
            topology, looks, time.time_ns() // 1_000, readers, self._before.get(keyspace)
        )
        self._before[keyspace] = view
        return view

    def _look_for_ends(self, topology: Topology, looks: dict[str, ShardLook]) -> None:
        """Add to the sources of running reshards when they have ended, if they have."""
        for entry in topology.reshards:
            if entry.state != ReshardState.RUNNING.value:
                continue
            for source in entry.sources:
                if looks.get(source, ShardLook()).progress is None:
                    continue
                mark = marks_at_end(
                    self._config,
                    ShardTopics(topology.keyspace, source),
                    self._schema_ids,
                    topology.sharded_databases.__contains__,
                    self._consumer,
                ).get(entry.reshard_id)
                if mark is not None and mark.kind == MarkKind.END.value:
                    ended_us = {**looks[source].ended_us, entry.reshard_id: mark.timestamp_us}
                    looks[source] = replace(looks[source], ended_us=ended_us)

    def _named_readers(self, keyspace: str, known: frozenset[str]) -> tuple[NamedReader, ...]:
        if readers_topic(keyspace) not in known:
            return ()
        feed = self._readers.setdefault(keyspace, ReadersFeed(self._config, keyspace))
        return feed.look(self._consumer)

    def _topics(self, timeout_s: float) -> frozenset[str]:
        return frozenset(self._consumer.list_topics(timeout=timeout_s).topics)

    def _shard_look(
        self, topics: ShardTopics, known: frozenset[str], *, is_live: bool
    ) -> ShardLook:
        if topics.progress not in known:
            return ShardLook()
        last = self._last_records(topics.progress)
        if not last:
            return ShardLook()
        newest = last[-1]
        where = f"{topics.progress}, offset {newest.offset}"
        progress = decode_progress(newest.value, self._schema_ids, where)
        oldest = decode_progress(last[0].value, self._schema_ids, where)
        us = progress.server_time_us - oldest.server_time_us
        rate = (progress.last_seq - oldest.last_seq) * 1_000_000 / us if us > 0 else 0.0
        copies: tuple[TableCopy, ...] = ()
        if is_live and topics.copy in known:
            copies = tuple(read_copies(self._config, topics, self._consumer).values())
        written_us = written_at_us(progress, time.time_ns() // 1_000)
        return ShardLook(progress, written_us, rate, copies)

    def _last_records(self, topic: str) -> list[StoredRecord]:
        with PartitionReader(self._config, topic, 0, _TIMEOUT_S, self._consumer) as reader:
            start, end = reader.bounds()
            found = list(reader.records(max(start, end - _RATE_OFFSETS), end))
            if found:
                return found
            last = reader.last_between(start, end)
            return [] if last is None else [last]
