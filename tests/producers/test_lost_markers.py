"""Commits that the brokers complete without their markers, because a partition has no leader."""

from dataclasses import dataclass, replace

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public

from event_token import Retry
from producers.publisher import Publisher
from shardstream.local.kafka_cluster import KafkaCluster
from tests.topics.shard_writer import TIMEOUT_S, ShardWriter, provision
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import open_range, read_to_end
from topics.kafka.provisioning import broker_transaction_timeout_ms
from topics.kafka.topic_settings import (
    FOREVER_MS,
    TopicSettings,
    control_rules,
    log_rules,
    progress_rules,
)
from topics.names import ShardTopics
from topics.progress.committed_tail import LogTail, read_committed_tail
from topics.progress.record import Progress
from topics.records.vevent import EventType, Op

pytestmark = pytest.mark.full

# The broker that goes away, and one that stays.
LOST, KEPT = 1, 2


@dataclass
class Shard:
    """A shard whose last commit ended while a broker was away, and the successor of its producer.

    Before that it had a commit with two rows.
    """

    writer: ShardWriter
    successor: Publisher

    @property
    def topics(self) -> ShardTopics:
        """Its topics."""
        return self.writer.topics

    def read_tail(self) -> tuple[Progress | None, LogTail]:
        """What the successor finds."""
        return read_committed_tail(
            self.writer.config, self.topics, self.writer.schema_ids, self.successor.abort_open
        )


def create_topics(
    config: ClientConfig, topics: ShardTopics, progress_on: int, copy_on: int
) -> None:
    """The topics of a shard, each on one broker."""
    admin = AdminClient(dict(config))
    placed = (
        (log_rules(topics, TopicSettings()), LOST),
        (progress_rules(topics, FOREVER_MS), progress_on),
        (control_rules(topics.copy), copy_on),
    )
    created = admin.create_topics(
        [
            NewTopic(
                rules.topic,
                1,
                replica_assignment=[[broker]],
                config={**rules.settings(), "min.insync.replicas": "1"},
            )
            for rules, broker in placed
        ]
    )
    for future in created.values():
        future.result(TIMEOUT_S)


def store_row(publisher: Publisher, value: bytes) -> int:
    """Store a row in the publisher's transaction; return its offset."""
    publisher.begin()
    told = publisher.on_delivery
    publisher.produce(publisher.topics.log, value, b"k", 0, told, told, 0)
    return publisher.flush(1)


@pytest.fixture(scope="module")
def living(kafka3: KafkaCluster) -> Publisher:
    """A producer with an open transaction, whose shard log alone lies on the lost broker."""
    config = ClientConfig({"bootstrap.servers": kafka3.bootstrap_servers})
    topics = ShardTopics("lostliving", "-")
    create_topics(config, topics, KEPT, KEPT)
    timeout_ms = broker_transaction_timeout_ms(config)
    publisher = Publisher(config, topics, timeout_ms, lambda: False)
    publisher.fence()
    store_row(publisher, b"lost")
    return publisher


@pytest.fixture(scope="module")
def shards(kafka3: KafkaCluster, living: Publisher) -> list[Shard]:
    """Three shards: the lost broker has all topics, all but progress, all but the copy topic.

    The living producer commits while that broker is away.
    """
    config = ClientConfig({"bootstrap.servers": kafka3.bootstrap_servers})
    timeout_ms = broker_transaction_timeout_ms(config)
    found = []
    for keyspace, progress_on, copy_on in (
        ("lostall", LOST, LOST),
        ("lostone", KEPT, LOST),
        ("lostrows", LOST, KEPT),
    ):
        topics = ShardTopics(keyspace, "-")
        create_topics(config, topics, progress_on, copy_on)
        provision(config, keyspace, ["-"])
        writer = ShardWriter(config, keyspace, "-")
        writer.commit((0, 2))
        found.append(Shard(writer, Publisher(config, topics, timeout_ms, lambda: False)))
    for shard in found:
        writer = shard.writer
        writer.producer.begin_transaction()
        *rows, last = writer.rows([(10, 3)])
        events = [
            *rows,
            replace(last, type=EventType.LAST_PK, op=Op.NONE, after=None, statement="{}"),
        ]
        writer.produce_progress(writer.progress(events, writer.produce(events)))
        writer.producer.produce(writer.topics.copy, value=b"half", key=b"a table", partition=0)
        assert writer.producer.flush(TIMEOUT_S) == 0
    [broker] = [each for each in kafka3.brokers if each.node_id == LOST]
    broker.stop()
    try:
        for shard in found:
            shard.writer.producer.commit_transaction(TIMEOUT_S)
            shard.successor.fence()  # once the brokers take the commit for complete
        living.commit(b"of the lost row", b"p", 0)
    finally:
        broker.start()
    return found


def test_successor_aborts_what_a_lost_commit_has_left_open(shards: list[Shard]) -> None:
    """F05: no topic has the markers: the successor aborts the commit and writes it again."""
    shard = shards[0]
    config, successor = shard.writer.config, shard.successor
    opened = open_range(config, shard.topics.log, 0)

    progress, tail = shard.read_tail()

    assert opened == (3, 6)  # behind two rows and a marker
    assert open_range(config, shard.topics.copy, 0) is None
    assert not list(read_to_end(config, shard.topics.copy))
    assert progress is not None
    assert tail.last is not None
    assert (progress.last_seq, tail.last.seq) == (2, 2)
    store_row(successor, b"again")
    successor.commit(b"progress", b"p", 0)
    successor.close()
    wait_for(
        "the new commit can be read",
        lambda: [r.value for r in read_to_end(config, shard.topics.log)][2:] == [b"again"],
    )


def test_successor_keeps_off_a_commit_of_which_one_marker_was_written(shards: list[Shard]) -> None:
    """F05: progress is committed and its rows are not: that is said, and nothing is aborted."""
    shard = shards[1]

    with pytest.raises(Retry, match=r"committed in some of lostone\.-, .* open in the others"):
        shard.read_tail()

    assert open_range(shard.writer.config, shard.topics.log, 0) == (3, 6)
    shard.successor.close()


def test_successor_keeps_off_a_copy_that_is_ahead_of_its_rows(shards: list[Shard]) -> None:
    """F05: a copy has noted rows that are open in the log: without them it would leave them out."""
    shard = shards[2]

    with pytest.raises(Retry, match=r"committed in some of lostrows\.-, .* lostrows\.-\.copy, and"):
        shard.read_tail()

    assert open_range(shard.writer.config, shard.topics.log, 0) == (3, 6)
    shard.successor.close()


def test_producer_goes_on_behind_a_commit_without_its_marker(
    kafka3: KafkaCluster, shards: list[Shard], living: Publisher
) -> None:
    """F05: the next row lies where the marker should, and its commit ends both."""
    assert shards
    config = ClientConfig({"bootstrap.servers": kafka3.bootstrap_servers})
    opened = open_range(config, living.topics.log, 0)
    stored = store_row(living, b"next")
    living.commit(b"of the next row", b"p", 0)
    living.close()

    assert (opened, stored) == ((0, 1), 1)
    wait_for(
        "both rows can be read",
        lambda: [r.value for r in read_to_end(config, living.topics.log)] == [b"lost", b"next"],
    )
