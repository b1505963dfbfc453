"""Following several topics with one consumer, on a real broker."""

from collections.abc import Iterator

import pytest

from tests.topics.kafka.taking import Place, take_into, taken
from tests.topics.schemas.writing import (
    commit,
    make_topic,
    remove_topics,
    transactional,
    write,
)
from topics.errors import LogShrank
from topics.kafka import consumer as consumer_module
from topics.kafka.client import ClientConfig, Deadline
from topics.kafka.consumer import OffsetOutOfRangeError, StreamConsumer


@pytest.fixture
def consumer(config: ClientConfig) -> Iterator[StreamConsumer]:
    """What follows nothing yet."""
    made = StreamConsumer(config, "three topics")
    yield made
    made.close()


@pytest.fixture
def topics(config: ClientConfig, keyspace: str) -> list[str]:
    """Three topics with three records each, at offsets 0 to 2."""
    made = [f"{keyspace}.{n}" for n in range(3)]
    producer = transactional(config, keyspace)
    for topic in made:
        make_topic(config, topic)
        write(producer, topic, [b"a", b"b", b"c"])
        commit(config, producer, topic)
    return made


def test_what_was_removed_comes_when_it_is_added_or_assigned_again(
    config: ClientConfig, keyspace: str, consumer: StreamConsumer, topics: list[str]
) -> None:
    """Meanwhile the other topics are read; each record comes once, from the offset asked for."""
    first, second, third = topics
    consumer.assign(dict.fromkeys(topics, 0))
    begun = taken(consumer, 9)
    consumer.remove([first, second])
    producer = transactional(config, keyspace)
    for topic in topics:
        write(producer, topic, [b"d"])
        commit(config, producer, topic)

    meanwhile = taken(consumer, 1)
    consumer.add({first: 3})
    added = taken(consumer, 1)
    consumer.remove([first])
    consumer.assign(dict.fromkeys(topics, 2))
    assigned = taken(consumer, 6)

    assert begun == {(topic, n) for topic in topics for n in range(3)}
    assert meanwhile == {(third, 4)}
    assert added == {(first, 4)}
    assert assigned == {(topic, n) for topic in topics for n in (2, 4)}


def test_a_topic_without_the_offset_is_named_after_all_records(
    consumer: StreamConsumer, topics: list[str]
) -> None:
    """Its error takes no record of the others away, and they are read on."""
    consumer.assign({topics[0]: 700, topics[1]: 0, topics[2]: 0})
    found: list[Place] = []
    with pytest.raises(OffsetOutOfRangeError) as raised:
        take_into(found, consumer)
    assert raised.value.topic == topics[0]
    consumer.remove([topics[0]])
    found += sorted(taken(consumer, 6 - len(found)))

    assert sorted(found) == [(topic, n) for topic in topics[1:] for n in range(3)]


def test_silent_topics_are_looked_for_together(
    config: ClientConfig,
    consumer: StreamConsumer,
    topics: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is gone for good is named; those that are only silent are not."""
    monkeypatch.setattr(consumer_module, "SILENCE_S_MAX", 0.1)
    monkeypatch.setattr(consumer_module, "TOPIC_UNKNOWN_S_MAX", 0.5)
    consumer.assign(dict.fromkeys(topics, 0))
    taken(consumer, 9)
    quiet = Deadline(1.0)
    while not quiet.passed:
        assert consumer.take(0.1, 100) == []
    remove_topics(config, [topics[1]])

    with pytest.raises(LogShrank, match=f"at {topics[1]}: the topic is gone"):
        take_into([], consumer)
