"""A successor that commits while the producer before it still looks where the log ends."""

import pytest

from producers.publisher import Publisher
from shardstream.local.kafka_cluster import KafkaCluster
from tests.topics.shard_writer import ShardWriter, provision
from topics.kafka.client import ClientConfig
from topics.kafka.errors import Fenced
from topics.kafka.provisioning import broker_transaction_timeout_ms
from topics.progress import committed_tail
from topics.progress.committed_tail import read_committed_tail
from topics.progress.record import Progress


def test_fenced_between_the_two_looks_is_no_contradiction(
    kafka: KafkaCluster, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log and progress are of two moments then: it ends as fenced, not as if rows were lost."""
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    provision(config, keyspace, ["-"])
    writer = ShardWriter(config, keyspace, "-")
    writer.commit((0, 2))
    writer.close()
    publisher = Publisher(
        config, writer.topics, broker_transaction_timeout_ms(config), lambda: False
    )
    publisher.fence()
    look = committed_tail.last_progress
    successors: list[ShardWriter] = []

    def look_after_commit(*where: object) -> Progress | None:
        successors.append(ShardWriter(config, keyspace, "-"))
        successors[-1].commit((10, 1))
        successors[-1].wait_committed()
        return look(*where)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(committed_tail, "last_progress", look_after_commit)

    with pytest.raises(Fenced):
        read_committed_tail(config, writer.topics, writer.schema_ids, publisher.abort_open)

    publisher.close()
    [successor] = successors
    successor.close()
