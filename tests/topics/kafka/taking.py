"""Records as a consumer of several topics takes them."""

from tests.topics.schemas.writing import TIMEOUT_S
from topics.kafka.client import Deadline
from topics.kafka.consumer import StreamConsumer

Place = tuple[str, int]


def taken(consumer: StreamConsumer, count: int) -> set[Place]:
    """The topics and offsets of this many records."""
    deadline = Deadline(TIMEOUT_S)
    found: list[Place] = []
    while len(found) < count:
        assert not deadline.passed, found
        messages = consumer.take(0.1, 100)
        found += [(str(message.topic()), message.offset() or 0) for message in messages]
    assert len(set(found)) == len(found)
    return set(found)


def take_into(found: list[Place], consumer: StreamConsumer) -> None:
    """Take records until an error ends it."""
    deadline = Deadline(TIMEOUT_S)
    while not deadline.passed:
        messages = consumer.take(0.1, 100)
        found += [(str(message.topic()), message.offset() or 0) for message in messages]
