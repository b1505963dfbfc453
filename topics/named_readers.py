"""Named readers: how they report their positions, and who still needs a shard.

A report is a record in the readers' topic, the last one per name, and the offsets of a group.
"""

import json
import logging
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from enum import StrEnum
from importlib.metadata import version
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from event_token import KeyRange, ShardName, StreamPosition
from event_token.errors import Halt, ShardstreamError, UsageError
from topics.errors import CorruptRecord
from topics.kafka.client import (
    ClientConfig,
    Deadline,
    new_producer,
    open_admin,
    producer_config,
    write_record,
)
from topics.kafka.errors import TopicMissing, kafka_error, kafka_errors
from topics.kafka.partition_reader import PartitionReader
from topics.keyspace.lineage import switched
from topics.keyspace.topology import Topology
from topics.names import ApplierName, ShardTopics, check_reader_name, reader_group, readers_topic

# The version of the JSON layout; others are refused.
LAYOUT: Final = 1
# Reports of a name that are compared to find two readers with one name: a minute of one reader.
RECENT_MAX: Final = 6


class ReaderKind(StrEnum):
    """What reads under a name: an application, a query of Spark, or a cache's invalidator."""

    APPLICATION = "application"
    QUERY = "query"
    CACHE = "cache"


@dataclass(frozen=True, slots=True)
class ReaderRecord:
    """The report of a reader: where a restart would continue, and which process it is.

    `instance` differs between processes. `at_us`: by the clock of `host`. `failed`: how many of
    the process's reports did not reach Kafka before, group offsets included. `kind`: a ReaderKind,
    or one of a newer release.
    """

    name: str
    instance: str
    position: StreamPosition
    key_range: KeyRange
    host: str
    version: str
    at_us: int
    failed: int
    kind: str = ReaderKind.APPLICATION.value


def record_key(name: str) -> bytes:
    """Return the Kafka key of a reader."""
    return name.encode()


def encode_record(record: ReaderRecord) -> bytes:
    """Return the Kafka value; epoch and frontier are added for people."""
    position = record.position
    shown = {"epoch": position.epoch, "frontier_us": position.frontier_us}
    texts = {"position": position.to_string(), "key_range": str(record.key_range)}
    fields = {each.name: getattr(record, each.name) for each in dataclass_fields(record)}
    return json.dumps({"layout": LAYOUT, **fields, **texts, **shown}).encode()


def decode_record(value: bytes, where: str) -> ReaderRecord:
    """Decode a Kafka value; CorruptRecord, or Halt on an unknown layout, both naming `where`."""
    try:
        fields: dict[str, Any] = json.loads(value)
        if fields["layout"] != LAYOUT:
            raise Halt(
                f"{where}: layout {fields['layout']!r} of a reader's record is not known: use the "
                "release that wrote it"
            )
        return ReaderRecord(
            str(fields["name"]),
            str(fields["instance"]),
            StreamPosition.from_string(fields["position"]),
            KeyRange.parse(fields["key_range"]),
            str(fields["host"]),
            str(fields["version"]),
            int(fields["at_us"]),
            int(fields["failed"]),
            str(fields.get("kind", ReaderKind.APPLICATION.value)),
        )
    except (ValueError, KeyError, TypeError, UsageError) as error:
        raise CorruptRecord(f"{where}: not a reader's record: {error!r}") from error


@dataclass(frozen=True, slots=True)
class NamedReader:
    """The newest report of a name, and those of other processes that use it at the same time."""

    last: ReaderRecord
    others: tuple[ReaderRecord, ...] = ()

    @property
    def all(self) -> tuple[ReaderRecord, ...]:
        """The newest report of each process that uses the name."""
        return (self.last, *self.others)


