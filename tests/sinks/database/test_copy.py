"""A PostgreSQL database that starts from copies of tables whose rows are older than the logs."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from producers.settings import CopySettings, ShardProducerSettings
from shardstream.commands.sinks.progress import CopyWatch
from shardstream.local.kafka_cluster import KafkaCluster
from sinks.database.options import DatabaseOptions
from spark_consumers.database import run_database
from spark_consumers.sink_query import SinkProgress
from tests.database_servers import DatabaseFixture
from tests.postgres_servers import PostgresFixture
from tests.producers.copy.copying import server_rows, start, wait_state
from tests.producers.copy.traffic import TABLES, Traffic
from tests.producers.session.producing import producing, read_log, settings_of, wait_caught_up
from tests.sinks.database.serving import create_databases, fill, serve
from tests.waiting import wait_for
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyState, read_copies
from topics.progress.record import GRID_US
from topics.records.vevent import Op

pytestmark = pytest.mark.full

KEYS = 300
PAUSE_S = 0.02  # Spark has to start and to read beside the writers
Rows = dict[tuple[Any, ...], Any]


def test_a_database_starts_from_copies_under_load(
    spark: SparkSession,
    mysql_a: DatabaseFixture,
    mysql_b: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    *,
    postgres: PostgresFixture,
    tmp_path: Path,
) -> None:
    """From copy: rows older than the logs arrive with later changes; the tables are complete."""
    shards = {"-80": mysql_a, "80-": mysql_b}
    target = postgres.new_database()
    url = postgres.url(target, *postgres.new_login(target))
    serve(kafka, keyspace, shards)
    create_databases(shards, keyspace)
    traffic = Traffic(mysql_a, keyspace, keys=KEYS, seed=5, pause_s=PAUSE_S)
    fill(mysql_b, keyspace)
    copy = CopySettings(chunk_rows_max=25, tables_at_once=5)
    settings = [
        settings_of(database, kafka, keyspace, shard=shard, copy=copy)
        for shard, database in shards.items()
    ]
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "start": "copy"}

    def follow() -> SinkProgress:
        return run_database(
            *(spark, keyspace, url, str(tmp_path / "checkpoint"), options),
            DatabaseOptions(tables=tuple(f"{keyspace}.{table}" for table in TABLES), partitions=2),
            trigger="availableNow",
        )

    with ExitStack() as running:
        for each in settings:
            running.enter_context(producing(each))
        with traffic:
            # The other shard's copies are requested by the query.
            start(settings[0], *(f"{keyspace}.{table}" for table in TABLES))
            follow()
            for each in settings:
                wait_state(each, CopyState.COMPLETED, *(f"{keyspace}.{t}" for t in TABLES))
        for each in settings:
            wait_caught_up(each)
        wait_for("the heads pass the last changes", lambda: are_released(settings))
    states = ask(postgres, target, sql.SQL("SELECT DISTINCT state FROM _shardstream.tables"))
    assert set(states) <= {("loading",), ("complete",)}
    check_progress(settings, follow().seqs)
    check_rows(shards, keyspace, postgres, target)
    check_complete(postgres, target)


def check_progress(settings: list[ShardProducerSettings], seqs: Mapping[str, int]) -> None:
    """All copied rows lie before the places read; before the copies' first rows, all are left."""
    keyspace = settings[0].keyspace
    tables = [f"{keyspace}.{table}" for table in sorted(TABLES)]
    copies = [
        copy
        for each in settings
        for copy in read_copies(each.kafka, ShardTopics(keyspace, each.shard)).values()
    ]
    with CopyWatch(settings[0].kafka, keyspace, tables) as watch:
        assert watch.look(seqs) == []
        left = watch.look(dict.fromkeys(seqs, 0))
    assert [(each.table, each.state, each.rows) for each in left] == [
        (table, "copied", 0) for table in tables
    ]
    assert sum(each.rows_total or 0 for each in left) == sum(copy.rows_read for copy in copies)
    for each in settings:
        reads = [e.seq for e in read_log(each).events if e.op is Op.READ]
        mine = read_copies(each.kafka, ShardTopics(keyspace, each.shard)).values()
        assert min(copy.begun_seq for copy in mine) <= min(reads)
        assert max(reads) < max(copy.seq for copy in mine) <= seqs[each.shard]


def check_complete(postgres: PostgresFixture, target: str) -> None:
    """All tables are complete, since a time that the target has reached."""
    states = ask(
        *(postgres, target),
        sql.SQL(
            "SELECT source_table, state, complete_at_us <= frontier_us FROM _shardstream.tables, "
            "_shardstream.position"
        ),
    )
    assert sorted(states) == [(table, "complete", True) for table in sorted(TABLES)]


def check_rows(
    shards: dict[str, DatabaseFixture], name: str, postgres: PostgresFixture, target: str
) -> None:
    """The target has the rows of all servers."""
    for table, (_, key) in TABLES.items():
        expected: Rows = {}
        for database in shards.values():
            expected |= server_rows(database, name, table, key)
        found = ask(
            *(postgres, target),
            sql.SQL("SELECT {}, v, pad FROM {}").format(
                sql.SQL(", ").join(map(sql.Identifier, key)), sql.Identifier(name, table)
            ),
        )
        columns = [*key, "v", "pad"]
        rows = {row[: len(key)]: dict(zip(columns, row, strict=True)) for row in found}
        assert len(found) == len(rows) > KEYS // 4
        assert rows == expected


def are_released(settings: list[ShardProducerSettings]) -> bool:
    """Whether readers may read all of the logs: a later cell of the grid is promised by all."""
    logs = [read_log(each) for each in settings]
    last_us = max(log.events[-1].timestamp_us for log in logs)
    return min(log.progress[-1].head_us for log in logs) >= last_us + GRID_US


def ask(postgres: PostgresFixture, target: str, query: sql.SQL | sql.Composed) -> list[Any]:
    """Ask as superuser."""
    with postgres.connect(target) as connection:
        return connection.execute(query).fetchall()
