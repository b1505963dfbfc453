"""Reports the position of a named reader, without ever making the reader wait or stop."""

import logging
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from event_token import KeyRange, StreamPosition
from event_token.errors import ShardstreamError
from topics.kafka.client import ClientConfig, producer_config
from topics.kafka.deadline import Deadline
from topics.kafka.errors import TopicMissing, kafka_error, kafka_errors
from topics.names import ApplierName, check_reader_name, readers_topic
from topics.readers.group_offsets import GroupOffsets
from topics.readers.record import ReaderRecord, encode_record, record_key

_LOG: Final = logging.getLogger("shardstream.readers")
_KAFKA_LOG: Final = logging.getLogger("shardstream.kafka")

# Lag in steps of ten seconds is fine enough for people, and one small record costs nothing.
REPORT_S: Final = 10.0
# After this time a report is given up: two newer ones are due.
DELIVERY_S_MAX: Final = 30.0
# Producers create the topic, and brokers know a new one within a second.
UNKNOWN_S_MAX: Final = 5.0
# The last report of a reader that ends is waited for; only brokers that do not answer take longer.
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
        self, config: ClientConfig, keyspace: str, name: str | ApplierName, key_range: KeyRange
    ) -> None:
        """Check the name; no connection is made before the first position.

        An applier has no consumer group: its lag is that of a reshard.
        """
        self.name = str(name) if isinstance(name, ApplierName) else check_reader_name(name)
        self._config = config
        self._topic = readers_topic(keyspace)
        self._key_range = key_range
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
        """What has become of the reports so far."""
        return ReaderReports(self._written, self._failed, self._error)

    def note(self, position: PositionOf) -> None:
        """Take the position from which a restart would continue; report it if one is due."""
        self._noted = position
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + REPORT_S
            self._flush(0)
            self._advance(0)
            found = position()
            self._write(found)
            self._commit(found)
        elif self._group is not None and self._group.is_busy:
            self._advance(0)

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
        self._advance(deadline.left_s)
        self._commit(position)
        self._advance(deadline.left_s)
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
        """Learn what has become of an earlier record, within a time."""
        if self._producer is not None:
            self._producer.flush(timeout_s)

    def _commit(self, position: StreamPosition) -> None:
        """Begin to write the group's offsets, unless earlier ones are under way."""
        if self._group is None:
            return
        try:
            self._group.commit(position)
        except ShardstreamError as error:
            self._fail(self._group.group, error)

    def _advance(self, timeout_s: float) -> None:
        """Go on with earlier offsets, within a time."""
        if self._group is None:
            return
        try:
            self._group.advance(timeout_s)
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
            return Producer(settings, logger=_KAFKA_LOG)

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
        )
        with kafka_errors(f"writing to {self._topic}", self._config.brokers):
            producer.produce(
                self._topic,
                encode_record(record),
                record_key(self.name),
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
                "reader %s cannot report its position, and goes on reading: %s", self.name, error
            )
