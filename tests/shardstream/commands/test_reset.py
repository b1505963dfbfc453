"""`shardstream topics reset`: a log that is started over, and the readers of the old one."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from event_token import ShardPosition, StreamPosition
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import statements
from tests.shardstream.command_line import Background, background, run, streaming, write_settings
from topics.errors import LogShrank
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import delete_topics
from topics.names import ShardTopics
from topics.stream.subscriber import StreamSubscriber

pytestmark = pytest.mark.full

SHARD = "-"


def refused_while_alive(reset: Sequence[str]) -> None:
    """The command is refused, and names what to do."""
    refused = run(*reset, "--yes")
    assert refused.returncode == 2
    assert "its producer still runs" in refused.stderr


def until_silent(reset: Sequence[str], producer: Background) -> str:
    """Reset once the producer, which has ended, counts as silent; return what is printed."""
    producer.wait_end()
    while (done := run(*reset, "--yes")).returncode == 2:
        assert "its producer still runs" in done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_log_is_started_over(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, mysql_a: DatabaseFixture
) -> None:
    """Refused while the producer runs and without an answer; then old positions are refused.

    The new log has its own rows alone, also after a reset that was interrupted.
    """
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {SHARD: mysql_a})
    settings = ["--config", str(config)]
    client = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    topics = ShardTopics(keyspace, SHARD)
    produce = ["produce", keyspace, SHARD, "--json", *settings]
    reset = ["topics", "reset", keyspace, SHARD, "--reason", "ticket 18", *settings]
    name = mysql_a.new_database()
    create = f"CREATE TABLE {name}.t (id INT PRIMARY KEY)"
    with background(tmp_path, "a", *produce) as producer:
        producer.wait_for("streaming", streaming)
        statements(mysql_a, create, *(f"INSERT INTO {name}.t VALUES ({i})" for i in range(3)))
        producer.wait_for("3 rows", lambda p: p.lines[-1]["rows_total"] >= 4)
        refused_while_alive(reset)
        with StreamSubscriber(keyspace, start="earliest", config=client) as stream:
            positions = [next(stream).position for _ in range(4)]
    unanswered = run(*reset)
    printed = until_silent(reset, producer)
    with background(tmp_path, "b", *produce) as producer:
        producer.wait_for("streaming", streaming)
        # As many as before, so that their seqs are the same.
        statements(mysql_a, *(f"INSERT INTO {name}.t VALUES ({i})" for i in range(10, 15)))
        producer.wait_for("5 rows", lambda p: p.lines[-1]["rows_total"] >= 5)

    assert unanswered.returncode != 0
    assert "no named reader" in printed
    assert "ticket 18" in printed
    for position in positions:
        assert position is not None
        bare = {s: ShardPosition(at.offset, at.seq, None) for s, at in position.shards.items()}
        unread = dict.fromkeys(position.shards, ShardPosition(0, 0, None))
        others = [StreamPosition(position.epoch, position.frontier_us, s) for s in (bare, unread)]
        for start in (position, *others):
            with (
                StreamSubscriber(keyspace, start=start, config=client) as stream,
                pytest.raises(LogShrank),
            ):
                next(stream)
    delete_topics(client, (topics.copy, topics.progress))
    stopped = run("produce", keyspace, SHARD, "--json", *settings)
    again = run(*reset, "--yes")

    assert stopped.returncode == 1
    assert "topics reset" in stopped.stderr
    assert again.returncode == 0, again.stderr
