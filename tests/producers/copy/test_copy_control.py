"""Copies are started, paused, resumed and refused; definitions change meanwhile."""

import pytest

from producers.copy.table_copier import Window, next_rows, spoiled
from producers.decoder.tables.plan import KeyWatch
from producers.settings import CopySettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.copy.copying import (
    check_copied_log,
    replay_upserts,
    request,
    server_rows,
    start,
    wait_state,
)
from tests.producers.session.producing import producing, read_log, settings_of, wait_caught_up
from tests.waiting import wait_for
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyAction, CopyState, read_copies
from topics.records.vevent import Op


@pytest.mark.full
def test_tables_are_refused_by_name_and_conditions_hold(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A missing key, a missing table or a broken condition is refused with that reason."""
    name = mariadb_a.new_database()
    with mariadb_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE keyless (a INT)")
        cursor.execute("CREATE TABLE nulls (a INT, UNIQUE KEY (a))")
        cursor.execute("CREATE TABLE beginnings (a TEXT, PRIMARY KEY (a(3)))")
        cursor.execute("CREATE TABLE t (a INT, b INT, v INT, PRIMARY KEY (a, b))")
        rows = ", ".join(f"({i % 40}, {i}, {i % 100})" for i in range(2000))
        cursor.execute(f"INSERT INTO t VALUES {rows}")
    settings = settings_of(
        mariadb_a, kafka, keyspace, copy=CopySettings(chunk_rows_max=150, tables_at_once=1)
    )
    with producing(settings):
        wrong = [f"{name}.{table}" for table in ("keyless", "nulls", "beginnings", "missing")]
        for table in (*wrong, "mysql.servers", "_shardstream.journal"):
            answer = request(settings, CopyAction.START, table)
            assert len(answer.problems) == 1
            assert table in answer.problems[0]
            assert answer.tables == ()
        start(settings, f"{name}.t", where="no_such_column = 1")
        [failed] = wait_state(settings, CopyState.FAILED).values()
        start(settings, f"{name}.t", where="v = 7 OR v > 97")
        wait_state(settings, CopyState.COMPLETED)
        again = request(settings, CopyAction.PAUSE, f"{name}.t")

    assert "no_such_column" in failed.note
    assert f"{name}.t" in failed.note
    assert again.problems == (f"table {name}.t: its copy is completed",)
    log = read_log(settings)
    check_copied_log(log)
    wanted = {
        k: r
        for k, r in server_rows(mariadb_a, name, "t", ["a", "b"]).items()
        if r["v"] == 7 or r["v"] > 97
    }
    assert replay_upserts(log, name, "t") == wanted


@pytest.mark.full
def test_definition_changes_while_a_table_is_copied(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A copy goes on, from its beginning, where columns come and go or its key is another one."""
    name = mysql_a.new_database()
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(10))")
        rows = ", ".join(f"({i}, {i}, 'b{i}')" for i in range(20_000))
        cursor.execute(f"INSERT INTO t VALUES {rows}")
    small = CopySettings(chunk_rows_max=10, tables_at_once=1)
    settings = settings_of(mysql_a, kafka, keyspace, copy=small)
    topics = ShardTopics(keyspace, settings.shard)

    def copied() -> int:
        return sum(copy.rows for copy in read_copies(settings.kafka, topics).values())

    with producing(settings):
        start(settings, f"{name}.t")
        wait_for("some rows are copied", lambda: copied() > 100)
        with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
            cursor.execute("ALTER TABLE t ADD COLUMN c INT NOT NULL DEFAULT 5 FIRST")
            cursor.execute("ALTER TABLE t DROP COLUMN a")
        seen = copied()
        wait_for("more rows are copied", lambda: copied() > seen + 200)
        assert request(settings, CopyAction.PAUSE, f"{name}.t").problems == ()
        wait_state(settings, CopyState.PAUSED)
        resting = copied()
        with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
            cursor.execute("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (c, id)")
        assert copied() == resting
    with producing(settings_of(mysql_a, kafka, keyspace)):
        assert request(settings, CopyAction.RESUME, f"{name}.t").problems == ()
        [copy] = wait_state(settings, CopyState.COMPLETED).values()

    assert copy.begun_again == f"begun again: table {name}.t has another definition now"
    log = read_log(settings)
    check_copied_log(log)
    assert resting < 20_000
    whole = [e for e in log.events if e.op is Op.READ and e.seq >= copy.begun_seq]
    assert [e.after for e in whole] == [{"c": 5, "id": i, "b": f"b{i}"} for i in range(20_000)]
    for event in log.events:
        if event.op is Op.READ:
            assert event.after is not None
            number = event.after["id"]
            assert event.after["b"] == f"b{number!r}"
            assert event.after.get("a", number) == number
            assert event.after.get("c", 5) == 5


