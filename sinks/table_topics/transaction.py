"""The Kafka transaction of one task: its rows and its marker become visible together."""

import logging
import math
import time
from collections.abc import Callable
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException

from event_token.errors import Halt, Retry, ShardstreamError, UsageError
from sinks.table_topics.positions import Marker
from topics.kafka.client import (
    MESSAGE_BYTES_MAX,
    REQUEST_TIMEOUT_S,
    ClientConfig,
    new_producer,
    producer_config,
)
from topics.kafka.errors import CLIENT_ERRORS, Fenced, kafka_error, kafka_errors
from topics.kafka.provisioning import message_bytes_max
from topics.names import POSITIONS_TOPIC

# Aborting a predecessor's transaction takes seconds while the coordinator is loading or moving.
FENCE_S_MAX: Final = 120.0
# A dead executor hides rows from readers for as long, unless its batch is run again before.
# Kafka's default for the longest that brokers allow is three times as much.
TRANSACTION_S_MAX: Final = 300.0
# Longest single wait inside librdkafka.
_STEP_S: Final = 0.25
_ABORT_S_MAX: Final = 10.0
# The report of a refused record follows at once, but a busy machine takes its time.
_CAUSE_S_MAX: Final = 10.0
_QUEUE_MESSAGES_MAX: Final = 200_000
_QUEUE_KBYTES_MAX: Final = 128 * 1024
_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
# librdkafka's word for the partition that follows from the key.
_BY_KEY: Final = -1

Headers = list[tuple[str, str | bytes | None]]
_TOO_LARGE: Final = "MSG_SIZE_TOO_LARGE"
_LOG: Final = logging.getLogger("shardstream.kafka")


