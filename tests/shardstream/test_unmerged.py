"""Reading shard logs unmerged while a producer is dead, on real servers."""

from pathlib import Path

import pytest

from shardstream import ClientConfig, EventType, Subscriber, Unmerged, VEvent
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.shardstream.command_line import background, streaming, write_settings
from tests.topics.subscribing import taken

pytestmark = pytest.mark.full


def test_a_killed_producer_delays_no_other_shard(
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
    mysql_b: DatabaseFixture,
) -> None:
    """With one producer killed, the other shard's changes come, and later those of the first."""
    shards = {"-80": mysql_a, "80-": mysql_b}
    path = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, shards)
    names = {shard: database.new_database() for shard, database in shards.items()}
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})

    def write(shard: str, number: int) -> None:
        with shards[shard].connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {names[shard]}.t (id INT PRIMARY KEY)")
            cursor.execute(f"INSERT INTO {names[shard]}.t VALUES ({number})")

    def ids(events: Subscriber, count: int) -> list[tuple[str, object]]:
        found: list[VEvent] = []
        while len(found) < count:
            found += [e for e in taken(events, 1) if e.type is EventType.ROW]
        return [(e.shard, (e.after or {})["id"]) for e in found]

    produce = ["--json", "--config", str(path)]
    with (
        background(tmp_path, "low", "produce", keyspace, "-80", *produce) as low,
        background(tmp_path, "high", "produce", keyspace, "80-", *produce) as high,
    ):
        low.wait_for("streaming", streaming)
        high.wait_for("streaming", streaming)
        with Subscriber(
            keyspace,
            config=config,
            mode=Unmerged(),
            idle_timeout_s=1,
            tables=[f"{name}.t" for name in names.values()],
        ) as events:
            assert list(events) == []
            write("-80", 1)
            assert ids(events, 1) == [("-80", 1)]
            low.process.kill()
            low.process.wait()
            write("-80", 2)
            write("80-", 3)
            write("80-", 4)
            assert ids(events, 2) == [("80-", 3), ("80-", 4)]
            with background(tmp_path, "again", "produce", keyspace, "-80", *produce):
                assert ids(events, 1) == [("-80", 2)]
