"""Reads the markers of tasks back from the topic of positions."""

import json
import time
import zlib
from dataclasses import dataclass, field
from typing import cast

from confluent_kafka import Consumer

from event_token.errors import Halt, UsageError
from event_token.position import StreamPosition
from sinks.errors import TargetConflict
from sinks.resume import Applied
from sinks.same_keys import SameKeyWatch
from sinks.table_topics.moves import RecentHomes
from sinks.table_topics.options import TopicOptions
from topics.arrow.key_scope import KeyScope
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import (
    TAIL_TIMEOUT_S,
    PartitionReader,
    StoredRecord,
    await_readable,
    open_end_consumer,
)
from topics.kafka.topic_settings import POSITIONS_PARTITIONS
from topics.names import POSITIONS_TOPIC, table_topics_transactional_id

# The version of the JSON layout; another one is refused.
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Owner:
    """The run of a query that may write; a later run has a greater `generation`.

    `name` names its process for an operator. `tasks`, `partitions`, `key_scope` and `key_range`
    must not change. `tables` (`database.table`): those that it writes, empty for all.
    """

    generation: int
    name: str
    tasks: int
    partitions: int
    key_scope: KeyScope = KeyScope.KEYSPACE
    key_range: str = "-"
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Marker:
    """What a task has written: all rows of its keys before `end`; None before the first batch.

    `query` and `batch` say which batch wrote it, `start` where that began. `records`: how many
    records the task has written in all. `moves`: see `moves`.
    """

    owner: Owner
    query: str = ""
    batch: int = -1
    start: StreamPosition | None = None
    end: StreamPosition | None = None
    moves: tuple[object, ...] = ()
    records: int = 0

    def to_json(self) -> bytes:
        """Return the value of its record."""
        return json.dumps(
            {
                "version": _VERSION,
                "generation": self.owner.generation,
                "owner": self.owner.name,
                "tasks": self.owner.tasks,
                "partitions": self.owner.partitions,
                "key_scope": self.owner.key_scope,
                "key_range": self.owner.key_range,
                "tables": self.owner.tables,
                "query": self.query,
                "batch": self.batch,
                "start": None if self.start is None else self.start.to_string(),
                "end": None if self.end is None else self.end.to_string(),
                "moves": self.moves,
                "records": self.records,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_json(cls, value: bytes | None, where: str) -> "Marker":
        """Parse the value of a record; Halt unless it is a marker of this release."""
        try:
            found = json.loads(value or b"null")
            if found["version"] != _VERSION:
                raise Halt(f"{where}: a marker of version {found['version']}, of another release")
            owner = Owner(
                int(found["generation"]),
                str(found["owner"]),
                int(found["tasks"]),
                int(found["partitions"]),
                KeyScope(found.get("key_scope", KeyScope.KEYSPACE)),
                str(found.get("key_range", "-")),
                tuple(map(str, found.get("tables", ()))),
            )
            return cls(
                owner,
                str(found["query"]),
                int(found["batch"]),
                _position(found["start"]),
                _position(found["end"]),
                tuple(cast("list[object]", found["moves"])),
                int(found["records"]),
            )
        except (ValueError, KeyError, TypeError, UsageError) as error:
            raise Halt(f"{where}: not a marker of table topics: {error!r}") from error


def _position(text: object) -> StreamPosition | None:
    return None if text is None else StreamPosition.from_string(str(text))


def marker_partition(keyspace: str, prefix: str, task: int) -> int:
    """Return the partition of a task's markers; tasks of one query have different ones."""
    return (zlib.crc32(f"{keyspace}.{prefix}".encode()) + task) % POSITIONS_PARTITIONS


def check_owner(stored: Owner, own: Owner, transactional_id: str) -> None:
    """TargetConflict when a later run owns the topics, or their numbers are others."""
    if stored.generation > own.generation:
        raise TargetConflict(
            f"{transactional_id}: another query took over these topics: {stored.name} "
            f"(generation {stored.generation}; this one is {own.name}, generation "
            f"{own.generation}). Only one can write them; this one must stay stopped"
        )
    moved, lacking = "keys would change their place", "rows from before it would be missing"
    for name, was, now, why in (
        ("--tasks", stored.tasks, own.tasks, moved),
        ("--partitions", stored.partitions, own.partitions, moved),
        ("--key-scope", stored.key_scope, own.key_scope, moved),
        ("--key-range", stored.key_range, own.key_range, lacking),
    ):
        if was != now:
            raise TargetConflict(
                f"{transactional_id}: the topics were begun with {name} {was}, and this query has "
                f"{now}: {why}. Continue with {name} {was}, or begin new "
                f"topics under another --prefix"
            )


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

    def applied(self) -> Applied:
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
        self.look()
        for watch in self._watches:
            watch.end()

    def _marker(self, task: int, consumer: Consumer) -> Marker | None:
        envelope = self.options.envelope
        name = table_topics_transactional_id(envelope.keyspace, envelope.prefix, task)
        partition = marker_partition(envelope.keyspace, envelope.prefix, task)
        return _last_marker(self.config, name, partition, consumer)
