"""A consumer of manually assigned partitions: low latency, bounded memory, rides out restarts."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
    ThrottleEvent,
    TopicPartition,
)

from event_token.errors import Retry
from topics.errors import BrokersUnreachable, LogShrank
from topics.kafka.client import ClientConfig, consumer_config, new_consumer
from topics.kafka.errors import (
    AUTHENTICATION_NAMES,
    OUT_OF_RANGE,
    TOPIC_GONE,
    AuthenticationFailed,
    kafka_error,
    kafka_errors,
)
from topics.kafka.partition_reader import partition_bounds

_LOG: Final = logging.getLogger(__name__)

# A broker answers a fetch as soon as there is a record. Without one it delays the response for
# this long, and partitions that are assigned or resumed in between wait for that response.
FETCH_WAIT_MS: Final = 100
# After an error of one partition. librdkafka's 500 would pause rows for half a second after each
# leader change.
FETCH_ERROR_BACKOFF_MS: Final = 50
# While the queue is full (see below). librdkafka's 1000 would stall a reader that drains it faster.
FETCH_QUEUE_BACKOFF_MS: Final = 10
# Bytes per partition in one fetch, unless a single batch is larger: with large rows producers write
# batches of up to 16 MB. Where quotas are smaller than that in ten seconds, settings say less.
FETCH_BYTES_MAX: Final = 4 * 1024 * 1024
# Bytes in one response of a broker, of however many partitions.
_RESPONSE_BYTES_MAX: Final = FETCH_BYTES_MAX
# Fetched and not yet taken. One more fetch may be added: 12 MiB per consumer, 24 with large rows.
QUEUE_KBYTES_MAX: Final = 8 * 1024
# Brokers restart within this time; anything longer is an outage, which the caller must know of.
BROKERS_DOWN_S_MAX: Final = 120.0
# A healthy broker answers in milliseconds.
PROBE_S: Final = 2.0
# After this long without a record a topic's existence is checked, because librdkafka reports a
# deleted topic only after minutes. Producers write progress every 250 ms.
SILENCE_S_MAX: Final = 5.0
# A broker that starts under load may not know its topics for some seconds.
TOPIC_UNKNOWN_S_MAX: Final = 30.0


class OffsetOutOfRangeError(Exception):
    """Raised when `topic` does not have the requested offset; the reader knows what that means."""

    def __init__(self, message: str, topic: str) -> None:
        super().__init__(message)
        self.topic = topic


class StreamConsumer:
    """Follows assigned partitions, `read_committed`, without a consumer group.

    Not thread-safe. Errors that librdkafka recovers from are waited out, among them logins that
    are refused because a token has ended; BrokersUnreachable (Retry) once no broker has answered
    for `brokers_down_s_max`.
    """

    def __init__(
        self,
        config: ClientConfig,
        reads: str,
        *,
        queue_kbytes_max: int = QUEUE_KBYTES_MAX,
        fetch_bytes: int = FETCH_BYTES_MAX,
        brokers_down_s_max: float = BROKERS_DOWN_S_MAX,
    ) -> None:
        """Open a consumer; `reads` describes in messages what it reads.

        `fetch_bytes`: of a topic in one fetch, unless a batch is larger.
        """
        self._config = config
        self._reads = reads
        self._brokers_down_s_max = brokers_down_s_max
        self._down_since_s: float | None = None
        self._refused_login = ""  # the last one since a broker answered
        self._throttle_s = 0.0
        self._heard_s: dict[str, float] = {}  # when each topic was last seen
        self._look_at_s = 0.0  # no topic is silent for too long before that
        self._errors: dict[str, Exception] = {}  # of topics, until they are removed
        self._unknown_since_s: dict[str, float] = {}
        settings: dict[str, Any] = {
            **consumer_config(config, fetch_wait_ms=FETCH_WAIT_MS, fetch_bytes=fetch_bytes),
            "fetch.error.backoff.ms": str(FETCH_ERROR_BACKOFF_MS),
            "fetch.queue.backoff.ms": str(FETCH_QUEUE_BACKOFF_MS),
            "fetch.max.bytes": str(_RESPONSE_BYTES_MAX),
            "queued.max.messages.kbytes": str(queue_kbytes_max),
            # No decision depends on the end of a partition.
            "enable.partition.eof": "false",
            "error_cb": self._notice,
            "throttle_cb": self._note_throttle,
        }
        with kafka_errors(f"opening a consumer of {reads}", config.brokers):
            self._consumer = new_consumer(config, settings)

    def _notice(self, error: KafkaError) -> None:
        if error.name() == "_ALL_BROKERS_DOWN" and self._down_since_s is None:
            self._down_since_s = time.monotonic()
        if error.name() in AUTHENTICATION_NAMES:
            self._refused_login = f"; a login was refused: {error.str()}"

    def _note_throttle(self, event: ThrottleEvent) -> None:
        self._throttle_s = max(self._throttle_s, event.throttle_time)

    @property
    def throttle_s(self) -> float:
        """How long brokers have made this client wait since its last record; 0 within its quotas.

        What is larger than a broker grants a client in ten seconds is never sent: the answer to a
        fetch is empty then, however often it is repeated.
        """
        return self._throttle_s

    def assign(self, offsets: dict[str, int]) -> None:
        """Read partition 0 of exactly these topics, each from its offset."""
        partitions = [TopicPartition(topic, 0, offset) for topic, offset in offsets.items()]
        with kafka_errors(f"assigning {self._reads}", self._config.brokers):
            self._consumer.assign(partitions)
        self._heard_s = dict.fromkeys(offsets, time.monotonic())
        self._look_at_s = 0.0
        self._unknown_since_s.clear()
        self._errors.clear()

    def add(self, offsets: Mapping[str, int]) -> None:
        """Read partition 0 of these topics, too, each from its offset."""
        partitions = [TopicPartition(topic, 0, offset) for topic, offset in offsets.items()]
        with kafka_errors(f"assigning {self._reads}", self._config.brokers):
            self._consumer.incremental_assign(partitions)
        self._heard_s |= dict.fromkeys(offsets, time.monotonic())
        self._look_at_s = 0.0

    def remove(self, topics: Sequence[str]) -> None:
        """Read these topics no further; what has been fetched and not taken is dropped.

        `add` goes on after the last record taken. librdkafka's pause would outlive the assignment.
        """
        with kafka_errors(f"assigning {self._reads}", self._config.brokers):
            self._consumer.incremental_unassign([TopicPartition(topic, 0) for topic in topics])
        for topic in topics:
            self._heard_s.pop(topic, None)
            self._unknown_since_s.pop(topic, None)
            self._errors.pop(topic, None)

    def take(
        self, timeout_s: float, messages_max: int, waits_for: Sequence[str] | None = None
    ) -> list[Message]:
        """Return available records at once; wait up to `timeout_s` only if there are none.

        Raises what is wrong with a topic of `waits_for` (None: of all), once all records before it
        have been returned, and again until the topic is removed: OffsetOutOfRangeError, LogShrank
        when it is gone, and what brokers or client say of it; BrokersUnreachable.
        """
        self._raise_error(waits_for)
        with kafka_errors(self._doing(waits_for), self._config.brokers):
            first = self._consumer.poll(timeout_s)
            fetched = [] if first is None else [first]
            if fetched and messages_max > 1:
                # Given a timeout, `consume` would wait for all of `messages_max`.
                fetched += self._consumer.consume(messages_max - 1, 0)
        if self._errors or any(message.error() is not None for message in fetched):
            fetched = [message for message in fetched if self._is_record(message)]
        if fetched:
            self._note_answer()
            self._throttle_s = 0.0
            self._heard(fetched)
        self._check_silent(waits_for)
        if not fetched:
            self._raise_error(waits_for)
        return fetched

    def _raise_error(self, waits_for: Sequence[str] | None) -> None:
        for topic, error in self._errors.items():
            if waits_for is None or topic in waits_for:
                raise error

    def _doing(self, topics: Sequence[str] | None) -> str:
        """Return what is done, for messages: of one topic that is waited for its name, too."""
        return f"reading {self._reads}" + (
            f", at {topics[0]}" if topics and len(topics) == 1 else ""
        )

    def _heard(self, messages: Sequence[Message]) -> None:
        now_s = time.monotonic()
        one_topic = len(self._heard_s) == 1
        seen = messages[:1] if one_topic else messages
        for topic in {str(message.topic()) for message in seen}:
            self._heard_s[topic] = now_s
            self._unknown_since_s.pop(topic, None)

    def _is_record(self, message: Message) -> bool:
        """Return whether it is one to be returned; keep what is wrong with its topic."""
        error, topic = message.error(), message.topic()
        if error is None:
            # What follows an error lacks what came between.
            return topic not in self._errors
        where = f"reading {self._reads}, at {topic} offset {message.offset()}"
        if error.name() in TOPIC_GONE:
            return False  # `_check_silent` asks for some time before it raises
        if topic is not None and error.name() in OUT_OF_RANGE:
            self._keep(topic, OffsetOutOfRangeError(f"{where}: {error.str()}", topic))
            return False
        known = kafka_error(error, where, self._config.brokers)
        if isinstance(known, Retry | AuthenticationFailed):
            # After a refused login the client asks for another token and logs in again. If that
            # never works, no broker answers, which `_check_silent` finds.
            self._notice(error)
            _LOG.warning("%s; continuing", known)
        elif topic is None or error.fatal():
            raise known
        else:
            self._keep(topic, known)
        return False

    def _keep(self, topic: str, error: Exception) -> None:
        # One that was removed may still have had an error on its way.
        if topic in self._heard_s:
            self._errors.setdefault(topic, error)

    def _check_silent(self, topics: Sequence[str] | None) -> None:
        """Check that silent topics exist; raise when no broker answers.

        `topics`: None for all.
        """
        now_s = time.monotonic()
        heard_s = self._heard_s
        if topics is None:
            if now_s < self._look_at_s:
                return
            topics = list(heard_s)
        silent = [topic for topic in topics if now_s - heard_s.get(topic, now_s) >= SILENCE_S_MAX]
        heard_s |= dict.fromkeys(silent, now_s)  # check again after the same time
        self._look_at_s = min(heard_s.values(), default=now_s) + SILENCE_S_MAX
        if not silent:
            return
        try:
            answers = self._look_for(silent)
        except KafkaException as error:
            self._notice_outage(error, topics)
            return
        self._note_answer()
        for topic, answer in answers.items():
            self._check_exists(topic, answer)

    def _look_for(self, topics: Sequence[str]) -> dict[str, KafkaError | None]:
        """Return what brokers say of these topics, with one question unless some are gone."""
        known = self._consumer.list_topics(timeout=PROBE_S).topics if len(topics) > 1 else {}
        for topic in topics:
            if topic not in known:
                known[topic] = self._consumer.list_topics(topic, timeout=PROBE_S).topics[topic]
        return {topic: known[topic].error for topic in topics}

    def _check_exists(self, topic: str, answer: KafkaError | None) -> None:
        """Keep an error when brokers have not known the topic for `TOPIC_UNKNOWN_S_MAX`."""
        if answer is None or answer.name() not in TOPIC_GONE:
            self._unknown_since_s.pop(topic, None)
            return
        now_s = time.monotonic()
        unknown_s = now_s - self._unknown_since_s.setdefault(topic, now_s)
        if unknown_s >= TOPIC_UNKNOWN_S_MAX:
            gone = LogShrank(
                f"reading {self._reads}, at {topic}: the topic is gone ({answer.str()}), and "
                f"its records with it. If it was deleted on purpose, start again from earliest",
            )
            self._keep(topic, gone)

    def _note_answer(self) -> None:
        self._down_since_s = None
        self._refused_login = ""

    def _notice_outage(self, error: KafkaException, topics: Sequence[str]) -> None:
        now_s = time.monotonic()
        since_s = self._down_since_s = self._down_since_s or now_s
        if now_s - since_s >= self._brokers_down_s_max:
            raise BrokersUnreachable(
                f"{self._doing(topics)}: no broker of {self._config.brokers} has answered for "
                f"{now_s - since_s:.0f} s: {error.args[0]}{self._refused_login}",
            ) from error

    def bounds(self, topic: str) -> tuple[int, int]:
        """Return the first offset and the last stable offset of partition 0."""
        return partition_bounds(self._consumer, self._config, topic)

    def close(self) -> None:
        """Close the consumer; idempotent."""
        self._consumer.close()
