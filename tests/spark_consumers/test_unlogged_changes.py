"""ALTERs and online schema changes that change values of rows: each sink has what SELECT says."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from psycopg import sql
from pyspark.sql import SparkSession

from event_token import Flavor
from producers.settings import ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from spark_consumers.current_state.query.run import run_state
from spark_consumers.second_database.run import run_database
from spark_consumers.table_topics.run import run_table_topics
from tests.database_servers import DatabaseFixture
from tests.postgres_servers import PostgresFixture
from tests.producers.copy.copying import topics_of, wait_state
from tests.producers.session.producing import (
    producing,
    read_log,
    settings_of,
    wait_caught_up,
    wait_for,
)
from tests.spark_consumers.second_database.serving import serve
from tests.spark_consumers.table_topics.topic_queries import last_rows, read_topic, topic_options
from tests.spark_consumers.unlogged_changes import (
    COLUMNS,
    FILL,
    KEPT,
    LATER,
    TABLES,
    changes_of,
)
from topics.progress.copy_topic import CopyState, read_copies
from topics.progress.record import GRID_US

Rows = dict[int, dict[str, Any]]
Runs = tuple[Callable[[], object], ...]


def test_every_sink_has_the_rows_of_the_server(
    spark: SparkSession,
    database: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    *,
    postgres: PostgresFixture,
    tmp_path: Path,
) -> None:
    """State, history, database and topics: values that no event has come by copies of the tables.

    The sinks have the rows from before; they request the copies, of these tables alone.
    """
    target = postgres.new_database()
    serve(kafka, keyspace, {"-": database})
    settings = settings_of(database, kafka, keyspace)
    sinks = sinks_of(spark, kafka, keyspace, tmp_path, postgres, target)

    with producing(settings) as producer:
        producer.wait_streaming()
        execute(database, "", f"CREATE DATABASE {keyspace}")
        for table in TABLES:
            execute(database, keyspace, f"CREATE TABLE `{table}` ({COLUMNS})")
            execute(database, keyspace, FILL.format(t=f"`{table}`"))
        follow(settings, sinks)
        for table in TABLES:
            execute(database, keyspace, *changes_of(keyspace, table))
            execute(database, keyspace, *(each.format(t=f"`{table}`") for each in LATER))
        follow(settings, sinks)
        copied = wait_state(settings, CopyState.COMPLETED)
        follow(settings, sinks)

    assert set(copied) == {f"{keyspace}.{table}" for table in {*TABLES} - KEPT}
    topics = topics_of(settings)
    assert {copy.rows for copy in read_copies(settings.kafka, topics).values()} == {4}
    for table in TABLES:
        expected = server_rows(database, keyspace, table)
        names = [*expected[1]]
        assert (table, state_rows(tmp_path, keyspace, table, names)) == (table, expected)
        assert (table, history_rows(tmp_path, keyspace, table, names)) == (table, expected)
        assert (table, target_rows(postgres, target, keyspace, table, names)) == (table, expected)
        records = read_topic(settings.kafka, f"{keyspace}.{keyspace}.{table}")
        found = {key: typed(row, expected[key]) for key, row in last_rows(records).items()}
        assert (table, found) == (table, expected)


def sinks_of(
    spark: SparkSession,
    kafka: KafkaCluster,
    keyspace: str,
    folder: Path,
    postgres: PostgresFixture,
    target: str,
) -> Runs:
    """What each sink does with what is on Kafka."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "start": "earliest"}
    names = [f"{keyspace}.{table}" for table in TABLES]
    url = postgres.url(target, *postgres.new_login(target))
    state, topics = str(folder / "state"), topic_options(keyspace)
    return (
        partial(
            run_state,
            *(spark, keyspace, state, str(folder / "state.checkpoint"), options),
            tables=names,
            histories=dict.fromkeys(names, ()),
            trigger="availableNow",
        ),
        partial(
            run_database,
            *(spark, keyspace, url, str(folder / "database.checkpoint"), options),
            tables=[(keyspace, table) for table in TABLES],
            partitions=2,
            trigger="availableNow",
        ),
        partial(
            run_table_topics,
            *(spark, str(folder / "topics.checkpoint"), options, topics),
            tables=names,
            trigger="availableNow",
        ),
    )


def follow(settings: ShardProducerSettings, sinks: Runs) -> None:
    """Let the sinks apply all that the server has done."""
    wait_caught_up(settings)

    def are_released() -> bool:
        log = read_log(settings)
        return log.progress[-1].head_us >= log.events[-1].timestamp_us + GRID_US

    wait_for("the head passes the last change", are_released)
    for run in sinks:
        run()


def execute(server: DatabaseFixture, database: str, *statements: str) -> None:
    """Run statements in one session."""
    with server.connect(database=database or None) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def server_rows(server: DatabaseFixture, database: str, table: str) -> Rows:
    """What SELECT says of the logged columns: MariaDB's generated ones are not among them."""
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        is_cut = server.flavor is Flavor.MARIADB and table == "generated"
        cursor.execute(f"SELECT {'id, v, at, e' if is_cut else '*'} FROM `{table}`")
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {row["id"]: row for row in rows}


def state_rows(folder: Path, database: str, table: str, names: list[str]) -> Rows:
    """The present rows."""
    found = pa.table(DeltaTable(str(folder / "state" / database / table)).scan())
    return by_id(found.to_pylist(), names)


def history_rows(folder: Path, database: str, table: str, names: list[str]) -> Rows:
    """The versions that have not ended."""
    path = folder / "state" / "_shardstream_history" / database / table
    found = pa.table(DeltaTable(str(path)).scan()).to_pylist()
    return by_id([row for row in found if row["_to_us"] is None], names)


def target_rows(
    postgres: PostgresFixture, target: str, database: str, table: str, names: list[str]
) -> Rows:
    """The rows of the second database."""
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(database, table))
    with postgres.connect(target) as connection:
        rows = connection.execute(query).fetchall()
    return by_id([dict(zip(names, row, strict=True)) for row in rows], names)


def by_id(rows: list[dict[str, Any]], names: list[str]) -> Rows:
    """Columns of rows that have different ids."""
    found = {row["id"]: {name: row[name] for name in names} for row in rows}
    assert len(found) == len(rows)
    return found


def typed(row: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a message as the server's client gives it: times count from 1970.

    A row from before ADD COLUMN lacks the column.
    """
    found = {name: row.get(name) for name in like}
    for name, value in found.items():
        if isinstance(value, int) and isinstance(like[name], datetime):
            seconds = value / (1e3 if value < 10**14 else 1e6)
            found[name] = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
    return found
