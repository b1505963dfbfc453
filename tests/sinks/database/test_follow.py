"""A PostgreSQL database follows two MySQL servers through everything that changes their tables."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from shardstream.local.kafka_cluster import KafkaCluster
from sinks.database.options import DatabaseOptions
from spark_consumers.database import run_database
from spark_consumers.sink_query import SinkProgress
from tests.database_servers import DatabaseFixture
from tests.postgres_servers import PostgresFixture
from tests.producers.session.producing import producing, settings_of
from tests.shardstream.command_line import background, write_settings
from tests.sinks.database.serving import serve
from tests.waiting import WAIT_S, wait_for

pytestmark = pytest.mark.full

TABLE = "(id BIGINT PRIMARY KEY, note VARCHAR(20), amount INT)"
REFRESH_MS = 200
PARTITIONS = 2
INT_MAX = 2**31 - 1
STATEMENTS = 20


class Sources:
    """The same table on two servers."""

    def __init__(self, shards: dict[str, DatabaseFixture], name: str) -> None:
        self.shards = shards
        self.name = name
        self._rng = random.Random(11)
        self._next_id = 1
        for shard in shards:
            self.run(shard, f"CREATE DATABASE {name}", f"CREATE TABLE {name}.items {TABLE}")

    def run(self, shard: str, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in one transaction; return the rows of the last one."""
        with self.shards[shard].connect(autocommit=False) as connection:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                found = list(cursor.fetchall())
            connection.commit()
        return found

    def rows(self, columns: str = "id, note, amount") -> list[tuple[Any, ...]]:
        """The rows of both servers."""
        query = f"SELECT {columns} FROM {self.name}.items"
        return sorted(row for shard in self.shards for row in self.run(shard, query))

    def write(self) -> None:
        """Random INSERTs, UPDATEs, key changes, DELETEs, swaps and moves between the servers."""
        table = f"{self.name}.items"
        for _ in range(STATEMENTS):
            shard, other = self._rng.sample(sorted(self.shards), 2)
            ids = [row[0] for row in self.run(shard, f"SELECT id FROM {table}")]
            number = self._next_id = self._next_id + 1
            kind = self._rng.random()
            if len(ids) < 3 or kind < 0.4:
                values = f"({number}, '{shard} {number}', {self._rng.randint(-9, 9)})"
                self.run(shard, f"INSERT INTO {table} (id, note, amount) VALUES {values}")
                continue
            a, b = self._rng.sample(ids, 2)
            if kind < 0.55:
                self.run(shard, f"UPDATE {table} SET amount = {number} WHERE id = {a}")
            elif kind < 0.65:
                self.run(shard, f"UPDATE {table} SET id = {number} WHERE id = {a}")
            elif kind < 0.75:
                self.run(shard, f"DELETE FROM {table} WHERE id = {a}")
            elif kind < 0.9:  # a unique value goes from row to row
                notes = dict(self.run(shard, f"SELECT id, note FROM {table}"))
                change = f"UPDATE {table} SET note = {{}} WHERE id = {{}}"
                first, second = (f"'{notes[i]}'" for i in (a, b))
                self.run(
                    shard, *(change.format(*s) for s in (("NULL", a), (first, b), (second, a)))
                )
            else:
                [(note, amount)] = self.run(shard, f"SELECT note, amount FROM {table} WHERE id={a}")
                self.run(shard, f"DELETE FROM {table} WHERE id = {a}")
                # The other server may not have been altered yet.
                values = f"({a}, '{note}', {min(amount, INT_MAX)})"
                self.run(other, f"INSERT INTO {table} (id, note, amount) VALUES {values}")


def test_a_database_follows_alters_kills_and_moves(
    spark: SparkSession,
    mysql_a: DatabaseFixture,
    mysql_b: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    *,
    postgres: PostgresFixture,
    tmp_path: Path,
) -> None:
    """The target equals both servers after DML, ALTERs one after the other, TRUNCATE, kill -9."""
    shards = {"-80": mysql_a, "80-": mysql_b}
    target = postgres.new_database()
    user, password = postgres.new_login(target)
    url = postgres.url(target, user, password)
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, shards)
    place = str(tmp_path / "checkpoint")
    arguments = ("database", keyspace, "--to", url, "--checkpoint", place, "--config", str(config))
    speed = ("--refresh", f"{REFRESH_MS}ms", "--partitions", str(PARTITIONS))
    serve(kafka, keyspace, shards)
    rows = partial(rows_of, postgres, target, keyspace)

    with ExitStack() as running:
        for shard, database in shards.items():
            settings = settings_of(database, kafka, keyspace, shard=shard)
            running.enter_context(producing(settings))
        sources = Sources(shards, keyspace)
        sources.write()
        with background(tmp_path, "killed", *arguments, *speed) as query:

            def follows(is_so: Callable[[], bool]) -> None:
                wait_for("the target follows", is_so, lambda: query.errors[-2000:], query.process)

            follows(lambda: rows() == sources.rows())
            with postgres.connect(target) as connection:
                connection.execute(f"CREATE UNIQUE INDEX ON {keyspace}.items (note)".encode())
            more = "ADD COLUMN more DATETIME(6), MODIFY amount BIGINT"
            sources.run("-80", f"ALTER TABLE {keyspace}.items {more}")
            change = "amount = 1 << 40, more = '2024-02-29 01:02:03.000004'"
            sources.run("-80", f"UPDATE {keyspace}.items SET {change}")
            sources.write()
            follows(lambda: rows() == sources.rows())
            sources.run("80-", f"ALTER TABLE {keyspace}.items {more}")
            sources.write()
            query.process.kill()  # with a batch under way, most likely
            query.process.wait()
        sources.write()
        sessions = f"SELECT 1 FROM pg_stat_activity WHERE usename = '{user}'"
        wait_for("its sessions end", lambda: not postgres.ask(target, sessions))
        followed: list[str] = []
        stop, deadline_s = threading.Event(), time.monotonic() + WAIT_S
        columns = "id, note, amount, more"

        def on_progress(progress: SinkProgress) -> None:
            assert time.monotonic() < deadline_s, progress
            if rows(columns) != sources.rows(columns):
                return
            if not followed:
                followed.append("the kill")
                sources.run("80-", f"TRUNCATE TABLE {keyspace}.items")
                sources.write()
            else:
                followed.append("TRUNCATE")
                stop.set()

        run_database(
            *(spark, keyspace, url, place, {"kafka.bootstrap.servers": kafka.bootstrap_servers}),
            DatabaseOptions(partitions=PARTITIONS),
            interval_s=REFRESH_MS / 1000,
            on_progress=on_progress,
            stop=stop,
        )
        assert followed == ["the kill", "TRUNCATE"]


def rows_of(
    postgres: PostgresFixture, target: str, schema: str, columns: str = "id, note, amount"
) -> list[tuple[Any, ...]]:
    """The rows of the target, none while there is no table."""
    with postgres.connect(target) as connection:
        there = connection.execute("SELECT to_regclass(%s)", [f"{schema}.items"]).fetchone()
        if there == (None,):
            return []
        query = f"SELECT {columns} FROM {schema}.items"
        return sorted(connection.execute(query.encode()).fetchall())
