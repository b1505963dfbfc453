"""Tables are copied while four writers change them, and producers are killed at named points."""

from collections.abc import Iterator
from contextlib import contextmanager

from producers.settings import CopySettings, ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.conftest import DatabaseFixture
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
from tests.producers.producing import (
    ProducerProcess,
    check_progress,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
    wait_for,
)
from topics.copy_control import CopyAction, CopyRequest, CopyState, ask

SEED = 20261121
KEYS = 600
# Small chunks: hundreds of windows, each of which may go wrong.
SMALL_CHUNKS = CopySettings(chunk_rows_max=25, tables_at_once=3)
POINTS = (
    "request_seen",
    "chunk_asked",
    "chunk_read",
    "piece_written",
    "before_commit",
    "after_commit",
)


@contextmanager
def process(settings: ShardProducerSettings, kill_at: str) -> Iterator[ProducerProcess]:
    """A producer that kills itself at a point, gone at the end."""
    producer = ProducerProcess(settings, kill_at=kill_at)
    try:
        yield producer
    finally:
        producer.kill()


def check_tables(settings: ShardProducerSettings, database: DatabaseFixture, name: str) -> None:
    """Log and progress hold together, and what stream and copy make is what the server has."""
    log = read_log(settings)
    check_copied_log(log)
    check_progress(log)
    for table, (_, key) in TABLES.items():
        rows = server_rows(database, name, table, key)
        assert rows
        assert replay_upserts(log, name, table) == rows
        assert check_no_stale_read(log, name, table, "v") > 0


def test_copy_under_load(mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str) -> None:
    """Key changes, deletes and re-inserts beside the copy of five tables, twice over.

    On MariaDB, whose chunks are tied to the log by their snapshot; the kills have MySQL's.
    """
    name = mariadb_a.new_database()
    settings = settings_of(mariadb_a, kafka, keyspace, copy=SMALL_CHUNKS)
    with Traffic(mariadb_a, name, keys=KEYS, seed=SEED) as traffic, producing(settings):
        for _ in range(2):
            seen = traffic.transactions
            start(settings, *(f"{name}.{table}" for table in TABLES))
            wait_state(settings, CopyState.COMPLETED)
            wait_for("the load goes on", lambda s=seen: traffic.transactions > s + 50)  # type: ignore[misc]
    with producing(settings):
        wait_caught_up(settings)

    check_tables(settings, mariadb_a, name)


def test_kills_at_named_points_lose_and_repeat_nothing(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Killed before and after each step of a copy, the next producer goes on where it was."""
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