class TaskTransaction:
    """A producer of one transactional id, for one transaction.

    Methods raise Fenced when another producer took over, Retry when the batch should run again,
    and Halt on records that the brokers refuse.
    """

    def __init__(self, config: ClientConfig, transactional_id: str) -> None:
        """Open the producer; nothing is sent."""
        self._id = transactional_id
        self._config = config
        self._brokers = config.brokers
        self._failure: tuple[KafkaError, str] | None = None
        self._refused: tuple[str, bytes | None, bytes | None] = "", None, None
        self._is_open = False
        self._began_s = math.inf
        settings: dict[str, Any] = {
            "compression.type": "lz4",
            "linger.ms": "20",
            "batch.size": str(_BATCH_BYTES_MAX),
            **producer_config(
                config,
                transactional_id=transactional_id,
                transaction_timeout_ms=int(TRANSACTION_S_MAX * 1000),
            ),
            "queue.buffering.max.kbytes": str(_QUEUE_KBYTES_MAX),
            "queue.buffering.max.messages": str(_QUEUE_MESSAGES_MAX),
            "message.timeout.ms": str(int(TRANSACTION_S_MAX * 1000)),
            # As Java's clients do, so that other topics with the same keys can be joined.
            "partitioner": "murmur2_random",
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery,
        }
        with kafka_errors(f"opening the producer {transactional_id}", self._brokers):
            self._producer = new_producer(config, settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._is_open:
            try:
                self._producer.abort_transaction(_ABORT_S_MAX)
            except CLIENT_ERRORS as error:
                # Fencing by the next run of the batch aborts it, or the brokers do.
                _LOG.info("%s: the abort was not answered: %s", self._id, error)
        # librdkafka's threads end with the last reference.
        del self._producer

    def fence(self) -> None:
        """Fence all earlier producers of the id and abort their open transaction."""
        self._repeat("fencing", self._producer.init_transactions, FENCE_S_MAX)

    def begin(self) -> None:
        """Begin the transaction."""
        self._began_s = time.monotonic()
        with kafka_errors(f"{self._id}: beginning a transaction", self._brokers):
            self._producer.begin_transaction()
        self._is_open = True

    def write(
        self,
        topic: str,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        partition: int = _BY_KEY,
    ) -> None:
        """Add a record. Waits while the queue is full.

        Its timestamp is the present, as with Debezium: with times of long ago, every commit marker,
        which has the broker's time, would begin a new segment.
        """
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers or None)
            except BufferError:
                self._wait(_STEP_S)
            except CLIENT_ERRORS as error:
                if isinstance(error, KafkaException) and error.args[0].name() == _TOO_LARGE:
                    raise self._too_large(topic, key, value) from error
                # Once a record was refused, no other is taken: its own error names the cause.
                self._await_cause()
                raise self._mapped(error, f"writing to {topic}") from error
            else:
                return

    def serve(self) -> None:
        """Raise the error of a record that was not stored, if there is one."""
        self._wait(0)

    def write_marker(self, marker: Marker, partition: int) -> None:
        """Add the marker. Waits while the queue is full."""
        self.write(POSITIONS_TOPIC, self._id.encode(), marker.to_json(), [], partition)

    def check_partitions(self, topic: str, partitions: int) -> None:
        """UsageError when a topic has another number of partitions than `partitions`."""
        with kafka_errors(f"{self._id}: reading the partitions of {topic}", self._brokers):
            found = self._producer.list_topics(topic, REQUEST_TIMEOUT_S).topics[topic]
        if found.error is not None:
            doing = f"{self._id}: reading the partitions of {topic}"
            raise self._mapped(KafkaException(found.error), doing)
        if len(found.partitions) != partitions:
            raise UsageError(
                f"wrong topic: {topic} has {len(found.partitions)} partitions, not {partitions}: "
                f"they were added while the query ran, and keys would change their place. Kafka "
                f"cannot remove partitions: begin new topics under another --prefix, with a new "
                f"checkpoint"
            )

    def flush(self) -> None:
        """Wait until all records are stored."""
        deadline_s = time.monotonic() + TRANSACTION_S_MAX
        while self._producer.flush(_STEP_S):
            self._check()
            if time.monotonic() > deadline_s:
                raise Retry(f"{self._id}: Kafka did not store the rows in {TRANSACTION_S_MAX:g} s")
        self._check()

    def commit(self) -> None:
        """Commit. Where the outcome stays unknown (Retry), the next run finds it in the marker."""
        self._repeat("committing", self._producer.commit_transaction, TRANSACTION_S_MAX)
        self._is_open = False

    def _repeat(self, doing: str, call: Callable[[float], None], limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while True:
            try:
                call(_STEP_S)
            except CLIENT_ERRORS as error:
                cause = error.args[0]
                again = isinstance(cause, KafkaError) and cause.retriable()
                if not again or time.monotonic() > deadline_s:
                    raise self._mapped(error, doing) from error
                self._wait(0)  # the client says what it has met, such as a refused password
            else:
                return

    def _wait(self, seconds: float) -> None:
        try:
            self._producer.poll(seconds)
        except CLIENT_ERRORS as error:
            raise self._mapped(error, "storing rows") from error
        self._check()

    def _await_cause(self) -> None:
        """Raise the error of the record that was refused; return if none comes."""
        deadline_s = time.monotonic() + _CAUSE_S_MAX
        while time.monotonic() < deadline_s:
            self._wait(_STEP_S)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        purged = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)  # noqa: SLF001 - their only names
        if error is not None and error.code() not in purged and self._failure is None:
            self._failure = error, f"topic {message.topic()}, key {message.key()!r}"
            self._refused = message.topic(), message.key(), message.value()

    def _check(self) -> None:
        if self._failure is not None:
            error, place = self._failure
            if error.name() == _TOO_LARGE:
                raise self._too_large(*self._refused)
            raise self._mapped(KafkaException(error), f"storing a record ({place})")

    def _too_large(self, topic: str, key: bytes | None, value: bytes | None) -> Halt:
        """The error for a record that the brokers, or our own client, refuse because of its size.

        A topic is named by its table.
        """
        size = len(key or b"") + len(value or b"")
        try:
            limit = message_bytes_max(self._config, topic)
        except ShardstreamError as error:
            limit_text = f"the limit is not known: {error}"
        else:
            limit_text = f"its max.message.bytes allows {limit}"
        return Halt(
            f"{self._id}: too large for the brokers ({self._brokers}): a record of topic {topic}, "
            f"key {key!r}, of {size} bytes, or the batch that begins with it; {limit_text}. Raise "
            f"max.message.bytes of the topic up to {MESSAGE_BYTES_MAX}, with which it was created, "
            "and start the query again: it goes on with the same batch. A larger row has no place "
            "in table topics: name the other tables by --table; a filter rule that leaves out its "
            "column helps with later rows"
        )

    def _mapped(self, error: BaseException, doing: str) -> ShardstreamError:
        if not isinstance(error, KafkaException):
            return Retry(f"{self._id}: {doing}: {error}")
        if error.args[0].name() in {"_FATAL", "_STATE"}:
            try:  # the next call names the cause
                self._producer.abort_transaction(_STEP_S)
            except CLIENT_ERRORS as raised:
                if isinstance(raised, KafkaException):
                    error = raised
        known = kafka_error(error, f"{self._id}: {doing}", self._brokers)
        if isinstance(known, Fenced) and time.monotonic() - self._began_s > TRANSACTION_S_MAX:
            # The brokers fence the producer of a transaction that has timed out, and abort it. If
            # it was another producer all the same, the next run meets its marker.
            return Retry(
                f"{self._id}: {doing}: the transaction took longer than {TRANSACTION_S_MAX:g} s, "
                f"so the brokers have aborted it; if this happens again, lower --max-rows-per-batch"
            )
        if isinstance(known, Fenced):
            return Fenced(
                f"{self._id}: {doing}: fenced by another producer of this id: another query "
                f"writes these topics, or this batch is being run again elsewhere"
            )
        return known if isinstance(known, (Halt, UsageError)) else Retry(str(known))
