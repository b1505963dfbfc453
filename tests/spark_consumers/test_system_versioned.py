"""System-versioned tables of MariaDB: every sink shows the rows that a SELECT shows."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from shardstream.local.kafka_cluster import KafkaCluster
from sinks.lake.change_log.reading import replay_changelog
from sinks.lake.state.options import StateOptions
from spark_consumers.change_log import run_changelog
from spark_consumers.state import run_state
from spark_consumers.table_topics import run_table_topics
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import producing, read_log, settings_of, wait_caught_up
from tests.sinks.database.serving import create_databases, serve
from tests.sinks.table_topics.topic_queries import last_rows, read_topic, topic_options
from tests.spark_consumers.versioned_tables import change_tables, present_rows, tables_for
from tests.waiting import wait_for
from topics.progress.record import GRID_US

pytestmark = pytest.mark.full

KEYLESS = (
    "CREATE TABLE keyless (id INT, v INT) WITH SYSTEM VERSIONING",
    "INSERT INTO keyless VALUES (1, 1), (1, 1), (2, 2)",
    "UPDATE keyless SET v = 3 WHERE id = 2",
    "DELETE FROM keyless WHERE id = 1 LIMIT 1",
)


def test_lakes_and_topics_have_the_present_rows(
    spark: SparkSession,
    mariadb_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    tmp_path: Path,
) -> None:
    """State, its history, table topics and both replays of the change log, after every change."""
    shards = {"-": mariadb_a}
    serve(kafka, keyspace, shards)
    create_databases(shards, keyspace)
    settings = settings_of(mariadb_a, kafka, keyspace)
    with producing(settings):
        change_tables(mariadb_a, keyspace)
        with mariadb_a.connect(database=keyspace) as connection, connection.cursor() as cursor:
            for statement in KEYLESS:
                cursor.execute(statement)
        wait_caught_up(settings)
        events = read_log(settings).events
        last_us = max(event.timestamp_us for event in events)
        wait_for(
            "the head passes the last change",
            lambda: read_log(settings).progress[-1].head_us >= last_us + GRID_US,
        )
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    tables = tables_for(mariadb_a)
    names = tuple(f"{keyspace}.{name}" for name in tables)
    # No producer is left that would copy the table again.
    accepted = tuple(e.gtid for e in events if "ADD SYSTEM VERSIONING" in (e.statement or ""))
    state, log = str(tmp_path / "state"), str(tmp_path / "log")

    run_changelog(spark, keyspace, log, f"{log} checkpoint", options, trigger="availableNow")
    run_state(
        *(spark, keyspace, state, f"{state} checkpoint", options),
        StateOptions(tables=names, history={f"{keyspace}.implicit": ()}, accept_skip=accepted),
        trigger="availableNow",
    )
    run_table_topics(
        *(spark, str(tmp_path / "topics"), options),
        topic_options(keyspace, tables=names, accept_skip=accepted),
        trigger="availableNow",
    )

    replayed = replay_changelog(log)
    for name in tables:
        expected = present_rows(mariadb_a, keyspace, name)
        stored = pa.table(DeltaTable(f"{state}/{keyspace}/{name}").scan()).to_pylist()
        records = read_topic(settings.kafka, f"{keyspace}.{keyspace}.{name}")
        assert sorted((row["id"], row["v"]) for row in stored) == expected, name
        assert sorted((r["id"], r["v"]) for r in replayed[keyspace, name].rows()) == expected, name
        assert sorted((r["id"], r["v"]) for r in last_rows(records).values()) == expected, name
    keyless = replayed[keyspace, "keyless"].rows()
    assert sorted((row["id"], row["v"]) for row in keyless) == [(1, 1), (2, 3)]
    place = f"{state}/_shardstream_history/{keyspace}/implicit"
    history = pa.table(DeltaTable(place).scan()).to_pylist()
    open_rows = sorted((row["id"], row["v"]) for row in history if row["_to_us"] is None)
    assert open_rows == present_rows(mariadb_a, keyspace, "implicit")
    assert {row["v"] for row in history if row["id"] == 1} <= {1, 11, 20, 21}
