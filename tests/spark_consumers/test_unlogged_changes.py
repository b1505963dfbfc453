"""ALTERs and online schema changes that change values of rows: each sink has what SELECT says."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from psycopg import sql
from pyspark.sql import SparkSession

from event_token import Flavor
from producers.settings import ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from sinks.database.database import SqlDatabase
from sinks.database.options import DatabaseOptions
from sinks.lake.state.options import StateOptions
from sinks.rule.task_changes import FollowedTables
from sinks.subscriber_batches import Batches
from sinks.unlogged_copies import UnloggedCopies
from spark_consumers.database import run_database
from spark_consumers.state import run_state
from spark_consumers.table_topics import run_table_topics
from tests.database_servers import DatabaseFixture
from tests.postgres_servers import PostgresFixture
from tests.producers.copy.copying import topics_of, wait_state
from tests.producers.session.producing import producing, read_log, settings_of, wait_caught_up
from tests.sinks.database.followed import Followed
from tests.sinks.database.serving import serve
from tests.sinks.table_topics.topic_queries import last_rows, read_topic, topic_options
from tests.spark_consumers.unlogged_changes import (
    COLUMNS,
    FILL,
    KEPT,
    LATER,
    SOME,
    TABLES,
    changes_of,
)
from tests.waiting import wait_for
from topics.progress.copy_topic import CopyState, read_copies
from topics.progress.record import GRID_US
from topics.stream.subscriber import StreamSubscriber

pytestmark = pytest.mark.full

DROPPED = "dropped"
Rows = dict[int, dict[str, Any]]
Runs = tuple[Callable[[], object], ...]


def test_every_sink_has_the_rows_of_the_server(
    spark: SparkSession,
    mysql_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    *,
    postgres: PostgresFixture,
    tmp_path: Path,
) -> None:
    """State, history, database and topics: values that no event has come by copies of the tables.

    The sinks have the rows from before; they request the copies, of these tables alone. With
    `drop_columns` a dropped column leaves state and database.
    """
    target = postgres.new_database()
    serve(kafka, keyspace, {"-": mysql_a})
    settings = settings_of(mysql_a, kafka, keyspace)
    sinks = sinks_of(spark, kafka, keyspace, tmp_path, postgres, target)

    def run_sinks() -> None:
        for run in sinks:
            run()

    change_tables(mysql_a, settings, SOME, run_sinks)

    for table in SOME:
        expected = server_rows(mysql_a, keyspace, table)
        names = [*expected[1]]
        assert (table, state_rows(tmp_path, keyspace, table, names)) == (table, expected)
        assert (table, target_rows(postgres, target, keyspace, table, names)) == (table, expected)
        if table != DROPPED:
            assert (table, history_rows(tmp_path, keyspace, table, names)) == (table, expected)
        records = read_topic(settings.kafka, f"{keyspace}.{keyspace}.{table}")
        found = {key: typed(row, expected[key]) for key, row in last_rows(records).items()}
        assert (table, found) == (table, expected)
    lake = DeltaTable(str(tmp_path / "state" / keyspace / DROPPED))
    assert "at" not in {field.name for field in lake.schema().fields}
    listed = postgres.ask(
        target,
        "SELECT column_name FROM information_schema.columns "
        f"WHERE table_schema = '{keyspace}' AND table_name = '{DROPPED}'",
    )
    assert ("at",) not in listed


def test_a_database_without_spark_has_the_rows_of_the_server(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str, postgres: PostgresFixture
) -> None:
    """A program with a `Subscriber` requests the copies too, of all that a server does not log."""
    followed = Followed(postgres, keyspace)
    followed.database.prepare()
    serve(kafka, keyspace, {"-": database})
    settings = settings_of(database, kafka, keyspace)

    change_tables(database, settings, TABLES, partial(follow_log, settings, followed.database))

    for table in TABLES:
        expected = server_rows(database, keyspace, table)
        found = target_rows(postgres, followed.name, keyspace, table, [*expected[1]])
        assert (table, found) == (table, expected)


def change_tables(
    server: DatabaseFixture,
    settings: ShardProducerSettings,
    tables: Sequence[str],
    follow: Callable[[], None],
) -> None:
    """Fill tables, change them, and let the sinks follow: both, and the copies."""
    keyspace = settings.keyspace
    with producing(settings) as producer:
        producer.wait_streaming()
        execute(server, "", f"CREATE DATABASE {keyspace}")
        for table in tables:
            execute(server, keyspace, f"CREATE TABLE `{table}` ({COLUMNS})")
            execute(server, keyspace, FILL.format(t=f"`{table}`"))
        wait_released(settings)
        follow()
        for table in tables:
            execute(server, keyspace, *changes_of(keyspace, table))
            execute(server, keyspace, *(each.format(t=f"`{table}`") for each in LATER))
        wait_released(settings)
        follow()
        copied = wait_state(settings, CopyState.COMPLETED)
        wait_released(settings)
        follow()

    assert set(copied) == {f"{keyspace}.{table}" for table in {*tables} - KEPT}
    topics = topics_of(settings)
    assert {copy.rows for copy in read_copies(settings.kafka, topics).values()} == {4}


def follow_log(settings: ShardProducerSettings, database: SqlDatabase) -> None:
    """Apply the log of the one shard, from where the database ends."""
    last_seq = read_log(settings).events[-1].seq
    held = database.held()
    start = "earliest" if held is None else held.position
    number = 0 if held is None else held.batch_id + 1
    on_unlogged = UnloggedCopies(settings.kafka, settings.keyspace)
    with closing(StreamSubscriber(settings.keyspace, "-", start, config=settings.kafka)) as reader:
        for batch in Batches(reader):
            following = FollowedTables(database.known(), on_unlogged=on_unlogged)
            changes = batch.changes(following)
            assert database.apply_arrow(batch.planned("without Spark", number), changes)
            number += 1
            if batch.end.shards["-"].seq >= last_seq:
                return


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
    names = tuple(f"{keyspace}.{table}" for table in SOME)
    # Its history would keep the column.
    history = {name: () for name in names if not name.endswith(f".{DROPPED}")}
    url = postgres.url(target, *postgres.new_login(target))
    state, topics = str(folder / "state"), topic_options(keyspace, tables=names)
    return (
        partial(
            run_state,
            *(spark, keyspace, state, str(folder / "state.checkpoint"), options),
            StateOptions(tables=names, history=history, drop_columns=True),
            trigger="availableNow",
        ),
        partial(
            run_database,
            *(spark, keyspace, url, str(folder / "database.checkpoint"), options),
            DatabaseOptions(tables=names, partitions=2, drop_columns=True),
            trigger="availableNow",
        ),
        partial(
            run_table_topics,
            *(spark, str(folder / "topics.checkpoint"), options, topics),
            trigger="availableNow",
        ),
    )


def wait_released(settings: ShardProducerSettings) -> None:
    """Wait until readers may read all that the server has done."""
    wait_caught_up(settings)

    def are_released() -> bool:
        log = read_log(settings)
        return log.progress[-1].head_us >= log.events[-1].timestamp_us + GRID_US

    wait_for("the head passes the last change", are_released)


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
