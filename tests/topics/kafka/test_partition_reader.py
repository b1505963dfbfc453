import pytest
from confluent_kafka import Producer

from event_token.errors import Retry, UsageError
from tests.topics.schemas.writing import commit, make_topic, transactional, write
from topics.kafka import partition_reader as tail
from topics.kafka.client import ClientConfig, open_admin, open_consumer
from topics.kafka.partition_reader import TAIL_TIMEOUT_S, read_tail, read_to_end


@pytest.fixture
def topic(config: ClientConfig, keyspace: str) -> str:
    """An empty topic."""
    make_topic(config, keyspace)
    return keyspace


def test_empty_partition_has_no_last_record(config: ClientConfig, topic: str) -> None:
    """Bounds are equal and nothing is returned."""
    found = read_tail(config, topic)

    assert (found.start_offset, found.end_offset, found.last) == (0, 0, None)


def test_last_committed_record_lies_behind_aborted_ones(config: ClientConfig, topic: str) -> None:
    """The last record is found behind markers, aborted records and an open transaction."""
    producer = transactional(config, topic)
    write(producer, topic, [b"a", b"b"])
    commit(config, producer, topic)
    for _ in range(2):
        write(producer, topic, (b"aborted" for _ in range(700)))
        producer.abort_transaction()
    write(producer, topic, [b"open"])

    found = read_tail(config, topic)

    assert found.last is not None
    assert (found.last.offset, found.last.key, found.last.value) == (1, b"key", b"b")
    assert found.end_offset <= 3 + 2 * 701
    assert [r.value for r in read_to_end(config, topic)] == [b"a", b"b"]
    assert [r.value for r in read_to_end(config, topic, 1)] == [b"b"]


def test_records_come_newest_first_over_all_windows(
    config: ClientConfig, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read backwards, each committed record comes once, also where a window has only markers."""
    monkeypatch.setattr(tail, "_BACKWARDS_WINDOW", 2)
    producer = transactional(config, topic)
    write(producer, topic, [b"a", b"b", b"c"])
    commit(config, producer, topic)
    write(producer, topic, [b"aborted"] * 5)
    producer.abort_transaction()
    write(producer, topic, [b"d"])
    commit(config, producer, topic)

    with tail.PartitionReader(config, topic, 0, tail.TAIL_TIMEOUT_S) as reader:
        assert [record.value for record in reader.newest_first()] == [b"d", b"c", b"b", b"a"]


def test_only_aborted_records_leave_no_last_one(config: ClientConfig, topic: str) -> None:
    """An aborted first transaction leaves the topic empty."""
    producer = transactional(config, topic)
    write(producer, topic, [b"aborted"])
    producer.abort_transaction()

    assert read_tail(config, topic).last is None


def test_fencing_ends_the_open_transaction(config: ClientConfig, topic: str) -> None:
    """After the successor has fenced, everything its predecessor left is decided and readable."""
    first = transactional(config, topic)
    write(first, topic, [b"committed"])
    first.commit_transaction()
    write(first, topic, [b"left open"])

    transactional(config, topic)
    found = read_tail(config, topic)

    assert found.last is not None
    assert found.last.value == b"committed"
    assert found.end_offset == 4  # two records, two markers: nothing is open any more


def test_missing_topic_is_an_error_of_usage(config: ClientConfig, keyspace: str) -> None:
    """A missing topic is named, and not created by the request."""
    with pytest.raises(UsageError, match=keyspace):
        read_tail(config, keyspace)

    assert keyspace not in open_admin(config).list_topics(timeout=TAIL_TIMEOUT_S).topics


def test_topic_is_not_missing_while_no_broker_can_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F06: that librdkafka knows no such topic without a broker does not mean it was deleted."""
    brokers = [Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "its own"})]
    [broker] = brokers[0].list_topics(timeout=60).brokers.values()
    config = ClientConfig({"bootstrap.servers": f"{broker.host}:{broker.port}"})
    writer = Producer(dict(config))
    writer.produce("t", b"value", partition=0)
    assert writer.flush(60) == 0
    del writer
    consumer = open_consumer(config)
    before = tail.partition_bounds(consumer, config, "t")
    monkeypatch.setattr(tail, "GONE_S", 0.1)

    brokers.clear()

    assert before == (0, 1)
    with pytest.raises(Retry):
        tail.partition_bounds(consumer, config.answering_within(2.0), "t")
    consumer.close()


def test_the_wait_has_an_end(config: ClientConfig, topic: str) -> None:
    """A partition that cannot be read in time is a transient fault."""
    producer = transactional(config, topic)
    write(producer, topic, [b"a"])
    commit(config, producer, topic)

    reader = tail.PartitionReader(config, topic, 0, timeout_s=0.0)
    with reader, pytest.raises(Retry, match=r"from offset 0 to 99"):
        list(reader.records(0, 99))
