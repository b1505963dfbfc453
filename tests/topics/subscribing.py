"""Takes events from a Subscriber, with a deadline."""

from itertools import islice

from tests.topics.shard_writer import TIMEOUT_S
from topics.kafka.client import Deadline
from topics.records.vevent import VEvent
from topics.stream.subscriber import StreamSubscriber


def taken(stream: StreamSubscriber, count: int) -> list[VEvent]:
    """The next `count` events, however often the stream becomes idle in between."""
    deadline = Deadline(TIMEOUT_S)
    events: list[VEvent] = []
    while len(events) < count:
        events += islice(stream, count - len(events))
        assert not deadline.passed, f"{len(events)} of {count} events; waiting: {stream.waiting}"
    return events


def idle(stream: StreamSubscriber, shards: tuple[str, ...]) -> None:
    """Read until the stream waits for these shards, and expect no event before."""
    deadline = Deadline(TIMEOUT_S)
    while True:
        assert list(stream) == []
        if stream.waiting is not None and stream.waiting.shards == shards:
            return
        assert not deadline.passed, f"waiting: {stream.waiting}"
