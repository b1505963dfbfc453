"""Reads the ends of all progress topics of a keyspace: no database is asked."""

import time
from dataclasses import replace
from typing import Self

from event_token.errors import Retry, UsageError
from topics.errors import BrokersUnreachable
from topics.fleet.ends import TopicEnds
from topics.fleet.view import KeyspaceView, ShardLook, keyspace_view, written_at_us
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.partition_reader import open_end_consumer
from topics.kafka.requests import retry_request
from topics.keyspace.topology import ReshardState, ShardState, Topology, read_topology
from topics.names import ShardTopics, readers_topic
from topics.progress.codec import decode_progress
from topics.progress.record import MarkKind
from topics.readers.feed import ReadersFeed
from topics.readers.record import NamedReader
from topics.records.schema_ids import SchemaIds
from topics.stream.log_marks import marks_at_end


class FleetWatch:
    """Looks at keyspaces again and again, in requests per broker. A context manager."""

    def __init__(self, config: ClientConfig, schema_ids: SchemaIds) -> None:
        """Open a consumer; nothing is read."""
        self._config = config
        self._schema_ids = schema_ids
        self._consumer = open_end_consumer(config)
        self._admin = open_admin(config)
        self._ends: dict[str, TopicEnds] = {}
        self._readers: dict[str, ReadersFeed] = {}
        self._before: dict[str, KeyspaceView] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._consumer.close()

    def look(self, keyspace: str) -> KeyspaceView:
        """Return how the shards are now; UsageError for a keyspace without topics.

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
        if topology is None:
            raise UsageError(f"keyspace {keyspace} has no topology: start a producer of it first")
        looks = self._shard_looks(topology, known)
        self._look_for_ends(topology, looks)
        readers = self._named_readers(keyspace, known)
        view = keyspace_view(
            topology, looks, time.time_ns() // 1_000, readers, self._before.get(keyspace)
        )
        self._before[keyspace] = view
        return view

    def _shard_looks(self, topology: Topology, known: frozenset[str]) -> dict[str, ShardLook]:
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
        return {
            entry.name: self._shard_look(each, ends, is_live=entry in live)
            for entry, each in topics.items()
        }

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

    def _shard_look(self, topics: ShardTopics, ends: TopicEnds, *, is_live: bool) -> ShardLook:
        last = ends.last_of(topics.progress)
        if not last:
            return ShardLook()
        newest = last[-1]
        where = f"{topics.progress}, offset {newest.offset}"
        progress = decode_progress(newest.value, self._schema_ids, where, newest.headers)
        oldest = decode_progress(last[0].value, self._schema_ids, where)
        us = progress.server_time_us - oldest.server_time_us
        rate = (progress.last_seq - oldest.last_seq) * 1_000_000 / us if us > 0 else 0.0
        copies = ends.copies_of(topics.copy) if is_live else ()
        written_us = written_at_us(progress, time.time_ns() // 1_000)
        return ShardLook(progress, written_us, rate, copies)