class LastReports:
    """The newest reports by name, from the records of the topic in their order."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[ReaderRecord]] = {}

    def take(self, record: ReaderRecord) -> None:
        """Add the next record."""
        self._recent.setdefault(record.name, deque(maxlen=RECENT_MAX)).append(record)

    def forget(self, name: str) -> None:
        """Drop a reader whose record was removed."""
        self._recent.pop(name, None)

    def readers(self) -> tuple[NamedReader, ...]:
        """Return the readers in the order of their names."""
        return tuple(_named(self._recent[name]) for name in sorted(self._recent))


def _named(recent: deque[ReaderRecord]) -> NamedReader:
    """Distinguish a restart (one process after the other) from processes that alternate."""
    last = recent[-1]
    first = next(i for i, record in enumerate(recent) if record.instance == last.instance)
    others = {
        record.instance: record
        for record in list(recent)[first:]
        if record.instance != last.instance
    }
    return NamedReader(last, tuple(others.values()))


def not_passed(
    readers: Sequence[NamedReader], topology: Topology, shard: str
) -> tuple[ReaderRecord, ...]:
    """Return the reports of readers, of each process of a name, that still need the shard.

    A reader needs a shard while its position names it or one of its ancestors. Appliers are left
    out: their reshard keeps the shard.
    """
    needed_by = {shard, *_ancestors(topology, shard)}
    key_range = ShardName.parse(shard).key_range
    return tuple(
        report
        for reader in readers
        if ApplierName.parse(reader.last.name) is None
        for report in reader.all
        if needed_by & report.position.shards.keys() and report.key_range.overlaps(key_range)
    )


def _ancestors(topology: Topology, shard: str) -> set[str]:
    """Return all shards that past reshards turned into this one."""
    found: set[str] = set()
    left: Iterable[str] = (shard,)
    while left:
        sources = {
            source
            for reshard in switched(topology)
            if not set(left).isdisjoint(reshard.targets)
            for source in reshard.sources
        }
        left = sources - found
        found |= sources
    return found


# A request may be lost: the next offsets follow within seconds.
REQUEST_S_MAX: Final = 10.0
# The brokers' answer for a group without commits.
_NO_GROUP: Final = "GROUP_ID_NOT_FOUND"


class GroupOffsets:
    """Writes the offsets of one group without waiting: at most one request is under way.

    When the shards of the position change, the group is deleted first: offsets of a shard that the
    reader has left would look like a lag that never ends. If the deletion is refused, they stay.
    """

    def __init__(self, config: ClientConfig, keyspace: str, name: str) -> None:
        """Write nothing yet."""
        self.group = reader_group(keyspace, name)
        self._config = config
        self._keyspace = keyspace
        self._admin: AdminClient | None = None
        self._topics: frozenset[str] = frozenset()  # that have offsets of this reader
        self._wanted: dict[str, int] = {}
        self._deleting: Future[Any] | None = None
        self._altering: Future[Any] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        return self._deleting is not None or self._altering is not None

    def commit(self, position: StreamPosition) -> None:
        """Begin to write the offsets, unless earlier ones are under way."""
        if self.is_busy:
            return
        if self._admin is None:
            self._admin = open_admin(self._config)
        self._wanted = {
            ShardTopics(self._keyspace, shard).log: at.offset
            for shard, at in position.shards.items()
        }
        if self._topics == self._wanted.keys():
            self._altering = self._alter(self._admin)
            return
        deleted = self._admin.delete_consumer_groups([self.group], request_timeout=REQUEST_S_MAX)
        self._deleting = deleted[self.group]

    def advance(self, timeout_s: float = 0) -> None:
        """Continue the request under way, for at most that time; raise its error if it failed."""
        deadline = Deadline(timeout_s)
        if self._deleting is not None and wait([self._deleting], deadline.left_s).done:
            self._deleting = None
            if self._admin is not None:
                self._altering = self._alter(self._admin)
        if self._altering is None or not wait([self._altering], deadline.left_s).done:
            return
        done, self._altering = self._altering, None
        # After an error the next client logs in with the password of then.
        admin, self._admin = self._admin, None
        with kafka_errors(f"writing the offsets of group {self.group}", self._config.brokers):
            for part in done.result().topic_partitions:
                if part.error is not None:
                    raise KafkaException(part.error)
        self._admin = admin
        self._topics = frozenset(self._wanted)

    def _alter(self, admin: AdminClient) -> "Future[Any]":
        partitions = [TopicPartition(topic, 0, offset) for topic, offset in self._wanted.items()]
        altered = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(self.group, partitions)], request_timeout=REQUEST_S_MAX
        )
        return altered[self.group]


def delete_group(config: ClientConfig, keyspace: str, name: str) -> None:
    """Delete the group of a reader, if there is one."""
    group = reader_group(keyspace, name)
    admin = open_admin(config)
    deleted = admin.delete_consumer_groups([group], request_timeout=REQUEST_S_MAX)
    try:
        deleted[group].result()
    except KafkaException as error:
        if error.args[0].name() != _NO_GROUP:
            raise kafka_error(error, f"deleting group {group}", config.brokers) from error


_LOG: Final = logging.getLogger("shardstream.readers")

# Lag in steps of ten seconds is fine enough for people, and one small record costs nothing.
REPORT_S: Final = 10.0
# A report is given up after this time: two newer ones are due.
DELIVERY_S_MAX: Final = 30.0
# Producers create the topic, and brokers know a new one within a second.
UNKNOWN_S_MAX: Final = 5.0
# How long a reader that ends waits for its last report; brokers that answer need less.
CLOSE_S_MAX: Final = 10.0

PositionOf = Callable[[], StreamPosition]


@dataclass(frozen=True, slots=True)
class ReaderReports:
    """How many reports reached Kafka, how many did not, and the last error ("" for none)."""

    written: int
    failed: int
    error: str


class ReaderReporter:
    """Writes a record of one named reader, and its group's offsets, every REPORT_S.

    At most one record and one request are under way, with librdkafka's own time limits; while one
    is, newer positions replace each other. Failures are counted, logged once, and never raised.
    One thread notes positions; any may close.
    """

    def __init__(
        self,
        config: ClientConfig,
        keyspace: str,
        name: str | ApplierName,
        key_range: KeyRange,
        kind: ReaderKind = ReaderKind.APPLICATION,
    ) -> None:
        """Check the name; no connection is made before the first position.

        An applier has no consumer group: its lag is that of a reshard.
        """
        self.name = str(name) if isinstance(name, ApplierName) else check_reader_name(name)
        self._config = config
        self._topic = readers_topic(keyspace)
        self._key_range = key_range
        self._kind = kind
        self._instance = uuid.uuid4().hex
        self._host = socket.gethostname()
        self._version = version("shardstream")
        self._group = (
            None if isinstance(name, ApplierName) else GroupOffsets(config, keyspace, name)
        )
        self._producer: Producer | None = None
        self._noted: PositionOf | None = None
        self._due_s = time.monotonic()
        self._written = 0
        self._failed = 0
        self._error = ""
        self._warned: set[str] = set()

    @property
    def reports(self) -> ReaderReports:
        """The counts of the reports so far."""
        return ReaderReports(self._written, self._failed, self._error)

    def note(self, position: PositionOf) -> None:
        """Take the position from which a restart would continue; report it if one is due."""
        self._noted = position
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + REPORT_S
            self._flush(0)
            self._write_offsets(lambda group: group.advance(0))
            found = position()
            self._write(found)
            self._write_offsets(lambda group: group.commit(found))
        elif self._group is not None and self._group.is_busy:
            self._write_offsets(lambda group: group.advance(0))

    def drop(self) -> None:
        """Forget the last position noted: another process reports under the name from now on."""
        self._noted = None

    def close(self) -> None:
        """Report the last position noted, and wait for it for CLOSE_S_MAX; idempotent."""
        noted, self._noted = self._noted, None
        if noted is None:
            return
        deadline = Deadline(CLOSE_S_MAX)
        position = noted()
        # The record first: the group's offsets are only for show.
        self._flush(deadline.left_s)
        self._write(position)
        self._flush(deadline.left_s)
        self._write_offsets(lambda group: group.advance(deadline.left_s))
        self._write_offsets(lambda group: group.commit(position))
        self._write_offsets(lambda group: group.advance(deadline.left_s))
        self._producer = None

    def _write(self, position: StreamPosition) -> None:
        """Begin to write the record, unless an earlier one is under way."""
        try:
            if self._producer is None:
                self._producer = self._open()
            if len(self._producer) == 0:
                self._produce(self._producer, position)
        except ShardstreamError as error:
            self._fail(self._topic, error)

    def _flush(self, timeout_s: float) -> None:
        """Wait for the delivery of an earlier record, for at most that time."""
        try:
            if self._producer is not None:
                self._producer.flush(timeout_s)
        except ShardstreamError as error:  # another process's
            self._fail(self._topic, error)

    def _write_offsets(self, request: Callable[[GroupOffsets], None]) -> None:
        """Begin or continue a request of the group; it never waits for an earlier one."""
        if self._group is None:
            return
        try:
            request(self._group)
        except ShardstreamError as error:
            self._fail(self._group.group, error)

    def _open(self) -> Producer:
        settings = {
            **producer_config(self._config),
            # A report that is lost or repeated does no harm: the next one follows.
            "enable.idempotence": "false",
            "message.timeout.ms": str(round(DELIVERY_S_MAX * 1_000)),
            "topic.metadata.propagation.max.ms": str(round(UNKNOWN_S_MAX * 1_000)),
        }
        with kafka_errors("opening a producer", self._config.brokers):
            return new_producer(self._config, settings)

    def _produce(self, producer: Producer, position: StreamPosition) -> None:
        record = ReaderRecord(
            self.name,
            self._instance,
            position,
            self._key_range,
            self._host,
            self._version,
            time.time_ns() // 1_000,
            self._failed,
            self._kind.value,
        )
        with kafka_errors(f"writing to {self._topic}", self._config.brokers):
            producer.produce(
                self._topic,
                encode_record(record),
                record_key(self.name),
                0,
                on_delivery=self._delivered,
            )

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._written += 1
            return
        doing = f"writing to {self._topic}"
        known = kafka_error(KafkaException(error), doing, self._config.brokers)
        if isinstance(known, TopicMissing):
            known = TopicMissing(
                f"{doing} (brokers {self._config.brokers}): the topic does not exist, or this "
                f"account may not see it. Producers create it when they start"
            )
        self._fail(self._topic, known)

    def _fail(self, where: str, error: ShardstreamError) -> None:
        self._failed += 1
        self._error = str(error)
        if where not in self._warned:
            self._warned.add(where)
            _LOG.warning(
                "reader %s cannot report its position, and continues to read: %s", self.name, error
            )


# For an hour of reports, and one of each older reader.
READ_S_MAX: Final = 60.0
# A reader that reported within this time is running: three reports.
RUNNING_S: Final = 3 * REPORT_S


class ReadersFeed:
    """Follows the readers' topic of a keyspace; each call of `look` reads the new records."""

    def __init__(self, config: ClientConfig, keyspace: str) -> None:
        """Begin at the start of the topic; nothing is read yet."""
        self._config = config
        self._topic = readers_topic(keyspace)
        self._reports = LastReports()
        self._next_offset = 0

    def look(self, consumer: Consumer | None = None) -> tuple[NamedReader, ...]:
        """Return the readers in the order of their names.

        TopicMissing before a producer has created the topic; `consumer` as in PartitionReader.
        """
        with PartitionReader(self._config, self._topic, 0, READ_S_MAX, consumer) as reader:
            start, end = reader.bounds()
            if end < self._next_offset:  # the topic was deleted and created again
                self._reports, self._next_offset = LastReports(), 0
            for record in reader.records(max(start, self._next_offset), end):
                if record.value is None:
                    self._reports.forget((record.key or b"").decode())
                else:
                    where = f"{self._topic}, offset {record.offset}"
                    self._reports.take(decode_record(record.value, where))
            self._next_offset = end
        return self._reports.readers()


