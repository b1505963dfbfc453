"""Hands complete records to Kafka's client and counts them per batch.

A complete record is held until the next one is complete or the batch is taken: only then is it
known whether it is the batch's last, for which a delivery report is wanted.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from event_token.errors import UsageError
from producers.decoder.errors import QueueStayedFull

# How often a full queue is waited for. `on_full` waits about 0.1 s, so a broker has minutes.
QUEUE_FULL_TRIES_MAX: Final = 3000

Produce = Callable[[str, bytes, bytes, int, object, object, int], None]


def _closed(
    _topic: str, _value: bytes, _key: bytes, _partition: int, _1: object, _2: object, _ms: int
) -> None:
    """Replace `produce` after `close`."""
    raise UsageError("this decoder is closed")


class RecordOutput:
    """The way of records to one topic. `messages` and `bytes_produced` count the open batch."""

    def __init__(
        self, topic: str, produce: Produce, on_full: Callable[[], None], on_delivery: object
    ) -> None:
        """`on_delivery` is passed with the first and last record of a batch."""
        self.messages: i64 = 0
        self.bytes_produced: i64 = 0
        self._topic: str = topic
        self._produce: Produce = produce
        self._on_full: Callable[[], None] = on_full
        self._on_delivery: object = on_delivery
        self._is_held: bool = False
        self._value: bytes = b""
        self._key: bytes = b""
        self._timestamp_ms: i64 = 0
        self._is_first: bool = False

    def add(self, value: bytes, key: bytes, timestamp_ms: i64) -> None:
        """Take a complete record and produce the one before it."""
        if self._is_held:
            self._produce_held(self._is_first)
        self._is_held = True
        self._value = value
        self._key = key
        self._timestamp_ms = timestamp_ms
        self._is_first = self.messages == 0
        self.messages += 1
        self.bytes_produced += len(value) + len(key)

    def produce_rest(self) -> None:
        """Produce the batch's last record."""
        if self._is_held:
            self._produce_held(True)

    def begin_batch(self) -> None:
        """Count from zero again."""
        self.messages = 0
        self.bytes_produced = 0

    def close(self) -> None:
        """Drop the reference so that a retained decoder cannot keep the Kafka client alive."""
        self._produce = _closed

    def _produce_held(self, is_reported: bool) -> None:
        # A report is a call into Python: only a batch's first and last record are worth it.
        callback = self._on_delivery if is_reported else None
        value = self._value
        key = self._key
        self._is_held = False
        try:
            # Passed twice: with None as the fifth argument the client ignores the sixth.
            self._produce(self._topic, value, key, 0, callback, callback, self._timestamp_ms)
        except BufferError:
            self._wait_and_produce(value, key, callback)

    def _wait_and_produce(self, value: bytes, key: bytes, callback: object) -> None:
        for _ in range(QUEUE_FULL_TRIES_MAX):
            self._on_full()
            try:
                self._produce(self._topic, value, key, 0, callback, callback, self._timestamp_ms)
            except BufferError:
                continue
            return
        raise QueueStayedFull(
            f"the Kafka client's queue stayed full for {QUEUE_FULL_TRIES_MAX} tries; "
            f"the broker accepts no records"
        )
