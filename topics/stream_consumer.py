"""A consumer that follows partitions by hand: prompt, bounded in memory, patient with brokers."""

import logging
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from event_token.errors import Retry
from topics.kafka_client import ClientConfig, consumer_config
from topics.kafka_errors import kafka_error, kafka_errors
from topics.reading.errors import BrokersUnreachable, LogShrank
from topics.tail import partition_bounds

_LOG: Final = logging.getLogger(__name__)

# A broker answers a fetch as soon as there is a record; when there is none it holds the fetch for
# this long, and a partition that is assigned or resumed meanwhile waits for that answer.
FETCH_WAIT_MS: Final = 100
# After an error of one partition. librdkafka's 500 would be half a second without rows after each
# change of leader.
FETCH_ERROR_BACKOFF_MS: Final = 50
# While the queue below is full. librdkafka's 1000 would stall a reader that drains it faster.
FETCH_QUEUE_BACKOFF_MS: Final = 10
# What one fetch brings of one partition, unless a single record is larger.
FETCH_BYTES_MAX: Final = 4 * 1024 * 1024
# Fetched and not yet taken. With the fetch that may come on top, 12 MiB for each consumer.
QUEUE_KBYTES_MAX: Final = 8 * 1024
# Brokers restart within this time; longer is an outage, of which the caller has to know.
BROKERS_DOWN_S_MAX: Final = 120.0
# A broker that is up answers in milliseconds.
PROBE_S: Final = 2.0
# A broken topic is told apart from a slow broker once librdkafka is sure: its own 30 s would be
# over half of what a reader waits for its rows.
TOPIC_GONE_MS: Final = 10_000

_GONE: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_OUT_OF_RANGE: Final = frozenset({"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET"})


class OffsetOutOfRangeError(Exception):
    """Raised when the wanted offset is not in the log; whoever reads knows what that means."""


class StreamConsumer:
    """Follows assigned partitions, `read_committed`, without a consumer group.

    Not for two threads at once. Errors that librdkafka mends by itself are waited out;
    BrokersUnreachable (Retry) once no broker has answered for `brokers_down_s_max`.
    """

    def __init__(
        self,
        config: ClientConfig,
        reads: str,
        *,
        queue_kbytes_max: int = QUEUE_KBYTES_MAX,
        brokers_down_s_max: float = BROKERS_DOWN_S_MAX,
    ) -> None:
        """Open a consumer; `reads` says in messages what it is for."""
        self._config = config
        self._reads = reads
        self._brokers_down_s_max = brokers_down_s_max
        self._down_since_s: float | None = None
        settings: dict[str, object] = {
            "topic.metadata.propagation.max.ms": str(TOPIC_GONE_MS),
            **consumer_config(config, fetch_wait_ms=FETCH_WAIT_MS),
            "fetch.error.backoff.ms": str(FETCH_ERROR_BACKOFF_MS),
            "fetch.queue.backoff.ms": str(FETCH_QUEUE_BACKOFF_MS),
            "fetch.message.max.bytes": str(FETCH_BYTES_MAX),
            "queued.max.messages.kbytes": str(queue_kbytes_max),
            # Nothing is concluded from the end of a partition.
            "enable.partition.eof": "false",
            "error_cb": self._notice,
        }
        with kafka_errors(f"opening a consumer of {reads}", config.brokers):
            self._consumer = Consumer(settings, logger=_LOG)

    def _notice(self, error: KafkaError) -> None:
        if error.name() == "_ALL_BROKERS_DOWN" and self._down_since_s is None:
            self._down_since_s = time.monotonic()

    def assign(self, offsets: dict[str, int]) -> None:
        """Read partition 0 of these topics, each from its offset on, and nothing else."""
        partitions = [TopicPartition(topic, 0, offset) for topic, offset in offsets.items()]
        with kafka_errors(f"assigning {self._reads}", self._config.brokers):
            self._consumer.assign(partitions)

    def pause(self, topics: Sequence[str]) -> None:
        """Stop fetching these topics; what was taken is not lost."""
        self._consumer.pause([TopicPartition(topic, 0) for topic in topics])

    def resume(self, topics: Sequence[str]) -> None:
        """Fetch these topics again, from after the last record taken."""
        self._consumer.resume([TopicPartition(topic, 0) for topic in topics])

    def take(self, timeout_s: float, messages_max: int) -> list[Message]:
        """Return what is there, at once; wait up to `timeout_s` only where nothing is.

        OffsetOutOfRangeError, LogShrank (the topic is gone), BrokersUnreachable.
        """
        with kafka_errors(f"reading {self._reads}", self._config.brokers):
            first = self._consumer.poll(timeout_s)
            if first is None:
                self._check_brokers()
                return []
            # With a time to wait `consume` would wait until it has all of `messages_max`.
            rest = self._consumer.consume(messages_max - 1, 0) if messages_max > 1 else []
        messages = [message for message in (first, *rest) if self._is_record(message)]
        if messages:
            self._down_since_s = None
        return messages

    def _is_record(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        where = f"reading {self._reads}, at {message.topic()} offset {message.offset()}"
        if error.name() in _GONE:
            raise LogShrank(
                f"{where}: the topic is gone ({error.str()}): its records cannot be had again. "
                f"If it was deleted on purpose, start again from earliest",
            )
        if error.name() in _OUT_OF_RANGE:
            raise OffsetOutOfRangeError(f"{where}: {error.str()}")
        known = kafka_error(error, where, self._config.brokers)
        if not isinstance(known, Retry):
            raise known
        _LOG.warning("%s; going on", known)
        return False

    def _check_brokers(self) -> None:
        """Raise when no broker has answered for too long, also not just now."""
        since_s = self._down_since_s
        if since_s is None or time.monotonic() - since_s < self._brokers_down_s_max:
            return
        try:
            self._consumer.list_topics(timeout=PROBE_S)
        except KafkaException as error:
            raise BrokersUnreachable(
                f"reading {self._reads}: no broker of {self._config.brokers} has answered for "
                f"{time.monotonic() - since_s:.0f} s: {error.args[0]}",
            ) from error
        self._down_since_s = None

    def bounds(self, topic: str) -> tuple[int, int]:
        """Return the first offset of partition 0 and the one after its last stable record."""
        return partition_bounds(self._consumer, self._config, topic)

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        """Return a lower bound of the first record with that time or a later one, None: no such."""
        wanted = TopicPartition(topic, 0, timestamp_ms)
        with kafka_errors(f"asking {topic} for an offset by time", self._config.brokers):
            found = self._consumer.offsets_for_times([wanted], timeout=30.0)[0]
        return found.offset if found.offset >= 0 else None

    def close(self) -> None:
        """Leave; a second time does nothing."""
        self._consumer.close()
