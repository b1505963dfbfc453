"""The transactional producer of one shard: fences, publishes rows, commits them with progress.

Each Kafka transaction holds whole MySQL transactions on the shard log and exactly one progress
record, whose offsets come from delivery reports.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from event_token.errors import Halt, Rebuild, Retry, ShardstreamError, UsageError
from producers.errors import LogDisagrees, PublisherSpent, TransactionTooLong
from topics.kafka.client import (
    MESSAGE_BYTES_MAX,
    ClientConfig,
    new_producer,
    producer_config,
)
from topics.kafka.errors import (
    CLIENT_ERRORS,
    TOPIC_GONE,
    Fenced,
    LoginEnded,
    client_error,
    kafka_error,
    kafka_errors,
)
from topics.names import ShardTopics
from topics.progress.codec import Written

# Aborting a predecessor's transaction takes seconds while the coordinator is loading or moving.
FENCE_S_MAX: Final = 120.0
# Longest single wait inside librdkafka; the stop is checked in between.
WAIT_STEP_S: Final = 0.25
# Rows waiting in the client: room for the largest record, and no more memory than that needs.
QUEUE_KBYTES_MAX: Final = MESSAGE_BYTES_MAX // 1024 + 16 * 1024
QUEUE_MESSAGES_MAX: Final = 100_000
# librdkafka's default of 1 MB is few rows where rows are large. With five batches in flight, the
# idempotent limit, its thread spins while further rows wait: with 64 kB texts that took a third of
# the producer's CPU time. A commit has at most 32 MB, two of these.
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
# librdkafka sends a request again after `socket.timeout.ms`, and the first one may still arrive: a
# commit could end the *next* transaction. A commit that has taken this share of the timeout may
# have been sent twice; a new epoch (init_transactions) makes the first request harmless.
SLOW_COMMIT_SHARE: Final = 0.5
# librdkafka's default.
SOCKET_TIMEOUT_MS: Final = 60_000
# Share of the brokers' transaction timeout that rows may use; flush and commit have the rest.
TIMEOUT_SHARE: Final = 0.9
# An unfinished commit may take this long after a stop; then the successor finds its outcome.
STOP_S_MAX: Final = 5.0
# A commit that has waited for this long, and then each time again: are the topics still there?
TOPICS_LOOK_S: Final = 10.0
# Closing waits this long for the broker's answer to an abort.
ABORT_S_MAX: Final = 10.0
# Brokers answer within milliseconds, and within a few seconds while another one becomes leader. An
# operator sees a note when they have not answered for longer, and then at longer intervals.
SILENCE_SHOWN_S: Final = 5.0
SILENCE_SHOWN_AGAIN_S: Final = 30.0

_PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001 - their only names
_INDEFINITE: Final = frozenset(
    {"_TRANSPORT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "REQUEST_TIMED_OUT"}
)
_LOG: Final = logging.getLogger("shardstream.kafka")
# Of records that are aborted; a compacted topic takes none without a key.
_ABORTED_KEY: Final = b"aborted"


class Publisher:
    """One Kafka producer of the shard's transactional id; unusable after the first fault.

    `stopping`: whether the process is to end; then no wait exceeds STOP_S_MAX. `on_silence`
    takes what is waited for while Kafka does not answer for SILENCE_SHOWN_S. `message_bytes_max`:
    the log's limit, as `message_bytes_max` returns it. Methods raise Fenced
    when a newer producer took over, PublisherSpent or Rebuild when a new one is needed, and Halt
    when the log is not as it must be.
    """

    def __init__(
        self,
        config: ClientConfig,
        topics: ShardTopics,
        transaction_timeout_ms: int,
        stopping: Callable[[], bool],
        on_silence: Callable[[str], None] = lambda _text: None,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self.topics = topics
        self.message_bytes_max = message_bytes_max
        self._brokers = config.brokers
        self._stopping = stopping
        self._on_silence = on_silence
        # Since when (monotonic) Kafka has not answered, when to say so, and when it was asked last.
        self._silent_since_s = self._silence_due_s = self._asked_s = 0.0
        self._transaction_timeout_s = transaction_timeout_ms / 1000
        batch_bytes_max = int(config.get("batch.size", BATCH_BYTES_MAX))
        socket_timeout_ms = int(config.get("socket.timeout.ms", SOCKET_TIMEOUT_MS))
        self._slow_commit_s = SLOW_COMMIT_SHARE * socket_timeout_ms / 1000
        self._in_transaction = False
        self._began_s = 0.0
        self._looked_s = self._deadline_s = 0.0
        self._is_short = False  # a stop has shortened the wait
        self._first_offset = -1
        self._last_offset = -1
        self._failure: KafkaError | None = None
        self._indefinite: str = ""
        self._is_committing = False
        settings: dict[str, Any] = {
            "compression.type": "lz4",
            "linger.ms": "5",
            **producer_config(
                config,
                transactional_id=topics.transactional_id,
                transaction_timeout_ms=transaction_timeout_ms,
            ),
            # A batch of several messages, like one message, has to fit into the topic's limit.
            "batch.size": str(min(batch_bytes_max, message_bytes_max)),
            "queue.buffering.max.kbytes": str(QUEUE_KBYTES_MAX),
            "queue.buffering.max.messages": str(QUEUE_MESSAGES_MAX),
            # A message may wait as long as its transaction may last.
            "message.timeout.ms": str(transaction_timeout_ms),
            "error_cb": self._on_error,
        }
        with kafka_errors(f"opening the producer of {topics.log}", self._brokers):
            self._producer = new_producer(config, settings)
        # By position, as the decoder calls it: topic, value, key, partition, callback twice (the
        # client knows it by two names), timestamp in ms.
        self.produce: Any = self._producer.produce

    def fence(self, check: Callable[[], None] = lambda: None) -> None:
        """Take over the shard: fence the predecessor and abort its open transaction.

        `check` is called before each attempt: one that only aborts an open transaction fences a
        newer process, too. Its Retry is a broker that does not answer; other errors are raised.
        """

        def attempt(timeout_s: float) -> None:
            check()
            self._init_transactions(timeout_s)

        self._repeat("fencing", attempt, FENCE_S_MAX)

    @property
    def spent(self) -> str:
        """Why this producer must not begin another transaction; "" if it may."""
        return self._indefinite

    def begin(self) -> None:
        """Begin a transaction unless one is open; the broker learns of it with the first record."""
        if self._in_transaction:
            return
        self._first_offset = self._last_offset = -1
        self._failure = None
        with self.errors("beginning a transaction"):
            self._producer.begin_transaction()
        self._in_transaction = True
        self._began_s = time.monotonic()

    def restart_age(self) -> None:
        """Restart the age of the open transaction: brokers learn of it with its first record."""
        self._began_s = time.monotonic()

    @property
    def is_old(self) -> bool:
        """Whether the brokers would soon abort the open transaction by themselves.

        An abort by the brokers looks as if another producer had taken over.
        """
        age_s = time.monotonic() - self._began_s
        return self._in_transaction and age_s > TIMEOUT_SHARE * self._transaction_timeout_s

    def check_age(self, what: str) -> None:
        """Raise TransactionTooLong where it `is_old`."""
        if self.is_old:
            age_s = time.monotonic() - self._began_s
            raise TransactionTooLong(
                f"{self.topics.log}: {what} has been open for {age_s:.0f} s, and the brokers allow "
                f"a transaction {self._transaction_timeout_s:g} s: raise their "
                "transaction.max.timeout.ms well above that and restart this producer; none of it "
                "is visible yet, and nothing is lost"
            )

    def on_delivery(self, error: KafkaError | None, message: Any) -> None:
        """Remember the offset of a stored record, or why it was not stored."""
        if error is not None:
            if error.code() not in _PURGED and self._failure is None:
                self._failure = error
            return
        if self._first_offset < 0:
            self._first_offset = message.offset()
        self._last_offset = message.offset()

    def serve(self) -> None:
        """Process delivery reports; raise the error that one of them brings."""
        self._poll(0)
        self._check()

    def wait_for_room(self) -> None:
        """Wait briefly for the full queue to drain; the caller retries."""
        if time.monotonic() - self._asked_s > 2 * WAIT_STEP_S:
            self._heard()  # it was not full when it was last written to
        queued = len(self._producer)
        self._poll(WAIT_STEP_S)
        self._note_answer("storing rows", is_answered=len(self._producer) < queued)
        self._check()
        if self._stopping():
            raise PublisherSpent(f"{self.topics.log}: stopped while the queue to Kafka was full")

    def flush(self, count: int) -> int:
        """Wait until all `count` records of this transaction are stored; return the first offset.

        LogDisagrees when they are not contiguous.
        """
        self._until_flushed()
        first, last = self._first_offset, self._last_offset
        if first < 0 or last - first + 1 != count:
            raise LogDisagrees(
                f"{self.topics.log}: {count} records were written, but the first lies at offset "
                f"{first} and the last at {last}: something else writes to this topic, or the "
                "broker lost records. The transaction is aborted; find the other writer"
            )
        return first

    def write(
        self,
        topic: str,
        key: bytes,
        value: bytes | None,
        timestamp_ms: int,
        headers: Written | None = None,
    ) -> None:
        """Add a record of another topic to the transaction.

        Waits while the queue is full; rows that stay there time out with the transaction.
        """
        with self.errors(f"writing to {topic}"):
            while True:
                try:
                    self.produce(topic, value, key, 0, None, None, timestamp_ms, headers)
                except BufferError:
                    self.wait_for_room()
                else:
                    return

    def commit(
        self, progress: bytes, key: bytes, head_ms: int, headers: Written | None = None
    ) -> None:
        """Add the progress record and commit; check `spent` afterwards."""
        self.write(self.topics.progress, key, progress, head_ms, headers)
        began_s = time.monotonic()
        self._is_committing = True
        self._repeat("committing", self._commit_transaction, self._transaction_timeout_s)
        self._in_transaction = self._is_committing = False
        elapsed_s = time.monotonic() - began_s
        if elapsed_s >= self._slow_commit_s:
            self._indefinite = f"a commit took {elapsed_s:.0f} s"

    def leave(self, progress: bytes, key: bytes, head_ms: int, headers: Written) -> None:
        """Commit a progress record without rows, after `end`.

        Nothing where the outcome of an earlier commit is not known: the record might repeat an
        older position. Raises as other methods do.
        """
        if self._is_committing or self._indefinite:
            return
        self.begin()
        self.write(self.topics.progress, key, progress, head_ms, headers)
        self._repeat("committing", self._commit_transaction, STOP_S_MAX)
        self._in_transaction = False

    def abort(self) -> None:
        """Abort the open transaction, if there is one, before the next is begun."""
        if self._in_transaction:
            self._repeat("aborting", self._abort_transaction, STOP_S_MAX)
            self._in_transaction = False

    def abort_open(self) -> None:
        """Abort a transaction with a record in each topic of the shard; only after fencing.

        Its markers end everything that this producer id has open there. librdkafka drops what is
        not stored yet when it aborts, and a partition without a record gets no marker.
        """
        self.begin()
        for topic in self.topics.written:
            self.write(topic, _ABORTED_KEY, b"", time.time_ns() // 1_000_000)
        self._until_flushed()
        self._repeat("aborting", self._abort_transaction, self._transaction_timeout_s)
        self._in_transaction = False

    def end(self) -> None:
        """Abort the open transaction: nothing but `leave` and `close` may follow.

        An abort that fails is not raised: fencing by the successor undoes the same.
        """
        if self._in_transaction:
            self._in_transaction = False
            try:
                self._producer.abort_transaction(ABORT_S_MAX)
            except CLIENT_ERRORS as error:
                # The next init_transactions aborts it, or the broker's transaction timeout does.
                self._indefinite = self._indefinite or "an abort was not answered"
                _LOG.info(
                    "%s: the abort was not answered: %s", self.topics.log, client_error(error)
                )

    def close(self) -> None:
        """Abort the open transaction and drop the producer."""
        self.end()
        # The client ends its threads with the last reference. One that lived on could ask for an
        # epoch when the brokers are back, and fence its successor. So nothing else keeps one: the
        # frames of an error hold this object, never the client or a method of it.
        del self._producer, self.produce

    def _until_flushed(self) -> None:
        self._begin_wait(self._transaction_timeout_s)
        queued = len(self._producer)
        while left := self._flush_step():
            self._note_answer("storing rows", is_answered=left < queued)
            queued = left
            self._check()
            self._check_topics()
            if self._is_late():
                raise PublisherSpent(f"{self.topics.log}: Kafka did not store the rows in time")
        self._check()

    def _flush_step(self) -> int:
        with self.errors("storing rows"):
            return self._producer.flush(WAIT_STEP_S)

    def _poll(self, timeout_s: float) -> None:
        with self.errors("storing rows"):
            self._producer.poll(timeout_s)

    # Methods of this object, so that no frame of an error holds a method of the client.

    def _init_transactions(self, timeout_s: float) -> None:
        self._producer.init_transactions(timeout_s)

    def _commit_transaction(self, timeout_s: float) -> None:
        self._producer.commit_transaction(timeout_s)

    def _abort_transaction(self, timeout_s: float) -> None:
        self._producer.abort_transaction(timeout_s)

    def _repeat(self, doing: str, call: Callable[[float], None], limit_s: float) -> None:
        """Call until it succeeds; librdkafka allows retries after its retriable errors."""
        self._begin_wait(limit_s)
        while True:
            try:
                call(WAIT_STEP_S)
            except Retry:
                self._note_answer(doing, is_answered=False)
                if self._is_late():
                    raise
            except CLIENT_ERRORS as error:
                self._note_answer(doing, is_answered=False)
                self._check_topics()
                cause = client_error(error)
                if self._is_late() or not cause.args[0].retriable():
                    raise self._mapped(cause, doing) from error
                self._poll(0.0)  # the client says what it has met, such as a refused password
            else:
                return

    def _begin_wait(self, limit_s: float) -> None:
        """Begin to wait for Kafka: for `limit_s`, or STOP_S_MAX after a stop."""
        self._looked_s = time.monotonic()
        self._deadline_s = self._looked_s + limit_s
        self._is_short = False
        self._heard()

    def _is_late(self) -> bool:
        now_s = time.monotonic()
        if not self._is_short and self._stopping():
            self._is_short = True
            self._deadline_s = min(self._deadline_s, now_s + STOP_S_MAX)
        return now_s > self._deadline_s

    def _heard(self) -> None:
        """Note that Kafka answers, or is asked only now."""
        self._silent_since_s = self._asked_s = time.monotonic()
        self._silence_due_s = self._silent_since_s + SILENCE_SHOWN_S

    def _note_answer(self, doing: str, *, is_answered: bool) -> None:
        """Say what Kafka has not answered for long."""
        if is_answered:
            self._heard()
            return
        now_s = self._asked_s = time.monotonic()
        if now_s >= self._silence_due_s:
            self._silence_due_s = now_s + SILENCE_SHOWN_AGAIN_S
            silent_s = now_s - self._silent_since_s
            self._on_silence(f"{doing}: {self._brokers} has not answered for {silent_s:.0f} s")

    def _check_topics(self) -> None:
        """Raise TopicMissing when a topic is gone; librdkafka would wait until the timeout."""
        if time.monotonic() - self._looked_s < TOPICS_LOOK_S:
            return
        for topic in (self.topics.log, self.topics.progress):
            try:
                found = self._producer.list_topics(topic, timeout=WAIT_STEP_S)
            except CLIENT_ERRORS:
                break  # no broker answers, which is what the caller waits for
            error = found.topics[topic].error
            if error is not None and error.name() in TOPIC_GONE:
                raise kafka_error(error, f"writing to {topic}", self._brokers)
        self._looked_s = time.monotonic()

    def _check(self) -> None:
        if self._failure is not None:
            failure = self._failure
            raise self._mapped(KafkaException(failure), "storing rows")

    def errors(self, doing: str) -> "_Errors":
        """A block in which Kafka's exceptions become the publisher's."""
        return _Errors(self, doing)

    def _mapped(self, error: KafkaException, doing: str) -> ShardstreamError:
        """The project's error; on `_FATAL` the next call has the cause."""
        if error.args[0].name() in {"_FATAL", "_STATE"}:
            try:
                self._producer.abort_transaction(WAIT_STEP_S)
            except CLIENT_ERRORS as raised:
                cause = client_error(raised)
                if cause.args[0].name() not in {"_FATAL", "_STATE"}:
                    error = cause
        if error.args[0].name() == "MSG_SIZE_TOO_LARGE":
            return Halt(
                f"{self.topics.log}: the brokers ({self._brokers}) refuse batches of up to "
                f"{self.message_bytes_max} bytes, which max.message.bytes of the topic allowed "
                "when this producer began: was it lowered? Start the producer again: it asks for "
                "the limit, and writes larger records in parts"
            )
        known = kafka_error(error, f"{self.topics.log}: {doing}", self._brokers)
        if isinstance(known, (Fenced, Halt, UsageError, Rebuild, LoginEnded)):
            return known
        return PublisherSpent(str(known))

    def _on_error(self, error: KafkaError) -> None:
        """Called by poll for what librdkafka's threads meet: lost connections, late requests."""
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
        if isinstance(error, CLIENT_ERRORS):
            raise self._publisher._mapped(client_error(error), self._doing) from error  # noqa: SLF001 - its own part
