"""A whole producer on a server that logs no names: under load, over restarts and definitions."""

import threading
from contextlib import closing
from dataclasses import replace

import pytest

from producers.decoder.errors import UnprovedTable
from producers.errors import TableLocked
from producers.settings import ProducerState, ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import (
    Running,
    RunningProducer,
    check_log,
    check_progress,
    problems_of,
    producing,
    read_log,
    server_of,
    settings_of,
    wait_caught_up,
    warnings_of,
)
from tests.waiting import wait_for
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.records.vevent import Op
from topics.schemas import open_schema_ids

LOAD_ROWS = 1_000


def execute(database: DatabaseFixture, name: str, *statements: str) -> None:
    """Run statements in one session."""
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.full
def test_names_are_proved_under_load_and_kept_over_restarts(
    minimal: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Each row has the names of its time; a producer that was off while one was renamed as well."""
    name = minimal.new_database()
    settings = settings_of(minimal, kafka, keyspace, metadata="proved")
    execute(
        minimal,
        name,
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, e ENUM('x','y'))",
        "CREATE TABLE busy (id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
    )
    written = 0

    def load(stop: threading.Event) -> None:
        nonlocal written
        with minimal.connect(database=name) as connection, connection.cursor() as cursor:
            while not stop.is_set() and written < LOAD_ROWS:
                cursor.execute("INSERT INTO busy (v) VALUES (1)")
                written += 1

    with producing(settings):
        writer = Running("the load", load)
        execute(minimal, name, "INSERT INTO t VALUES (1, 10, 'x')")
        wait_for("the first row is logged", lambda: _ids(settings) == [1])
    # While the producer is off: rows of the version that it knew, a definition, and rows of the
    # next one, which the catalog still has.
    execute(
        minimal,
        name,
        "INSERT INTO t VALUES (2, 20, 'y')",
        "ALTER TABLE t RENAME COLUMN a TO b, MODIFY e ENUM('y','x')",
        "INSERT INTO t VALUES (3, 30, 'y')",
    )
    with producing(settings):
        execute(minimal, name, "INSERT INTO t VALUES (4, 40, 'x')")
        wait_for("the load is written", lambda: not writer.runs)
        writer.check()
        wait_caught_up(settings)
    log = read_log(settings)

    check_log(log)
    check_progress(log)
    rows = [event.after for event in log.events if event.table == "t" and event.op is Op.INSERT]
    assert rows == [
        {"id": 1, "a": 10, "e": "x"},
        {"id": 2, "a": 20, "e": "y"},
        {"id": 3, "b": 30, "e": "y"},
        {"id": 4, "b": 40, "e": "x"},
    ]
    assert written == LOAD_ROWS
    loaded = [event.after for event in log.events if event.table == "busy"]
    assert loaded == [{"id": i + 1, "v": 1} for i in range(written)]
    topics = ShardTopics(settings.keyspace, settings.shard)
    progress = last_progress(settings.kafka, topics, open_schema_ids(settings.kafka, None))
    assert progress is not None
    assert (progress.proved or 0) >= 2  # `status` shows it


def _ids(settings: ShardProducerSettings) -> list[object]:
    events = read_log(settings).events
    return [e.after["id"] for e in events if e.table == "t" and e.after is not None]


@pytest.mark.full
def test_two_definitions_with_rows_between_halt_by_name(
    minimal: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Nobody knows the names between them: the stop names the table, the GTID and the way on."""
    name = minimal.new_database()
    settings = settings_of(minimal, kafka, keyspace, metadata="proved")
    execute(minimal, name, "CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    with producing(settings):
        execute(minimal, name, "INSERT INTO t VALUES (1, 10)")
        wait_for("the first row is logged", lambda: _ids(settings) == [1])
    execute(
        minimal,
        name,
        "ALTER TABLE t RENAME COLUMN a TO b",
        "INSERT INTO t VALUES (2, 20)",
        "ALTER TABLE t RENAME COLUMN b TO c",
    )
    error = RunningProducer(settings).wait_error()

    assert isinstance(error, UnprovedTable)
    assert f"table {name}.t" in str(error)
    assert "has executed ALTER TABLE since (" in str(error)
    assert "Begin a new log after these rows with a copy" in str(error)
    assert _ids(settings) == [1]


def test_minimal_metadata_is_refused_unless_it_is_to_be_proved(
    minimal: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Off by default; where the settings allow it, preflight says so."""
    settings = settings_of(minimal, kafka, keyspace, metadata="proved")
    accepted = {"accept_unlogged_cascades": True, "accept_loss_at_server_crash": True}

    refused = problems_of(server_of(minimal), settings.flavor, **accepted)
    allowed = problems_of(server_of(minimal), settings.flavor, metadata="proved", **accepted)

    assert ["binlog_row_metadata is MINIMAL" in str(problem) for problem in refused] == [True]
    assert allowed == []
    assert any("asked for in the catalog and proved" in text for text in warnings_of(settings))


@pytest.mark.full
def test_a_locked_table_is_waited_for_and_named(
    minimal: DatabaseFixture, kafka: KafkaCluster, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop turns and says what it waits for; a stop ends it, and so does `outage_s`."""
    monkeypatch.setattr("producers.session.streaming.NOTE_GAP_S", 0.5)
    name = minimal.new_database()
    settings = settings_of(minimal, kafka, keyspace, metadata="proved")
    execute(minimal, name, "CREATE TABLE t (id INT PRIMARY KEY)")
    waits = f"table {name}.t is locked on {settings.servers[0].name}"
    with closing(minimal.connect(database=name)) as connection, connection.cursor() as cursor:
        with producing(settings) as producer:
            cursor.execute("LOCK TABLES t WRITE")
            cursor.execute("INSERT INTO t VALUES (1)")
            wait_for(
                "it names the table",
                lambda: any(waits in status.note for status in list(producer.statuses)),
            )
            states = [status.state for status in producer.statuses if waits in status.note]
            assert set(states) == {ProducerState.STREAMING}
        assert _ids(settings) == []  # the stop has ended it
        with monkeypatch.context() as patched:
            patched.setattr("producers.publisher.TIMEOUT_SHARE", 0.0005)  # of 15 minutes
            with producing(settings) as producer:
                wait_for(
                    "sessions that can wait no longer follow each other",
                    lambda: sum("are read again" in s.note for s in list(producer.statuses)) > 2,
                )
        error = RunningProducer(replace(settings, outage_s=1)).wait_error()
        assert isinstance(error, TableLocked)
        assert waits in str(error)
        with producing(settings):
            cursor.execute("UNLOCK TABLES")
            wait_for("the row is logged", lambda: _ids(settings) == [1])
    check_log(read_log(settings))