@pytest.mark.full
def test_copy_waits_while_the_server_is_busy(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Above the limit of running threads nothing is read, and the status says why."""
    with mysql_a.one_table() as (name, cursor):
        cursor.execute("INSERT INTO t VALUES (1), (2)")
    held = settings_of(mysql_a, kafka, keyspace, copy=CopySettings(max_threads_running=0))
    topics = ShardTopics(keyspace, held.shard)
    with producing(held):
        start(held, f"{name}.t")
        wait_for(
            "the status says why",
            lambda: any("threads" in c.note for c in read_copies(held.kafka, topics).values()),
        )
    free = settings_of(mysql_a, kafka, keyspace, copy=CopySettings(max_threads_running=1000))
    with producing(free):
        [copy] = wait_state(free, CopyState.COMPLETED).values()

    assert copy.rows == 2


@pytest.mark.parametrize("elapsed_s", [0.001, 0.5, 30.0])
def test_chunks_follow_their_time(elapsed_s: float) -> None:
    """A slow chunk is followed by a smaller one, a fast one by a larger one, within limits."""
    limits = CopySettings(chunk_ms=500, chunk_rows_max=5_000)

    rows = next_rows(1_000, 1_000, 100_000, elapsed_s, limits)

    assert rows == {0.001: 4_000, 0.5: 1_000, 30.0: 250}[elapsed_s]
    assert next_rows(5_000, 5_000, 1, 0.001, limits) == 5_000
    assert next_rows(1_000, 1_000, 1 << 34, 0.001, limits) == 250


def test_a_window_is_spoiled_by_what_came_since() -> None:
    """Definitions and forgotten keys count only from the window's opening on."""
    watch = KeyWatch("d", "orders", 10)
    watch.note_statement("ALTER TABLE `Orders` ADD COLUMN c INT", 12)

    assert spoiled(Window(13, 100), watch) == ""
    assert "definition" in spoiled(Window(12, 100), watch)
    assert "more keys" in spoiled(Window(9, 100), KeyWatch("d", "t", 10))
    watch.note_statement("CREATE TABLE other (a INT)", 20)
    assert spoiled(Window(13, 100), watch) == ""


@pytest.mark.full
def test_a_row_that_cannot_be_logged_fails_its_copy_alone(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B8: undecodable text fails the copy by name; the stream continues, the fixed copy resumes."""
    name = mysql_a.new_database()
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9) CHARACTER SET big5)")
        cursor.execute("CREATE TABLE streamed (id INT PRIMARY KEY)")
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("INSERT INTO t VALUES (0, 'good'), (1, _big5 x'A15A')")
    settings = settings_of(mysql_a, kafka, keyspace)
    with producing(settings):
        start(settings, f"{name}.t")
        [failed] = wait_state(settings, CopyState.FAILED).values()
        with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO streamed VALUES (7)")
            wait_caught_up(settings)
            cursor.execute("SET sql_log_bin = 0")
            cursor.execute("UPDATE t SET a = 'fixed' WHERE id = 1")
        assert request(settings, CopyAction.RESUME, f"{name}.t").problems == ()
        wait_state(settings, CopyState.COMPLETED)
    log = read_log(settings)

    assert f"copying {name}.t, after key (none)" in failed.note
    assert "0xa15a" in failed.note
    check_copied_log(log)
    assert [e.after for e in log.events if e.table == "streamed" and e.after] == [{"id": 7}]
    copied = [e.after["a"] for e in log.events if e.op is Op.READ and e.after]
    assert copied == ["good", "fixed"]
