"""Who gives way to whom, by claims and commits on a real broker."""

from threading import Event

import pytest

from producers.session.ownership import Ownership
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.shard_removal import Reset, run_reset
from tests.topics.shard_writer import ShardWriter, provision
from topics.kafka.client import ClientConfig, open_producer
from topics.kafka.errors import Fenced
from topics.names import ShardTopics
from topics.progress.record import Mark, MarkKind
from topics.schemas import TopicSchemaIds
from topics.stream.target_marks import TargetMarks

FLAVOR = "mysql"


class Shard:
    """A shard on a broker, and what a process knows of its right to it."""

    def __init__(self, kafka: KafkaCluster, keyspace: str) -> None:
        self.config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
        self.topics = ShardTopics(keyspace, "-")
        provision(self.config, keyspace, ["-"])
        self.schema_ids = TopicSchemaIds(self.config)
        self.ownership = self.process()
        self.notes: list[str] = []

    def process(self, transaction_timeout_ms: int = 60_000) -> Ownership:
        """A process that has claimed the shard."""
        made = Ownership(self.config, self.topics, self.schema_ids, transaction_timeout_ms)
        made.claim()
        return made

    def settle(self, process: Ownership) -> None:
        """Let a process that was fenced find out whether the shard is still its own."""
        process.is_doubted = True
        process.settle(Event(), self.notes.append)


@pytest.fixture
def shard(kafka: KafkaCluster, keyspace: str) -> Shard:
    """A shard that one process has claimed."""
    return Shard(kafka, keyspace)


def test_the_process_that_claimed_last_keeps_the_shard(shard: Shard) -> None:
    """It is told nothing else after it was fenced, and the older one is refused."""
    newer = shard.process()

    shard.settle(newer)

    newer.check()
    assert shard.notes == []
    with pytest.raises(Fenced, match="claimed this shard"):
        shard.ownership.check()


def test_an_older_process_ends_once_another_has_committed(shard: Shard) -> None:
    """What it knew of the log is not the end any more."""
    shard.ownership.know(None)
    shard.process()
    writer = ShardWriter(shard.config, shard.topics.keyspace, "-")
    writer.commit((0, 1))
    writer.close()

    with pytest.raises(Fenced, match="claimed this shard"):
        shard.settle(shard.ownership)


def test_an_older_process_claims_the_shard_of_one_that_never_commits(shard: Shard) -> None:
    """It says that it waits, and for how long; then the other one is the older."""
    older = shard.process(transaction_timeout_ms=100)
    newer = shard.process()

    shard.settle(older)

    assert "goes on if it does not within 0.1 s" in shard.notes[0]
    older.check()
    with pytest.raises(Fenced):
        newer.check()


def test_a_claim_behind_an_open_transaction_is_seen(shard: Shard) -> None:
    """A producer that died in the middle of a copy hides nothing."""
    dead = open_producer(shard.config, transactional_id=shard.topics.transactional_id)
    dead.init_transactions(60)
    dead.begin_transaction()
    dead.produce(shard.topics.copy, b"half", b"a table", partition=0)
    dead.flush(60)
    shard.process()

    with pytest.raises(Fenced):
        shard.ownership.check()

    dead.abort_transaction(60)


def test_a_producer_of_a_log_that_was_started_over_ends(shard: Shard) -> None:
    """Between two sessions it has not been fenced, and must not write to the new log."""
    run_reset(Reset(shard.config, shard.topics, ""), "a test")
    provision(shard.config, shard.topics.keyspace, ["-"])

    with pytest.raises(Fenced, match="started over"):
        shard.settle(shard.ownership)


def test_cancel_of_a_reshard_claims_a_target(shard: Shard) -> None:
    """The target's producer ends, as after any takeover, and does not take the log back."""
    marks = TargetMarks(shard.config, shard.topics.keyspace, "r1", shard.schema_ids)
    cancel = Mark(MarkKind.CANCEL, -1, "r1", ("x",), ("-",), None)
    shard.ownership.know(None)

    marks.append_cancel("-", cancel, FLAVOR, 0)

    with pytest.raises(Fenced, match="claimed this shard"):
        shard.settle(shard.ownership)
