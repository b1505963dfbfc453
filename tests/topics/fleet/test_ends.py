"""What is followed at the ends of many topics, on a real broker."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from event_token.errors import Retry
from tests.topics.schemas.writing import commit, make_topic, remove_topics, transactional, write
from topics.fleet.look import RATE_OFFSETS, TopicEnds
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.partition_reader import open_end_consumer, read_ranges
from topics.progress.copy_topic import CopyState, TableCopy, encode, record_key


@pytest.fixture
def consumer(config: ClientConfig) -> Iterator[Consumer]:
    """A consumer that reports ends of partitions."""
    consumer = open_end_consumer(config)
    yield consumer
    consumer.close()


@pytest.fixture
def ends(config: ClientConfig, consumer: Consumer) -> TopicEnds:
    """What has looked at nothing yet."""
    return TopicEnds(config, consumer, open_admin(config))


def last_values(ends: TopicEnds, topic: str) -> list[bytes | None]:
    """The values of a topic's last records."""
    return [record.value for record in ends.last_of(topic)]


def test_each_look_adds_what_is_new_and_drops_what_is_old(
    config: ClientConfig, keyspace: str, ends: TopicEnds
) -> None:
    """Records within the window stay, an unknown topic has none, an aborted tail hides nothing."""
    busy, aborted, idle = (f"{keyspace}.{name}" for name in ("busy", "aborted", "idle"))
    topics = [busy, aborted, idle, f"{keyspace}.unknown"]
    for topic in topics[:3]:
        make_topic(config, topic)
    first, second = transactional(config, busy), transactional(config, aborted)
    write(first, busy, [b"a"])
    commit(config, first, busy)
    write(second, aborted, [b"kept"])
    commit(config, second, aborted)
    write(second, aborted, [b"aborted"] * RATE_OFFSETS)
    second.abort_transaction()

    ends.look(topics, [])
    assert [last_values(ends, topic) for topic in topics] == [[b"a"], [b"kept"], [], []]

    write(first, busy, [b"b", b"c"])
    commit(config, first, busy)
    ends.look(topics, [])
    assert [last_values(ends, topic) for topic in topics] == [[b"a", b"b", b"c"], [b"kept"], [], []]

    write(first, busy, [b"d"] * RATE_OFFSETS)
    commit(config, first, busy)
    ends.look(topics, [])
    assert set(last_values(ends, busy)) == {b"d"}


def test_copies_are_those_that_a_topic_has_now(
    config: ClientConfig, keyspace: str, ends: TopicEnds
) -> None:
    """The newest record of each table counts; a topic that was recreated begins again."""

    def add(table: str, rows: int) -> None:
        copy = TableCopy("shop", table, "1", CopyState.COPYING, 0, 0, rows=rows)
        write(producer, keyspace, [encode(copy)], record_key(copy))
        commit(config, producer, keyspace)

    def rows() -> dict[str, int]:
        ends.look([], [keyspace])
        return {copy.table: copy.rows for copy in ends.copies_of(keyspace)}

    make_topic(config, keyspace)
    producer = transactional(config, keyspace)
    add("orders", 1)
    add("items", 5)
    assert rows() == {"orders": 1, "items": 5}
    add("orders", 2)
    assert rows() == {"orders": 2, "items": 5}
    remove_topics(config, [keyspace])
    make_topic(config, keyspace)
    assert rows() == {}


def test_ranges_that_cannot_be_read_end_with_a_retry(
    config: ClientConfig, keyspace: str, consumer: Consumer
) -> None:
    """A record that never comes is named as a wait that took too long."""
    make_topic(config, keyspace)

    with pytest.raises(Retry, match="reading the ends of 1 topics"):
        list(read_ranges(consumer, config, {keyspace: (0, 1)}, 0.5))
