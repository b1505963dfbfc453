"""How many Kafka clients the start of a producer opens: with tokens, each one costs a second."""

from collections import Counter
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from producers.session.supervisor import run_shard
from producers.settings import ProducerState, ProducerStatus
from shardstream.commands.produce import ready_settings
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.settings.model import load_settings
from shardstream.settings.producer_settings import shard_producer_settings
from tests.database_servers import DatabaseFixture
from tests.shardstream.command_line import write_settings
from topics.kafka import client


def test_a_start_shares_its_clients(
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One for each part that asks, the claim and what reads what is committed; those that stay."""
    opened: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        made = getattr(module, name)

        def make(*arguments: Any, **options: Any) -> Any:
            opened[name] += 1
            return made(*arguments, **options)

        monkeypatch.setattr(module, name, make)

    for name in ("_OwnAdmin", "_OwnConsumer", "_OwnProducer"):
        count(client, name)
    settings = load_settings(
        write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})
    )
    for _ in range(2):  # the first one makes the topics
        opened.clear()
        stop = Event()

        def note(status: ProducerStatus, stop: Event = stop) -> None:
            if status.state is ProducerState.STREAMING:
                stop.set()

        producer = shard_producer_settings(settings, keyspace, "-", "latest")
        ready = ready_settings(settings, producer, stop, note, as_json=True)
        assert ready is not None
        run_shard(ready, stop, note)

    assert opened == {"_OwnAdmin": 2, "_OwnConsumer": 7, "_OwnProducer": 2}
