"""The transactional producer against a real broker: fencing, offsets, and what is visible."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from event_token import Retry
from producers.errors import LogDisagrees
from producers.publisher import Publisher
from shardstream.local.kafka_cluster import KafkaCluster
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig, open_producer
from topics.kafka.errors import Fenced
from topics.kafka.partition_reader import await_stable, read_tail, read_to_end
from topics.kafka.provisioning import broker_transaction_timeout_ms, provision_shard
from topics.names import ShardTopics

TIME_MS = 1_700_000_000_123


class Shard:
    """A shard's topics on a broker."""

    def __init__(self, kafka: KafkaCluster, keyspace: str) -> None:
        self.config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
        self.topics = ShardTopics(keyspace, "-")
        self.timeout_ms = broker_transaction_timeout_ms(self.config)
        provision_shard(self.config, self.topics)

    def publisher(self) -> Publisher:
        """A new producer of the shard, fenced in."""
        publisher = Publisher(self.config, self.topics, self.timeout_ms, lambda: False)
        publisher.fence()
        return publisher

    def values(self, topic: str) -> list[bytes | None]:
        """The committed values of a topic."""
        return [record.value for record in read_to_end(self.config, topic)]

    def wait_values(self, topic: str, values: list[bytes]) -> None:
        """Wait for these committed values: markers reach a topic after the commit's answer."""
        wait_for(f"{values} in {topic}", lambda: self.values(topic) == values)


@pytest.fixture
def shard(kafka: KafkaCluster, keyspace: str) -> Shard:
    """A shard of the test's own."""
    return Shard(kafka, keyspace)


@pytest.fixture
def stranger(shard: Shard) -> Iterator[Producer]:
    """A producer that has nothing to do with the shard."""
    producer = open_producer(shard.config, transactional_id=f"{shard.topics.keyspace}.stranger")
    producer.init_transactions(60)
    yield producer
    producer.abort_transaction(60)


def write(publisher: Publisher, values: list[bytes]) -> None:
    """Produce rows as the decoder does: reports for the first and the last."""
    publisher.begin()
    topic = publisher.topics.log
    for i, value in enumerate(values):
        report = publisher.on_delivery if i in {0, len(values) - 1} else None
        publisher.produce(topic, value, b"k", 0, report, report, TIME_MS)


def test_rows_and_progress_become_visible_together(shard: Shard) -> None:
    """Before the commit nobody sees a row; afterwards rows, times and progress are there."""
    publisher = shard.publisher()
    write(publisher, [b"1", b"2", b"3"])
    first = publisher.flush(3)
    before = shard.values(shard.topics.log)

    publisher.commit(b"progress", b"p", TIME_MS)
    publisher.close()

    assert (first, before) == (0, [])
    shard.wait_values(shard.topics.log, [b"1", b"2", b"3"])
    shard.wait_values(shard.topics.progress, [b"progress"])
    records = list(read_to_end(shard.config, shard.topics.log))
    assert [(r.value, r.offset, r.timestamp_ms) for r in records] == [
        (b"1", 0, TIME_MS),
        (b"2", 1, TIME_MS),
        (b"3", 2, TIME_MS),
    ]


def test_offsets_follow_an_aborted_transaction(shard: Shard) -> None:
    """A closed producer's rows are aborted, take offsets, and are never seen."""
    first = shard.publisher()
    write(first, [b"lost"] * 5)
    first.flush(5)
    first.close()
    second = shard.publisher()
    write(second, [b"kept", b"too"])

    offset = second.flush(2)
    second.commit(b"progress", b"p", TIME_MS)
    second.close()

    assert offset == 6  # five rows and the abort marker
    shard.wait_values(shard.topics.log, [b"kept", b"too"])


def test_predecessors_open_transaction_is_aborted_by_fencing(shard: Shard) -> None:
    """F01: A producer that died in the middle leaves nothing visible and nothing open."""
    dead = shard.publisher()
    write(dead, [b"half"] * 3)
    dead.flush(3)

    living = shard.publisher()

    await_stable(shard.config, shard.topics.log)
    assert shard.values(shard.topics.log) == []
    assert read_tail(shard.config, shard.topics.log).end_offset == 4
    living.close()
    dead.close()


def test_fenced_producer_says_so_in_the_middle_of_a_transaction(shard: Shard) -> None:
    """The older one learns it from the broker, whatever it does next, and commits nothing."""
    old = shard.publisher()
    write(old, [b"old"])
    old.flush(1)
    new = shard.publisher()

    with pytest.raises(Fenced, match="took over"):
        old.commit(b"progress", b"p", TIME_MS)
    old.close()

    new.close()
    assert shard.values(shard.topics.log) == []


def test_fenced_producer_says_so_when_it_was_idle(shard: Shard) -> None:
    """Between transactions it learns it with the next one."""
    old = shard.publisher()
    new = shard.publisher()
    write(old, [b"old"] * 3)

    with pytest.raises(Fenced, match="took over"):
        old.flush(3)
    old.close()
    new.close()


def test_foreign_record_between_the_rows_is_found(shard: Shard, stranger: Producer) -> None:
    """Somebody else's record among ours tears the offsets apart: nothing is committed."""
    publisher = shard.publisher()
    write(publisher, [b"1"])
    publisher.flush(1)
    stranger.begin_transaction()
    stranger.produce(shard.topics.log, b"foreign", partition=0)
    stranger.flush(60)
    publisher.produce(
        shard.topics.log, b"2", b"k", 0, publisher.on_delivery, publisher.on_delivery, TIME_MS
    )

    with pytest.raises(LogDisagrees, match="something else writes"):
        publisher.flush(2)
    publisher.close()


def test_progress_waits_for_room_in_the_queue(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that fill the client's queue hold the next one up, and none is lost."""
    monkeypatch.setattr("producers.publisher.QUEUE_MESSAGES_MAX", 3)
    publisher = shard.publisher()
    rows = [b"1", b"2", b"3"]
    write(publisher, rows)
    with pytest.raises(BufferError):
        publisher.produce(shard.topics.log, b"4", b"k", 0, None, None, TIME_MS)
    publisher.commit(b"behind", b"p", TIME_MS)
    publisher.close()

    shard.wait_values(shard.topics.log, rows)
    shard.wait_values(shard.topics.progress, [b"behind"])


def test_open_foreign_transaction_keeps_from_resuming(shard: Shard, stranger: Producer) -> None:
    """What is committed behind an open transaction cannot be seen: that is said, not ignored."""
    stranger.begin_transaction()
    stranger.produce(shard.topics.log, b"open", partition=0)
    stranger.flush(60)

    with pytest.raises(Retry, match="find-hanging"):
        await_stable(shard.config, shard.topics.log, seconds=0.5)
