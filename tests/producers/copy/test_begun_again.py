"""A copy begins again where what it has copied belongs to another table, key or definition."""

from dataclasses import replace
from typing import Any

import pytest

from producers.copy import chunk_reader
from producers.copy.part import read_part
from producers.settings import CopySettings, ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.copy.copying import (
    check_copied_log,
    request,
    start,
    topics_of,
    wait_state,
)
from tests.producers.servers.replication import start_pair, statements, wait_same
from tests.producers.session.producing import (
    producing,
    read_log,
    server_of,
    settings_of,
    wait_caught_up,
)
from tests.waiting import wait_for
from topics.progress.copy_topic import CopyAction, CopyState, TableCopy, read_copies
from topics.records.vevent import EventType, Op, VEvent

ROWS = 1_500
SMALL_CHUNKS = CopySettings(chunk_rows_max=10, tables_at_once=1)
INT_KEY = "k INT NOT NULL, v INT, PRIMARY KEY (k)"
TO_DESCENDING = "DROP PRIMARY KEY, ADD PRIMARY KEY (k DESC)"
TEXT = "VARCHAR(9) CHARACTER SET utf8mb4 COLLATE"


def create(server: DatabaseFixture, table: str, columns: str, key: str = "{0}") -> None:
    """A table with ROWS rows; `key`: the literal of a row's key, by its number."""
    values = ", ".join(f"({key.format(i)}, {i})" for i in range(ROWS))
    statements(
        server,
        f"CREATE TABLE {table} ({columns})",
        f"INSERT INTO {table} (k, v) VALUES {values}",
    )


def copy_of(settings: ShardProducerSettings) -> TableCopy:
    """The one copy of the shard."""
    [copy] = read_copies(settings.kafka, topics_of(settings)).values()
    return copy


def start_some(settings: ShardProducerSettings, table: str) -> None:
    """Start a copy, and wait until it has copied some rows and not all."""
    start(settings, table)
    wait_for("some rows are copied", lambda: copy_of(settings).rows > 100)


def pause_in_the_middle(settings: ShardProducerSettings, table: str) -> TableCopy:
    """Start a copy and pause it where it has some rows and not all."""
    start_some(settings, table)
    assert request(settings, CopyAction.PAUSE, table).problems == ()
    [copy] = wait_state(settings, CopyState.PAUSED).values()
    assert 0 < copy.rows < ROWS
    return copy


def resume(settings: ShardProducerSettings, table: str) -> TableCopy:
    """Resume a copy and wait for its end."""
    assert request(settings, CopyAction.RESUME, table).problems == ()
    [copy] = wait_state(settings, CopyState.COMPLETED).values()
    return copy


def reads_of(settings: ShardProducerSettings, copy: TableCopy) -> list[VEvent]:
    """The rows of a copy, which ends once: in a log that is sound."""
    log = read_log(settings)
    check_copied_log(log)
    assert [e.type for e in log.events].count(EventType.COPY_COMPLETED) == 1
    return [e for e in log.events if e.op is Op.READ and e.seq >= copy.begun_seq]


def values_of(events: list[VEvent], column: str = "v") -> list[Any]:
    """The values of a column, sorted."""
    return sorted(e.after[column] for e in events if e.after is not None)


