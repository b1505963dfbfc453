"""Fetches the logs of several shards with one consumer, in bounded memory.

Who waits for one log takes what has come of the others, too, and leaves it to their readers. While
much waits, only the log that is waited for is fetched: otherwise the shards with few rows would
fill the memory while one with many is read. Brokers send whole batches, and those of hundreds of
logs may be large: what is too much is dropped again, and fetched later.
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from confluent_kafka import Message

from topics.errors import ReaderClosed
from topics.kafka.client import ClientConfig
from topics.kafka.consumer import FETCH_BYTES_MAX, StreamConsumer
from topics.kafka.record_parts import JoinedMessage

# Fetchers of a stream: as many shards read at a time as cores decompress, and few threads.
FETCHERS_MAX: Final = 4
# Messages of all logs of a fetcher that wait for their readers, beside the queue of its consumer,
# before the others are not fetched any further. Twice as much may come of those waited for, one
# after the other: times FETCHERS_MAX that is 64 MiB.
WAITING_BYTES_MAX: Final = 8 * 1024 * 1024
# What a log keeps nevertheless: if it were less, large batches would be fetched too often. It is
# within the above for 256 logs, 1,024 of all fetchers.
_KEPT_BYTES_MIN: Final = 64 * 1024
# What a message takes beside its value: the object, key, topic, and times.
_MESSAGE_BYTES: Final = 300
# How much of the above may come before it is looked at how much waits.
_LOOK_PARTS: Final = 8
# Fewer bytes of a log in one fetch are not worth their request.
_FETCH_BYTES_MIN: Final = 16 * 1024

# Messages as they came, and records that were in parts.
Fetched = Message | JoinedMessage


class FetchedLog:
    """A log with what has come of it and was not read: its reader takes that from `messages`."""

    def __init__(self, topic: str) -> None:
        """Begin with a log that nobody fetches."""
        self.topic = topic
        self.messages: deque[Fetched] = deque()
        self.next_offset = 0  # to fetch from: behind the last message that came

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait for the reader."""
        return _size(self.messages)

    def add(self, messages: Sequence[Message]) -> None:
        """Let messages wait that have come."""
        self.messages.extend(messages)
        self.next_offset = (messages[-1].offset() or 0) + 1

    def keep(self, bytes_max: int) -> None:
        """Drop what is more, to be fetched again; not of a record in parts, which has to be whole.

        Only while nobody fetches the log.
        """
        if not self.messages or self.messages[0].headers():
            return
        left = self.waiting_bytes
        while left > bytes_max and len(self.messages) > 1:
            left -= len(self.messages.pop()) + _MESSAGE_BYTES
            self.next_offset = (self.messages[-1].offset() or 0) + 1


def _size(messages: Collection[Fetched]) -> int:
    return sum(map(len, messages)) + len(messages) * _MESSAGE_BYTES


class LogFetcher:
    """One consumer for several logs. Not thread-safe; no connection is made before `start`.

    `waiting_bytes_max`: for all logs together; twice that at most, or `_KEPT_BYTES_MIN` of each,
    and what came last for who waits: a record in parts has to come whole.
    """

    def __init__(self, config: ClientConfig, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        """Follow no log yet."""
        self._config = config
        self._waiting_bytes_max = waiting_bytes_max
        self._consumer: StreamConsumer | None = None
        self._is_closed = False
        self._logs: dict[str, FetchedLog] = {}
        self._resting: dict[str, FetchedLog] = {}  # those of them that are not fetched
        self._came_bytes = 0  # since the last look at how much waits

    @property
    def logs(self) -> int:
        """How many logs are followed."""
        return len(self._logs)

    def follow(self, log: FetchedLog, offset: int) -> None:
        """Fetch a log from an offset on, from the next `start` or `take` of any log."""
        self.leave(log)
        log.next_offset = offset
        self._logs[log.topic] = self._resting[log.topic] = log

    def leave(self, log: FetchedLog) -> None:
        """Fetch a log no further; nothing if it is not followed."""
        is_followed = self._logs.pop(log.topic, None) is not None
        is_fetched = self._resting.pop(log.topic, None) is None
        if is_followed and is_fetched and self._consumer is not None:
            self._consumer.remove([log.topic])

    def start(self, wanted: FetchedLog | None = None) -> None:
        """Fetch `wanted`, and all logs again if little waits."""
        waiting = sum(log.waiting_bytes for log in self._logs.values())
        is_little = waiting <= self._waiting_bytes_max // 2
        again = {
            topic: log.next_offset
            for topic, log in self._resting.items()
            if is_little or log is wanted
        }
        if again:
            self._open().add(again)
            for topic in again:
                del self._resting[topic]

    def take(self, log: FetchedLog, timeout_s: float, messages_max: int) -> None:
        """Let what has come wait in its logs; wait for anything of any up to `timeout_s`.

        Raises what StreamConsumer does, of this log alone, once all before it has come.
        """
        if log.topic in self._resting:
            self.start(log)
        messages = self._open().take(timeout_s, messages_max, (log.topic,))
        if not messages:
            return
        if len(self._logs) == 1:
            log.add(messages)
            return
        came: dict[str, list[Message]] = {}
        for message in messages:
            came.setdefault(str(message.topic()), []).append(message)
        for topic, of_topic in came.items():
            self._logs[topic].add(of_topic)
        self._came_bytes += _size(messages)
        if self._came_bytes * _LOOK_PARTS >= self._waiting_bytes_max:
            self._came_bytes = 0
            self._rest_others(log)

    def _rest_others(self, wanted: FetchedLog) -> None:
        """Fetch only `wanted` while too much waits; of the others, drop what is far too much."""
        waiting = sum(log.waiting_bytes for log in self._logs.values())
        if waiting <= self._waiting_bytes_max:
            return
        others = {topic: log for topic, log in self._logs.items() if log is not wanted}
        if fetched := [topic for topic in others if topic not in self._resting]:
            self._open().remove(fetched)
            self._resting |= others
        if waiting > 2 * self._waiting_bytes_max:
            kept = max(self._share, _KEPT_BYTES_MIN)
            for log in others.values():
                log.keep(kept)

    def bounds(self, log: FetchedLog) -> tuple[int, int]:
        """Return the first offset and the last stable one of a log."""
        return self._open().bounds(log.topic)

    @property
    def throttle_s(self) -> float:
        """How long brokers have made this client wait since its last record."""
        return 0.0 if self._consumer is None else self._consumer.throttle_s

    @property
    def _share(self) -> int:
        return self._waiting_bytes_max // max(1, len(self._logs))

    def _open(self) -> StreamConsumer:
        if self._is_closed:
            raise ReaderClosed("the fetcher of these logs was closed")
        if self._consumer is None:
            topics = list(self._logs)
            self._consumer = StreamConsumer(
                self._config,
                "shard logs",  # which ones changes
                fetch_bytes=FETCH_BYTES_MAX
                if len(topics) == 1
                else min(FETCH_BYTES_MAX, max(_FETCH_BYTES_MIN, self._share // 2)),
            )
        return self._consumer

    def close(self) -> None:
        """Close the consumer; the logs cannot be fetched any more."""
        self._is_closed = True
        self._logs.clear()
        self._resting.clear()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
