"""Key ranges that are part of a shard, from a real server to subscribers and Spark."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from event_token import KeyRange
from shardstream.local.kafka_cluster import KafkaCluster
from sinks.lake.change_log.reading import check_changelog
from spark_consumers.change_log import run_changelog
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import producing, settings_of, wait_caught_up
from tests.spark_consumers.patience import patiently
from topics.errors import RowImageMissing
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_keyspace, provision_schemas_topic, provision_shard
from topics.keyspace.topology import ShardEntry, TableVindex, Topology, update_topology
from topics.keyspace.vindexes import vindex_named
from topics.names import ShardTopics
from topics.records.event_json import event_to_json_dict
from topics.records.vevent import EventType, VEvent
from topics.stream.subscriber import StreamSubscriber

pytestmark = pytest.mark.full

PARTS = ("-40", "40-c0", "c0-")
IDLE_S = 60.0
# CREATE and ALTER, which all parts get; nothing comes behind the ALTER.
STATEMENTS = 2


def change_rows(database: DatabaseFixture, name: str, seed: int) -> list[tuple[int, int, int]]:
    """Change a table sharded by `customer` at random; return its final rows."""
    chance = random.Random(seed)
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {name}.orders(id INT PRIMARY KEY, customer INT, n INT)")
        for i in range(120):
            cursor.execute("BEGIN")
            for _ in range(chance.randint(1, 3)):
                order, customer = chance.randint(1, 40), chance.randint(1, 99)
                cursor.execute(
                    chance.choice(
                        (
                            f"REPLACE INTO {name}.orders VALUES ({order}, {customer}, {i})",
                            f"UPDATE {name}.orders SET customer = {customer} WHERE id = {order}",
                            f"DELETE FROM {name}.orders WHERE id = {order}",
                        )
                    )
                )
            cursor.execute("COMMIT")
        cursor.execute(f"ALTER TABLE {name}.orders ADD COLUMN extra INT")
        cursor.execute(f"SELECT id, customer, n FROM {name}.orders ORDER BY id")
        return list(cursor.fetchall())


def events_of(
    config: ClientConfig, keyspace: str, key_range: str, statements: int = STATEMENTS
) -> list[VEvent]:
    """The events up to the last one of a number of statements."""
    found: list[VEvent] = []
    with StreamSubscriber(
        keyspace, key_range, start="earliest", config=config, idle_timeout_s=IDLE_S
    ) as stream:
        for event in stream:
            found.append(event)
            statements -= event.type is EventType.DDL
            if not statements:
                break
    return found


def replayed(events: list[VEvent]) -> list[tuple[Any, ...]]:
    """Replay events; inserting a row that exists fails."""
    rows: dict[Any, tuple[Any, ...]] = {}
    for event in events:
        if event.before is not None:
            assert rows.pop(event.before["id"]) == tuple(event.before.values())
        if event.after is not None:
            assert event.after["id"] not in rows
            rows[event.after["id"]] = tuple(event.after.values())
    return sorted(rows.values())


def spark_rows(spark: SparkSession, kafka: KafkaCluster, keyspace: str, key_range: str) -> Any:
    reader = (
        spark.read.format("shardstream")
        .options(keyspace=keyspace, keyRange=key_range)
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    )
    return patiently(lambda: reader.load().orderBy("timestamp_us", "shard", "offset").collect())


def check_change_log(
    spark: SparkSession, kafka: KafkaCluster, keyspace: str, folder: Path, rows: int
) -> None:
    """The change log of part of a shard takes its rows in several batches, and none is a loss."""
    log, checkpoint = str(folder / "log"), folder / "checkpoint"
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "keyRange": PARTS[0],
        "maxRowsPerBatch": "20",
    }
    places = (keyspace, log, str(checkpoint))
    end = run_changelog(spark, *places, options, trigger="availableNow")

    report = check_changelog(log)
    assert len(list((checkpoint / "offsets").glob("[0-9]*"))) > 1
    assert (end.rows, report.changes, report.lost, report.repeated) == (rows, rows, 0, 0)


def test_parts_of_a_shard_are_read_by_keyspace_id(
    spark: SparkSession,
    mysql_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    tmp_path: Path,
) -> None:
    """B12: each part has exactly its rows, in Spark, its change log and `Subscriber`."""
    name = mysql_a.new_database()
    vindexes = (TableVindex(name, "orders", ("customer",), "hash"),)
    settings = settings_of(mysql_a, kafka, keyspace, vindexes=vindexes)
    config = settings.kafka
    provision_schemas_topic(config)
    provision_keyspace(config, keyspace)
    provision_shard(config, ShardTopics(keyspace, "-"))
    update_topology(config, keyspace, lambda _: Topology(keyspace, 0, (ShardEntry("-"),), vindexes))
    keyspace_id = vindex_named("hash").keyspace_id
    with producing(settings):  # until the end: heads move, so nothing written is ahead of them
        left = change_rows(mysql_a, name, seed=5)
        wait_caught_up(settings)
        for part in PARTS:
            key_range = KeyRange.parse(part)
            events = events_of(config, keyspace, part)
            own = [row for row in left if key_range.contains(keyspace_id(row[1]))]
            assert replayed([e for e in events if e.type is EventType.ROW]) == own
            assert [e.type for e in events].count(EventType.DDL) == STATEMENTS
            if part != PARTS[1]:  # between two others
                continue
            found = [
                (r.seq, r.op, r.before and json.loads(r.before), r.after and json.loads(r.after))
                for r in spark_rows(spark, kafka, keyspace, part)
            ]
            shown = [(e.seq, event_to_json_dict(e)) for e in events]
            assert found == [(seq, e["op"], e["before"], e["after"]) for seq, e in shown]
        check_change_log(
            spark, kafka, keyspace, tmp_path, len(events_of(config, keyspace, PARTS[0]))
        )

        with mysql_a.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {name}.plain(id INT PRIMARY KEY)")
            cursor.execute(f"INSERT INTO {name}.plain VALUES (1)")
        wait_caught_up(settings)
        with pytest.raises(RowImageMissing, match=rf"{name}\.plain has no keyspace id"):
            events_of(config, keyspace, "-40", STATEMENTS + 2)
