"""A cluster of three brokers continues without one of them."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from shardstream.local.kafka_cluster import KafkaCluster
from tests.waiting import COSTLY_POLL_S, wait_for

pytestmark = pytest.mark.full

# Longer than the failure detection of a broker (9 s) and the election after it, on a busy machine.
DELIVERY_S_MAX = 300


def _commit(producer: Producer, topic: str, value: bytes) -> None:
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.commit_transaction(DELIVERY_S_MAX)


def _metadata(admin: AdminClient, topic: str, wanted: Callable[[Any], bool]) -> Any:
    """The metadata, once they hold what is wanted: they travel after the fact."""
    found: list[Any] = []

    def are_wanted() -> bool:
        found.append(admin.list_topics(topic, timeout=30))
        return wanted(found[-1])

    wait_for("the metadata", are_wanted, said=lambda: found[-1], poll_s=COSTLY_POLL_S)
    return found[-1]


def test_transactions_go_on_without_a_killed_broker(kafka3: KafkaCluster, keyspace: str) -> None:
    """With one broker killed transactions still commit; the broker comes back on its old port."""
    admin = AdminClient({"bootstrap.servers": kafka3.bootstrap_servers})
    admin.create_topics([NewTopic(keyspace, 1)])[keyspace].result(DELIVERY_S_MAX)
    created = _metadata(
        admin, keyspace, lambda m: any(p.leader > 0 for p in m.topics[keyspace].partitions.values())
    )
    partition = created.topics[keyspace].partitions[0]
    assert sorted(partition.replicas) == [1, 2, 3]
    producer = Producer(
        {
            "bootstrap.servers": kafka3.bootstrap_servers,
            "transactional.id": keyspace,
            "transaction.timeout.ms": 2 * DELIVERY_S_MAX * 1_000,
        }
    )
    producer.init_transactions(DELIVERY_S_MAX)
    _commit(producer, keyspace, b"before")
    victim = kafka3.brokers[partition.leader - 1]
    address = victim.address

    victim.kill()
    try:
        assert victim.pid is None
        _commit(producer, keyspace, b"without the leader")
    finally:
        victim.start()

    assert victim.address == address
    _metadata(admin, keyspace, lambda m: sorted(m.brokers) == [1, 2, 3])
    _commit(producer, keyspace, b"after")
