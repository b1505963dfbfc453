"""A consumer of manually assigned partitions: low latency, bounded memory, rides out restarts."""

import logging
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from event_token.errors import Retry
from topics.errors import BrokersUnreachable, LogShrank
from topics.kafka.client import ClientConfig, consumer_config
from topics.kafka.errors import TOPIC_GONE, kafka_error, kafka_errors
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
# batches of up to 16 MB.
FETCH_BYTES_MAX: Final = 4 * 1024 * 1024
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

_OUT_OF_RANGE: Final = frozenset({"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET"})


class OffsetOutOfRangeError(Exception):
    """Raised when the log does not have the requested offset; the reader knows what that means."""


class StreamConsumer:
    """Follows assigned partitions, `read_committed`, without a consumer group.

    Not thread-safe. Errors that librdkafka recovers from are waited out; BrokersUnreachable
    (Retry) once no broker has answered for `brokers_down_s_max`.
    """

    def __init__(
        self,
        config: ClientConfig,
        reads: str,
        *,
        queue_kbytes_max: int = QUEUE_KBYTES_MAX,
        brokers_down_s_max: float = BROKERS_DOWN_S_MAX,
    ) -> None:
        """Open a consumer; `reads` describes in messages what it reads."""
        self._config = config
        self._reads = reads
        self._brokers_down_s_max = brokers_down_s_max
        self._down_since_s: float | None = None
        self._heard_s: dict[str, float] = {}  # when each topic was last seen
        self._unknown_since_s: dict[str, float] = {}
        settings: dict[str, object] = {
            **consumer_config(config, fetch_wait_ms=FETCH_WAIT_MS),
            "fetch.error.backoff.ms": str(FETCH_ERROR_BACKOFF_MS),
            "fetch.queue.backoff.ms": str(FETCH_QUEUE_BACKOFF_MS),
            "fetch.message.max.bytes": str(FETCH_BYTES_MAX),
            "queued.max.messages.kbytes": str(queue_kbytes_max),
            # No decision depends on the end of a partition.
            "enable.partition.eof": "false",
            "error_cb": self._notice,
        }
        with kafka_errors(f"opening a consumer of {reads}", config.brokers):
            self._consumer = Consumer(settings, logger=_LOG)

    def _notice(self, error: KafkaError) -> None:
        if error.name() == "_ALL_BROKERS_DOWN" and self._down_since_s is None:
            self._down_since_s = time.monotonic()

    def assign(self, offsets: dict[str, int]) -> None:
        """Read partition 0 of exactly these topics, each from its offset."""
        partitions = [TopicPartition(topic, 0, offset) for topic, offset in offsets.items()]
        with kafka_errors(f"assigning {self._reads}", self._config.brokers):
            self._consumer.assign(partitions)
        self._heard_s = dict.fromkeys(offsets, time.monotonic())
        self._unknown_since_s.clear()

    def pause(self, topics: Sequence[str]) -> None:
        """Stop fetching these topics; records already taken are not affected."""
        self._consumer.pause([TopicPartition(topic, 0) for topic in topics])

    def resume(self, topics: Sequence[str]) -> None:
        """Fetch these topics again, after the last record taken."""
        self._consumer.resume([TopicPartition(topic, 0) for topic in topics])

    def take(self, timeout_s: float, messages_max: int) -> list[Message]:
        """Return available records at once; wait up to `timeout_s` only if there are none.

        OffsetOutOfRangeError; LogShrank when a topic is gone; BrokersUnreachable.
        """
        with kafka_errors(f"reading {self._reads}", self._config.brokers):
            first = self._consumer.poll(timeout_s)
            if first is None:
                self._check_silent()
                return []
            # Given a timeout, `consume` would wait for all of `messages_max`.
            rest = self._consumer.consume(messages_max - 1, 0) if messages_max > 1 else []
        fetched = [first, *rest]
        messages = [message for message in fetched if message.error() is None]
        if len(messages) < len(fetched):
            messages = [message for message in fetched if self._is_record(message)]
        if messages:
            self._down_since_s = None
            self._heard(messages)
        self._check_silent()
        return messages

    def _heard(self, messages: Sequence[Message]) -> None:
        now_s = time.monotonic()
        one_topic = len(self._heard_s) == 1
        for message in messages[:1] if one_topic else messages:
            topic = str(message.topic())
            self._heard_s[topic] = now_s
            self._unknown_since_s.pop(topic, None)

    def _is_record(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        where = f"reading {self._reads}, at {message.topic()} offset {message.offset()}"
        if error.name() in TOPIC_GONE:
            return False  # `_check_silent` asks for some time before it raises
        if error.name() in _OUT_OF_RANGE:
            raise OffsetOutOfRangeError(f"{where}: {error.str()}")
        known = kafka_error(error, where, self._config.brokers)
        if not isinstance(known, Retry):
            raise known
        _LOG.warning("%s; continuing", known)
        return False

    def _check_silent(self) -> None:
        """Check that silent topics exist: raise when one is gone, or when no broker answers."""
        now_s = time.monotonic()
        for topic, heard_s in self._heard_s.items():
            if now_s - heard_s < SILENCE_S_MAX:
                continue
            self._heard_s[topic] = now_s  # check again after the same time
            try:
                found = self._consumer.list_topics(topic, timeout=PROBE_S)
            except KafkaException as error:
                self._notice_outage(error)
                return
            self._down_since_s = None
            self._check_exists(topic, found.topics[topic].error)

    def _check_exists(self, topic: str, answer: KafkaError | None) -> None:
        """Raise when brokers have not known the topic for `TOPIC_UNKNOWN_S_MAX`."""
        if answer is None or answer.name() not in TOPIC_GONE:
            self._unknown_since_s.pop(topic, None)
            return
        now_s = time.monotonic()
        unknown_s = now_s - self._unknown_since_s.setdefault(topic, now_s)
        if unknown_s >= TOPIC_UNKNOWN_S_MAX:
            raise LogShrank(
                f"reading {self._reads}, at {topic}: the topic is gone ({answer.str()}), and "
                f"its records with it. If it was deleted on purpose, start again from earliest",
            )

    def _notice_outage(self, error: KafkaException) -> None:
        now_s = time.monotonic()
        since_s = self._down_since_s = self._down_since_s or now_s
        if now_s - since_s >= self._brokers_down_s_max:
            raise BrokersUnreachable(
                f"reading {self._reads}: no broker of {self._config.brokers} has answered for "
                f"{now_s - since_s:.0f} s: {error.args[0]}",
            ) from error

    def bounds(self, topic: str) -> tuple[int, int]:
        """Return the first offset and the last stable offset of partition 0."""
        return partition_bounds(self._consumer, self._config, topic)

    def close(self) -> None:
        """Close the consumer; idempotent."""
        self._consumer.close()
