"""Copied rows in the change log: together with the changes they give the table."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from producers.settings import CopySettings, ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from sinks.lake.change_log.reading import check_changelog, replay_changelog
from sinks.lake.state.frontiers import table_as_of
from spark_consumers.change_log import run_changelog
from spark_consumers.state import run_state
from tests.database_servers import DatabaseFixture
from tests.producers.copy.copying import server_rows, start, wait_state
from tests.producers.copy.traffic import TABLES, Traffic
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    WrittenLog,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.spark_consumers.queries import run_now
from tests.spark_consumers.shop import SHARDS, T0_US, Change, Shop
from tests.topics.shard_writer import limit_messages
from tests.waiting import wait_for
from topics.kafka.provisioning import provision_keyspace, provision_shard
from topics.kafka.topic_settings import RECORD_BYTES_MIN
from topics.keyspace.topology import ShardEntry, ShardState, Topology, update_topology
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyState
from topics.progress.record import GRID_US
from topics.records.vevent import EventType, Row

# By table: its key. The rows of `large` do not fit its topic, so they go in parts.
KEYS = {table: key for table, (_, key) in TABLES.items()} | {"large": ["id"]}
# Those whose values are the same in JSON.
PLAIN = ("ints", "words", "large")
LARGE_BYTES = 2 * RECORD_BYTES_MIN
FAR_US = 1 << 62
PAUSE_S = 0.02  # Spark has to start and to read beside the writers


def order(number: int, note: str) -> Row:
    """A row."""
    return {"id": number, "note": note, "price": None}


def change(before: Row | None, after: Row | None) -> Change:
    """A change of the stream."""
    return Change(T0_US, before, after)


def chunk(*rows: Row, end: EventType = EventType.LAST_PK) -> list[Change]:
    """A chunk of copied rows as producers write it: one transaction that ends with `end`."""
    copied = [Change(T0_US, after=row, last=False, copied=True) for row in rows]
    return [*copied, Change(T0_US, statement="{}", statement_type=end)]


def is_released(log: WrittenLog) -> bool:
    """Whether readers may read all of the log: a later cell of the grid is promised."""
    return log.progress[-1].head_us >= log.events[-1].timestamp_us + GRID_US


def serve_alone(settings: ShardProducerSettings) -> None:
    """A topology of the one shard."""
    provision_keyspace(settings.kafka, settings.keyspace)
    entry = ShardEntry(settings.shard, ShardState.SERVING)
    topology = Topology(settings.keyspace, 1, (entry,))
    update_topology(settings.kafka, settings.keyspace, lambda _: topology)


def test_copied_rows_and_changes_make_the_table(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """READs before and after changes of their row, and from two copies, give the table."""
    shop.writers[SHARDS[0]].write(
        [
            change(order(1, "was there"), order(1, "changed")),
            # 3 and 6 are seen before their changes stand in the log.
            *chunk(order(1, "changed"), order(2, "was there"), order(3, "new"), order(6, "moved")),
            change(None, order(3, "new")),
            change(order(4, "was there"), order(6, "moved")),
            change(order(2, "was there"), order(5, "moved")),
            change(order(1, "changed"), None),
            *chunk(order(8, "was there"), end=EventType.COPY_COMPLETED),
            change(None, order(1, "again")),
            change(order(8, "was there"), None),
            *chunk(order(1, "again"), order(3, "new"), end=EventType.COPY_COMPLETED),
        ]
    )
    # The same key elsewhere is another row.
    shop.writers[SHARDS[1]].write(chunk(order(1, "there"), end=EventType.COPY_COMPLETED))
    for writer in shop.writers.values():
        writer.promise(T0_US + 20_000)
    run_now(spark, shop, tmp_path)

    log = str(tmp_path / "log")
    report = check_changelog(log)
    assert (report.lost, report.repeated, report.out_of_order) == (0, 0, 0)
    [(name, orders)] = replay_changelog(log).items()
    assert name == ("shop", "orders")
    found: dict[str, list[tuple[int, str]]] = {}
    for version in orders.live():
        row = json.loads(str(version.row))
        found.setdefault(version.shard, []).append((row["id"], row["note"]))
    assert {shard: sorted(rows) for shard, rows in found.items()} == {
        SHARDS[0]: [(1, "again"), (3, "new"), (5, "moved"), (6, "moved")],
        SHARDS[1]: [(1, "there")],
    }
    ops = Counter(DeltaTable(log).to_pyarrow_table(columns=["op"])["op"].to_pylist())
    assert ops == {"READ": 8, "INSERT": 2, "UPDATE": 3, "DELETE": 2, "NONE": 4}


def large_row(number: int) -> str:
    """A statement that writes a row beyond the topic's limit; zstd leaves half of it."""
    text = random.Random(number).randbytes(LARGE_BYTES // 2).hex()
    return f"REPLACE INTO large VALUES ({number % 2}, '{text}')"


@pytest.mark.full
def test_tables_that_were_copied_under_load(
    spark: SparkSession,
    mysql_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    tmp_path: Path,
) -> None:
    """Of tables copied under four writers, replay and current state give its rows, large or not."""
    name = mysql_a.new_database()
    statements(
        mysql_a,
        f"USE {name}",
        "CREATE TABLE large (id INT PRIMARY KEY, v LONGTEXT)",
        *map(large_row, range(2)),
    )
    settings = settings_of(
        mysql_a, kafka, keyspace, copy=CopySettings(chunk_rows_max=25, tables_at_once=5)
    )
    serve_alone(settings)
    topics = ShardTopics(keyspace, settings.shard)
    provision_shard(settings.kafka, topics)
    limit_messages(settings.kafka, topics.log, RECORD_BYTES_MIN)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "start": "earliest"}
    log, checkpoint, target = (str(tmp_path / each) for each in ("log", "checkpoint", "state"))

    def take() -> None:
        run_changelog(spark, keyspace, log, checkpoint, options, trigger="availableNow")

    with producing(settings):
        with Traffic(mysql_a, name, keys=300, seed=7, pause_s=PAUSE_S):
            start(settings, *(f"{name}.{table}" for table in KEYS))
            take()
            statements(mysql_a, f"USE {name}", large_row(2))
            wait_state(settings, CopyState.COMPLETED)
        wait_caught_up(settings)
        wait_for("the head passes the last change", lambda: is_released(read_log(settings)))
    take()
    run_state(spark, keyspace, target, f"{checkpoint}.state", options, trigger="availableNow")

    report = check_changelog(log)
    assert (report.lost, report.repeated, report.out_of_order) == (0, 0, 0)
    written = read_log(settings)
    assert report.changes == len(written.events)
    assert len([each for progress in written.progress for each in progress.in_parts]) == 3
    files = DeltaTable(log).file_uris()
    assert len(files) > 1
    ops = {row.op for row in spark.read.parquet(*files).select("op").distinct().collect()}
    assert ops >= {"READ", "INSERT", "UPDATE", "DELETE"}
    replayed = replay_changelog(log)
    for table in PLAIN:
        [key] = KEYS[table]
        rows = {k: row for (k,), row in server_rows(mysql_a, name, table, [key]).items()}
        found = replayed[name, table].rows()
        assert len(found) == len(rows) > 0
        is_same = {row[key]: row for row in found} == rows
        assert is_same, table  # to print how large rows differ takes minutes
    for table, key_names in KEYS.items():
        expected = len(server_rows(mysql_a, name, table, key_names))
        assert len(replayed[name, table].rows()) == expected
    check_current_state(mysql_a, name, target)


def check_current_state(database: DatabaseFixture, name: str, target: str) -> None:
    """The current state of the tables has the server's rows."""
    for table, key_names in KEYS.items():
        rows = server_rows(database, name, table, key_names)
        found = table_as_of(target, f"{name}.{table}", FAR_US).rows.to_pylist()
        assert len(found) == len(rows) > 0
        if table in PLAIN:
            is_same = {tuple(row[key] for key in key_names): row for row in found} == rows
            assert is_same, table
