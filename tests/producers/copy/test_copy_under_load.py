"""Tables are copied while four writers change them, and producers are killed at named points."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from producers.settings import CopySettings, ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.copy.copying import (
    check_copied_log,
    check_no_stale_read,
    replay_upserts,
    server_rows,
    start,
    topics_of,
    wait_state,
)
from tests.producers.copy.traffic import TABLES, Traffic
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    check_progress,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.producers.session.workload import SEED, process
from tests.waiting import wait_for
from topics.progress.copy_topic import (
    CopyAction,
    CopyRequest,
    CopyState,
    TableCopy,
    ask,
    read_copies,
)

KEYS = 400
# Small chunks: hundreds of windows, each of which can go wrong.
SMALL_CHUNKS = CopySettings(chunk_rows_max=25, tables_at_once=3)
# A column that is added before all others and dropped again: values would be shifted.
ADDED = "added"
ADD = f"ADD COLUMN {ADDED} INT NOT NULL DEFAULT 5 FIRST"
MANY = 1_000_000
# By family: what Kafka does at a point is the same for both.
POINTS = ("request_seen", "chunk_asked", "piece_written", "after_commit")
POINTS_MARIADB = ("piece_written", "chunk_read", "before_commit")


def copies_of(settings: ShardProducerSettings) -> Iterable[TableCopy]:
    """Return the progress of each table."""
    return read_copies(settings.kafka, topics_of(settings)).values()


def check_tables(settings: ShardProducerSettings, database: DatabaseFixture, name: str) -> None:
    """Check that log and progress agree, and that stream and copy result in the server's rows."""
    log = read_log(settings)
    check_copied_log(log)
    check_progress(log)
    for table, (_, key) in TABLES.items():
        rows = server_rows(database, name, table, key)
        found = replay_upserts(log, name, table)
        assert rows
        # A column that came later is not in the rows of before.
        assert {row.pop(ADDED, 5) for row in (*rows.values(), *found.values())} == {5}
        assert found == rows
        assert check_no_stale_read(log, name, table, "v") > 0


def alter_between_pieces(
    settings: ShardProducerSettings, database: DatabaseFixture, table: str
) -> None:
    """Add and drop a first column while the table is copied."""

    def pieces() -> int:
        [copy] = (copy for copy in copies_of(settings) if copy.name == table)
        return MANY if copy.state is CopyState.COMPLETED else copy.pieces

    for change in (ADD, f"DROP COLUMN {ADDED}", ADD):
        seen = pieces()
        statements(database, f"ALTER TABLE {table} {change}")
        wait_for("the copy goes on", lambda s=seen: pieces() > min(s, MANY - 1))  # type: ignore[misc]


@pytest.mark.full
def test_kills_and_changed_definitions_under_load(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A producer is killed at points of a copy, tables are altered meanwhile; then once more.

    On MariaDB, whose chunks are tied to the log by their snapshots.
    """
    name = mariadb_a.new_database()
    small = replace(SMALL_CHUNKS, chunk_rows_max=15)
    settings = settings_of(mariadb_a, kafka, keyspace, copy=small)
    tables = tuple(f"{name}.{table}" for table in TABLES)
    with Traffic(mariadb_a, name, keys=KEYS, seed=SEED) as traffic:
        with producing(settings):
            wait_caught_up(settings)
        ask(settings.kafka, topics_of(settings), CopyRequest(CopyAction.START, tables))
        for point in POINTS_MARIADB:
            with process(settings, point) as producer:
                assert producer.wait() == -9, (point, producer.lines[-3:])
            if point == "piece_written":
                statements(mariadb_a, f"ALTER TABLE {tables[0]} {ADD}")
        assert any(copy.state is CopyState.COPYING for copy in copies_of(settings))
        with producing(settings):
            alter_between_pieces(settings, mariadb_a, tables[1])
            wait_state(settings, CopyState.COMPLETED, *tables)
            seen = traffic.transactions
            start(settings, *tables)
            wait_state(settings, CopyState.COMPLETED, *tables)
            wait_for("the load goes on", lambda: traffic.transactions > seen + 50)
    with producing(settings):
        wait_caught_up(settings)

    check_tables(settings, mariadb_a, name)


def test_kills_at_named_points_lose_and_repeat_nothing(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A producer killed before or after any step of a copy is resumed where it was."""
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace, copy=SMALL_CHUNKS)
    tables = [f"{name}.{table}" for table in TABLES]
    with Traffic(mysql_a, name, keys=KEYS, seed=SEED):
        with producing(settings):
            wait_caught_up(settings)
        ask(settings.kafka, topics_of(settings), CopyRequest(CopyAction.START, tuple(tables)))
        for point in POINTS:
            with process(settings, point) as producer:
                assert producer.wait() == -9, (point, producer.lines[-3:])
        with producing(settings):
            wait_state(settings, CopyState.COMPLETED, *tables)
    with producing(settings):
        wait_caught_up(settings)

    check_tables(settings, mysql_a, name)