def test_a_copy_of_an_altered_key_begins_again(
    mysql_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two chunks a key is turned round: every row is READ behind it, and a note says so."""
    name = mysql_a.new_database()
    create(mysql_a, f"{name}.t", INT_KEY)
    alters = [f"ALTER TABLE {name}.t {TO_DESCENDING}"]

    def alter_and_read(*arguments: Any, **options: Any) -> Any:
        after = arguments[3]
        if after is not None and alters:
            statements(mysql_a, alters.pop())
        return read_part(*arguments, **options)

    monkeypatch.setattr(f"{chunk_reader.__name__}.read_part", alter_and_read)
    settings = settings_of(mysql_a, kafka, keyspace)
    with producing(settings):
        start(settings, f"{name}.t")
        [copy] = wait_state(settings, CopyState.COMPLETED).values()

    assert copy.note == f"begun again: table {name}.t has another definition now"
    assert values_of(reads_of(settings, copy)) == list(range(ROWS))


@pytest.mark.full
def test_a_paused_copy_of_an_altered_key_begins_again(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """It is resumed at the table's beginning, also by another producer."""
    name = mysql_a.new_database()
    create(mysql_a, f"{name}.t", INT_KEY)
    settings = settings_of(mysql_a, kafka, keyspace, copy=SMALL_CHUNKS)
    with producing(settings):
        before = pause_in_the_middle(settings, f"{name}.t")
    statements(mysql_a, f"ALTER TABLE {name}.t {TO_DESCENDING}")
    with producing(settings_of(mysql_a, kafka, keyspace)):
        copy = resume(settings, f"{name}.t")

    assert copy.copy_id != before.copy_id
    assert copy.note == f"begun again: table {name}.t has another definition now"
    assert values_of(reads_of(settings, copy)) == list(range(ROWS))


@pytest.mark.full
@pytest.mark.parametrize("family", ["mysql_a", "mariadb_a"])
@pytest.mark.parametrize(
    ("columns", "key", "alter"),
    [
        (INT_KEY, "{0}", TO_DESCENDING),
        (
            "e ENUM('a','b','c','d') NOT NULL DEFAULT 'a', k INT, v INT, PRIMARY KEY (e, k)",
            "{0}",
            "MODIFY e ENUM('c','d','a','b') NOT NULL",
        ),
        (
            f"k {TEXT} utf8mb4_general_ci PRIMARY KEY, v INT",
            "CONCAT(CHAR(65 + {0} % 26 + 32 * ({0} % 2)), {0})",
            f"MODIFY k {TEXT} utf8mb4_bin",
        ),
        ("k INT NOT NULL, v INT, UNIQUE KEY u (k)", "{0}", "DROP INDEX u, ADD UNIQUE u (k DESC)"),
    ],
    ids=["direction", "labels", "collation", "unique"],
)
def test_a_running_copy_of_an_altered_key_has_every_row(
    request: pytest.FixtureRequest,
    family: str,
    columns: str,
    key: str,
    alter: str,
    kafka: KafkaCluster,
    keyspace: str,
) -> None:
    """Whatever changes the order of a key while it is followed, every row is READ behind it."""
    server: DatabaseFixture = request.getfixturevalue(family)
    name = server.new_database()
    create(server, f"{name}.t", columns, key)
    if "ENUM" in columns:
        statements(server, f"UPDATE {name}.t SET e = ELT(k % 4 + 1, 'a', 'b', 'c', 'd')")
    settings = settings_of(server, kafka, keyspace, copy=SMALL_CHUNKS)
    with producing(settings):
        start_some(settings, f"{name}.t")
        statements(server, f"ALTER TABLE {name}.t {alter}")
        [copy] = wait_state(settings, CopyState.COMPLETED).values()

    assert "another definition" in copy.begun_again
    assert values_of(reads_of(settings, copy)) == list(range(ROWS))


@pytest.mark.full
@pytest.mark.parametrize("is_logged", [True, False])
@pytest.mark.parametrize("family", ["mysql_a", "mariadb_a"])
def test_a_running_copy_of_a_swapped_table_has_the_new_ones_rows(
    request: pytest.FixtureRequest,
    family: str,
    kafka: KafkaCluster,
    keyspace: str,
    *,
    is_logged: bool,
) -> None:
    """A table that takes the name is copied as a whole, whether its RENAME was logged or not."""
    server: DatabaseFixture = request.getfixturevalue(family)
    name = server.new_database()
    create(server, f"{name}.t", INT_KEY)
    create(server, f"{name}.other", INT_KEY)
    statements(server, f"UPDATE {name}.other SET v = v + {ROWS}")
    settings = settings_of(server, kafka, keyspace, copy=SMALL_CHUNKS)
    with producing(settings):
        start_some(settings, f"{name}.t")
        statements(
            server,
            f"SET sql_log_bin = {is_logged:d}",
            f"RENAME TABLE {name}.t TO {name}.old, {name}.other TO {name}.t",
        )
        [copy] = wait_state(settings, CopyState.COMPLETED).values()

    assert copy.begun_again
    assert values_of(reads_of(settings, copy)) == list(range(ROWS, 2 * ROWS))


@pytest.mark.full
def test_a_rename_in_the_log_reaches_a_copy_that_is_paused(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A producer that has moved to another server since could not tell from its ids."""
    name = mysql_a.new_database()
    create(mysql_a, f"{name}.t", INT_KEY)
    create(mysql_a, f"{name}.other", INT_KEY)
    settings = settings_of(mysql_a, kafka, keyspace, copy=SMALL_CHUNKS)
    with producing(settings):
        pause_in_the_middle(settings, f"{name}.t")
        statements(mysql_a, f"RENAME TABLE {name}.t TO {name}.old, {name}.other TO {name}.t")
        wait_caught_up(settings)
        paused = copy_of(settings)

    assert (paused.state, paused.last_key, paused.rows) == (CopyState.PAUSED, (), 0)
    assert paused.note == f"begun again: table {name}.t was renamed"


@pytest.mark.full
def test_a_copy_that_goes_on_from_another_server_has_one_definition(
    start_server: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """Rows of a replica that was altered alone have its column in all rows of the copy."""
    primary, replica = start_pair(start_server)
    name = primary.new_database()
    create(primary, f"{name}.t", INT_KEY)
    wait_same(replica, primary)
    statements(
        replica,
        "SET sql_log_bin = 0",
        f"ALTER TABLE {name}.t ADD COLUMN extra INT NOT NULL DEFAULT 7",
    )
    away = replace(server_of(primary), read=False)
    first = settings_of(primary, kafka, keyspace, copy=SMALL_CHUNKS)
    with producing(first):
        pause_in_the_middle(first, f"{name}.t")
    then = replace(first, servers=(server_of(replica), away))
    with producing(then):
        copy = resume(then, f"{name}.t")

    reads = reads_of(then, copy)
    assert values_of(reads) == list(range(ROWS))
    assert set(values_of(reads, "extra")) == {7}


@pytest.mark.full
def test_a_copy_goes_on_from_another_server_of_the_same_definition(
    start_server: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A failover costs a copy nothing: tables have other ids there and are the same."""
    primary, replica = start_pair(start_server)
    name = primary.new_database()
    create(primary, f"{name}.t", INT_KEY)
    wait_same(replica, primary)
    away = replace(server_of(primary), read=False)
    first = settings_of(primary, kafka, keyspace, copy=SMALL_CHUNKS)
    with producing(first):
        before = pause_in_the_middle(first, f"{name}.t")
    then = replace(first, servers=(server_of(replica), away))
    with producing(then):
        copy = resume(then, f"{name}.t")

    assert (copy.copy_id, copy.begun_again) == (before.copy_id, "")
    assert values_of(reads_of(then, copy)) == list(range(ROWS))