def read_readers(config: ClientConfig, keyspace: str) -> tuple[NamedReader, ...]:
    """Return the named readers of a keyspace, without appliers; none before a producer's start."""
    try:
        found = ReadersFeed(config, keyspace).look()
    except TopicMissing:
        return ()
    return tuple(reader for reader in found if ApplierName.parse(reader.last.name) is None)


def forget_reader(config: ClientConfig, keyspace: str, name: str) -> None:
    """Remove a reader that is gone for good, and its group.

    UsageError when there is none of this name, or while it still runs: it would report again.
    """
    found = {reader.last.name: reader.last for reader in read_readers(config, keyspace)}
    if check_reader_name(name) not in found:
        known = ", ".join(found) or "none"
        raise UsageError(f"keyspace {keyspace}: no reader {name!r} has reported (readers: {known})")
    last = found[name]
    ago_s = time.time() - last.at_us / 1e6
    if ago_s < RUNNING_S:
        raise UsageError(
            f"keyspace {keyspace}: reader {name} reported {max(0, ago_s):.0f} s ago from "
            f"{last.host}, so it still runs: end it, wait {RUNNING_S:.0f} s, and forget it then"
        )
    write_record(config, readers_topic(keyspace), record_key(name), None)
    delete_group(config, keyspace, name)


def forget_appliers(config: ClientConfig, keyspace: str, under_way: Collection[str]) -> None:
    """Remove the reports of appliers, except those of reshards under way.

    An applier that still runs reports again, and a later call removes that report.
    """
    try:
        found = ReadersFeed(config, keyspace).look()
    except TopicMissing:  # no producer has created it, so there are no reports
        return
    for reader in found:
        applier = ApplierName.parse(reader.last.name)
        if applier is not None and applier.reshard_id not in under_way:
            write_record(config, readers_topic(keyspace), record_key(reader.last.name), None)
