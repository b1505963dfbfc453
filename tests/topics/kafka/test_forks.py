"""Kafka clients that were opened before their process forked."""

import os
import subprocess
import sys

import pytest

from event_token.errors import UsageError
from shardstream.local.kafka_cluster import KafkaCluster
from tests.forks import in_children
from topics.kafka.client import ClientConfig, open_admin, open_consumer, open_producer
from topics.kafka.consumer import StreamConsumer
from topics.kafka.partition_reader import read_tail

# Its process ends as usual: clients are collected then.
FORKING = """
import os, sys
from topics.kafka.client import ClientConfig, open_admin, open_consumer, open_producer

config = ClientConfig({"bootstrap.servers": "127.0.0.1:1"})
clients = [open_consumer(config), open_producer(config), open_admin(config)]
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
del clients
"""


def test_a_client_of_the_parent_says_so() -> None:
    """It would return nothing for ever, and a reader would stand still without a word."""
    config = ClientConfig({"bootstrap.servers": "127.0.0.1:1"})
    consumer, producer, admin = open_consumer(config), open_producer(config), open_admin(config)
    stream = StreamConsumer(config, "a log")

    def use_all() -> None:
        for use in (
            lambda: consumer.poll(0),
            lambda: producer.produce("topic", b"value"),
            lambda: producer.flush(0),
            lambda: len(producer),
            lambda: admin.list_topics(timeout=1),
            lambda: stream.take(0, 1),
            lambda: stream.assign({"topic": 0}),
        ):
            with pytest.raises(UsageError, match="forked"):
                use()
        consumer.close()
        stream.close()

    in_children(use_all)()
    assert consumer.poll(0) is None
    assert producer.flush(0) == 0
    consumer.close()
    stream.close()


def test_a_forked_process_ends_as_others_do() -> None:
    """Clients of its parent are not collected, which would end it by a signal, or never."""
    ended = subprocess.run(
        [sys.executable, "-c", FORKING],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=120,
    )

    assert ended.returncode == 0


def test_a_forked_process_opens_clients_of_its_own(kafka: KafkaCluster, keyspace: str) -> None:
    """What is created after the fork reads; what was created before it, and read, does not."""
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    before = open_admin(config)
    [broker] = before.list_topics(timeout=60).brokers

    def look() -> None:
        assert list(open_admin(config).list_topics(timeout=60).brokers) == [broker]
        with pytest.raises(UsageError, match=f"{keyspace}.* does not exist"):
            read_tail(config, keyspace)
        with pytest.raises(UsageError, match="forked"):
            before.list_topics(timeout=1)

    in_children(look)()
    assert before.list_topics(timeout=60).brokers
