"""The transactional producer of one shard: fence, publish rows, commit them with their progress.

Each Kafka transaction holds whole MySQL transactions on the shard log and exactly one progress
record. Offsets come from delivery reports, or are foreseen and held against them before the commit.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from event_token.errors import Halt, Rebuild, ShardstreamError, UsageError
from producers.errors import LogDisagrees, PublisherSpent, TransactionTooLong
from topics.kafka.client import (
    RECORD_BYTES_MAX,
    ClientConfig,
    producer_config,
)
from topics.kafka.errors import Fenced, kafka_error, kafka_errors
from topics.names import ShardTopics

# A predecessor's open transaction is aborted and a coordinator may be loading or moving: seconds.
FENCE_S_MAX: Final = 120.0
# One wait inside librdkafka; between two the stop is looked at.
WAIT_STEP_S: Final = 0.25
# Rows that wait in the client. It must hold the largest record; more would only be memory.
QUEUE_KBYTES_MAX: Final = RECORD_BYTES_MAX // 1024 + 16 * 1024
QUEUE_MESSAGES_MAX: Final = 100_000
# librdkafka's own 1 MB is few rows where these are large. While five batches are on their way, more
# are not allowed, and rows wait, its thread asks again and again whether they may go: with 64 kB
# texts that took a third of the producer's processor time. A commit has 32 MB, two of these.
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
# A commit this slow may have been sent twice inside librdkafka, the first one still on its way: it
# could end the *next* transaction. A new epoch (init_transactions) makes it harmless.
SLOW_COMMIT_S: Final = 30.0
# Of the time that brokers allow a transaction; the rest is for the flush and the commit.
TIMEOUT_SHARE: Final = 0.9
# After a stop an unfinished commit is given this long; then its outcome is left to the successor.
STOP_S_MAX: Final = 5.0
# Without an answer for this long closing does not wait for the broker.
ABORT_S_MAX: Final = 10.0

_PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001 - their only names
_INDEFINITE: Final = frozenset(
    {"_TRANSPORT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "REQUEST_TIMED_OUT"}
)
# A fatal error is raised while callbacks run; those that come after it turn it into a SystemError.
_KAFKA: Final = (KafkaException, SystemError)
_LOG: Final = logging.getLogger("shardstream.kafka")


class Publisher:
    """One producer object, fenced in at its making; spent after the first fault.

    `stopping` tells whether the process is asked to end: then no wait lasts beyond STOP_S_MAX.
    Raises Fenced when a newer producer took over, PublisherSpent or Rebuild when a new one is
    needed, Halt when the log is not as it must be.
    """

    def __init__(
        self,
        config: ClientConfig,
        topics: ShardTopics,
        transaction_timeout_ms: int,
        stopping: Callable[[], bool],
    ) -> None:
        self.topics = topics
        self._brokers = config.brokers
        self._stopping = stopping
        self._transaction_timeout_s = transaction_timeout_ms / 1000
        self._in_transaction = False
        self._began_s = 0.0
        self._first_offset = -1
        self._last_offset = -1
        self._end_offset = -1  # behind the last rows committed; -1 before the first
        self._is_foreseeable = False
        self._failure: KafkaError | None = None
        self._indefinite: str = ""
        settings: dict[str, Any] = {
            "compression.type": "lz4",
            "linger.ms": "5",
            "batch.size": str(BATCH_BYTES_MAX),
            **producer_config(
                config,
                transactional_id=topics.transactional_id,
                transaction_timeout_ms=transaction_timeout_ms,
            ),
            "queue.buffering.max.kbytes": str(QUEUE_KBYTES_MAX),
            "queue.buffering.max.messages": str(QUEUE_MESSAGES_MAX),
            # A message may wait as long as its transaction may last.
            "message.timeout.ms": str(transaction_timeout_ms),
            "error_cb": self._on_error,
        }
        with kafka_errors(f"opening the producer of {topics.log}", self._brokers):
            self._producer = Producer(settings, logger=_LOG)
        # By position, as the decoder calls it: topic, value, key, partition, callback twice (the
        # client knows it by two names), timestamp in ms.
        self.produce: Any = self._producer.produce

    def fence(self) -> None:
        """Take the shard over: a predecessor is fenced off and its open transaction aborted."""
        self._repeat("fencing", self._init_transactions, FENCE_S_MAX)

    @property
    def spent(self) -> str:
        """Why this producer must not begin another transaction, "" when it may."""
        return self._indefinite

    def begin(self) -> None:
        """Begin a transaction unless one is open; the broker hears of it with the first record."""
        if self._in_transaction:
            return
        self._first_offset = self._last_offset = -1
        self._failure = None
        with self.errors("beginning a transaction"):
            self._producer.begin_transaction()
        self._in_transaction = True
        self._began_s = time.monotonic()

    def check_age(self, what: str) -> None:
        """Raise TransactionTooLong before the brokers abort the open transaction by themselves.

        They would fence this producer then, as if another one had taken over.
        """
        age_s = time.monotonic() - self._began_s
        if self._in_transaction and age_s > TIMEOUT_SHARE * self._transaction_timeout_s:
            raise TransactionTooLong(
                f"{self.topics.log}: {what} has been on its way for {age_s:.0f} s, and the brokers "
                f"allow a transaction {self._transaction_timeout_s:g} s: raise their "
                "transaction.max.timeout.ms well above that and start this producer again; "
                "nothing of it is visible yet, and nothing is lost"
            )

    def on_delivery(self, error: KafkaError | None, message: Any) -> None:
        """Note the offset of a record that has been stored, or why it was not."""
        if error is not None:
            if error.code() not in _PURGED and self._failure is None:
                self._failure = error
            return
        if self._first_offset < 0:
            self._first_offset = message.offset()
        self._last_offset = message.offset()

    def serve(self) -> None:
        """Let delivery reports in; raise what they say."""
        self._poll(0)
        self._check()

    def wait_for_room(self) -> None:
        """Wait a moment for the full queue to drain; the caller tries again."""
        self._poll(WAIT_STEP_S)
        self._check()
        if self._stopping():
            raise PublisherSpent(f"{self.topics.log}: stopped while the queue to Kafka was full")

    @property
    def foreseen_offset(self) -> int:
        """Where the first row of this transaction should lie; -1 where nothing is expected.

        Between two transactions of one producer lies the commit's marker. That is relied on where
        it was so the last time, and `flush` checks it.
        """
        return self._end_offset + 1 if self._is_foreseeable else -1

    def flush(self, count: int, foreseen: int = -1) -> int:
        """Wait until all `count` records of this transaction are stored; return the first offset.

        LogDisagrees when they do not lie side by side, PublisherSpent when the first one does not
        lie where it was `foreseen`: a marker may have been written twice when a broker died.
        """
        self._until_flushed()
        first, last = self._first_offset, self._last_offset
        if first < 0 or last - first + 1 != count:
            raise LogDisagrees(
                f"{self.topics.log}: {count} records were written, but the first lies at offset "
                f"{first} and the last at {last}: something else writes to this topic, or the "
                "broker lost records. The transaction is aborted; find the other writer"
            )
        if foreseen not in (-1, first):
            raise PublisherSpent(
                f"{self.topics.log}: rows lie at offset {first}, not at {foreseen} as expected"
            )
        self._is_foreseeable = self._end_offset >= 0 and first == self._end_offset + 1
        self._end_offset = last + 1
        return first

    def write(self, topic: str, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Add a record of another topic to the transaction.

        Waits while the transaction's rows fill the queue; what stays there fails by itself when
        the transaction's time is over.
        """
        with self.errors(f"writing to {topic}"):
            while not self._has_taken(topic, key, value, timestamp_ms):
                self.wait_for_room()

    def _has_taken(self, topic: str, key: bytes, value: bytes | None, timestamp_ms: int) -> bool:
        try:
            self.produce(topic, value, key, 0, None, None, timestamp_ms)
        except BufferError:
            return False
        return True

    def commit(self, progress: bytes, key: bytes, head_ms: int, unflushed: int = 0) -> None:
        """Add the progress record and commit; afterwards look at `spent`.

        `unflushed`: how many rows the progress speaks of by their foreseen offset; they are stored
        together with it, and nothing is committed where they lie elsewhere.
        """
        topic = self.topics.progress
        self.write(topic, key, progress, head_ms)
        if unflushed:
            self.flush(unflushed, self.foreseen_offset)
        began_s = time.monotonic()
        self._repeat("committing", self._commit_transaction, self._transaction_timeout_s)
        self._in_transaction = False
        elapsed_s = time.monotonic() - began_s
        if elapsed_s >= SLOW_COMMIT_S:
            self._indefinite = f"a commit took {elapsed_s:.0f} s"

    def close(self) -> None:
        """Abort what is open and drop the producer; never raises for what the successor undoes."""
        if self._in_transaction:
            self._in_transaction = False
            try:
                self._producer.abort_transaction(ABORT_S_MAX)
            except _KAFKA as error:
                # The next init_transactions aborts it, or the broker's transaction timeout does.
                _LOG.info("%s: the abort was not answered: %s", self.topics.log, _cause(error))
        # The client ends its threads with the last reference; one that lived on could ask for an
        # epoch when the brokers are back, and fence its successor. So nothing else may hold it for
        # long: an error's frames hold this object, never the client or a method of it.
        del self._producer, self.produce

    def _until_flushed(self) -> None:
        deadline_s = time.monotonic() + self._transaction_timeout_s
        stop_s: float | None = None
        while self._flush_step():
            self._check()
            now_s = time.monotonic()
            if stop_s is None and self._stopping():
                stop_s = now_s + STOP_S_MAX
            if now_s > deadline_s or (stop_s is not None and now_s > stop_s):
                raise PublisherSpent(f"{self.topics.log}: Kafka did not store the rows in time")
        self._check()

    def _flush_step(self) -> int:
        with self.errors("storing rows"):
            return self._producer.flush(WAIT_STEP_S)

    def _poll(self, timeout_s: float) -> None:
        with self.errors("storing rows"):
            self._producer.poll(timeout_s)

    # Methods of this object, so that the frames of an error hold no method of the client.

    def _init_transactions(self, timeout_s: float) -> None:
        self._producer.init_transactions(timeout_s)

    def _commit_transaction(self, timeout_s: float) -> None:
        self._producer.commit_transaction(timeout_s)

    def _repeat(self, doing: str, call: Callable[[float], None], limit_s: float) -> None:
        """Call until it succeeds; librdkafka allows a repeat after its retriable errors."""
        deadline_s = time.monotonic() + limit_s
        stop_s: float | None = None
        while True:
            try:
                call(WAIT_STEP_S)
            except _KAFKA as error:
                now_s = time.monotonic()
                if stop_s is None and self._stopping():
                    stop_s = now_s + STOP_S_MAX
                late = now_s > deadline_s or (stop_s is not None and now_s > stop_s)
                cause = _cause(error)
                if late or not cause.args[0].retriable():
                    raise self._mapped(cause, doing) from error
            else:
                return

    def _check(self) -> None:
        if self._failure is not None:
            failure = self._failure
            raise self._mapped(KafkaException(failure), "storing rows")

    def errors(self, doing: str) -> "_Errors":
        """A block in which Kafka's exceptions become the publisher's."""
        return _Errors(self, doing)

    def _mapped(self, error: KafkaException, doing: str) -> ShardstreamError:
        """The project's error; on `_FATAL` the cause comes from the next call."""
        if error.args[0].name() in {"_FATAL", "_STATE"}:
            try:
                self._producer.abort_transaction(WAIT_STEP_S)
            except _KAFKA as raised:
                cause = _cause(raised)
                if cause.args[0].name() not in {"_FATAL", "_STATE"}:
                    error = cause
        known = kafka_error(error, f"{self.topics.log}: {doing}", self._brokers)
        if isinstance(known, (Fenced, Halt, UsageError, Rebuild)):
            return known
        return PublisherSpent(str(known))

    def _on_error(self, error: KafkaError) -> None:
        """Heard of from librdkafka's threads by way of poll: connections lost, requests late."""
        if self._in_transaction and error.name() in _INDEFINITE and not self._indefinite:
            self._indefinite = f"{error.name()} during a transaction: {error.str()}"


class _Errors:
    """Turns a KafkaException inside a block into the publisher's error."""

    def __init__(self, publisher: Publisher, doing: str) -> None:
        self._publisher = publisher
        self._doing = doing

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, _KAFKA):
            raise self._publisher._mapped(_cause(error), self._doing) from error  # noqa: SLF001 - its own part


def _cause(error: BaseException) -> KafkaException:
    """The client's exception behind `error`; anything else is raised again."""
    if isinstance(error, KafkaException):
        return error
    if isinstance(error.__cause__, KafkaException):
        return error.__cause__
    raise error
