"""What a copy holds on the server in mid-chunk, and between chunks."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from producers.copy import chunk as chunk_rows
from producers.copy.chunk import ChunkConnection
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
from tests.producers.servers.replication import statements
from tests.producers.session.producing import producing, read_log, settings_of, wait_caught_up
from tests.waiting import WAIT_S, wait_for
from topics.progress.copy_topic import CopyAction, CopyState

# A chunk that no socket's buffers hold: the server is still sending it while the reader rests.
ROWS = 240
CHUNK_ROWS = 200
ROW_BYTES = 100_000
# The server gives up on a client that does not read after this time.
NET_WRITE_S = 600


class Chunks:
    """Stops the first chunk while its rows arrive; knows the connections that read chunks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stop the first chunk that anybody in this process reads from now on."""
        self.is_held = threading.Event()
        self.release = threading.Event()
        self.connections: set[int] = set()
        read, taken = ChunkConnection.read, chunk_rows._taken

        def noted(chunks: ChunkConnection, *arguments: object) -> object:
            self.connections.add(chunks.connection.thread_id())
            return read(chunks, *arguments)  # type: ignore[arg-type]

        def held(*arguments: object) -> int:
            self.is_held.set()
            assert self.release.wait(WAIT_S)
            return taken(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(ChunkConnection, "read", noted)
        monkeypatch.setattr(chunk_rows, "_taken", held)


@contextmanager
def filled_table(database: DatabaseFixture, name: str) -> Iterator[None]:
    """A table of long rows, on a server that waits for a slow reader."""
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.net_write_timeout")
        [(usual,)] = cursor.fetchall()
        cursor.execute(f"SET GLOBAL net_write_timeout = {NET_WRITE_S}")
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT, pad MEDIUMTEXT)")
        for i in range(ROWS):
            cursor.execute(f"INSERT INTO t VALUES ({i}, 0, REPEAT('x', {ROW_BYTES}))")
        yield
        cursor.execute(f"SET GLOBAL net_write_timeout = {usual}")


def asked(database: DatabaseFixture, statement: str) -> list[tuple[object, ...]]:
    """The result of a query on a new connection."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def check_no_row_locks(database: DatabaseFixture, chunks: Chunks) -> None:
    """No connection that reads chunks has a lock on a row, or on a table against writers."""
    own = ", ".join(map(str, chunks.connections))
    assert not asked(
        database,
        "SELECT * FROM information_schema.innodb_trx WHERE (trx_rows_locked > 0 "
        f"OR trx_tables_locked > 0 OR trx_lock_structs > 0) AND trx_mysql_thread_id IN ({own})",
    )
    if database.flavor == "mysql":
        where = f"WHERE t.processlist_id IN ({own})"
        threads = "JOIN performance_schema.threads t"
        assert not asked(
            database,
            f"SELECT l.* FROM performance_schema.data_locks l {threads} USING (thread_id) {where}",
        )
        held = asked(
            database,
            "SELECT DISTINCT l.lock_type FROM performance_schema.metadata_locks l "
            f"{threads} ON t.thread_id = l.owner_thread_id {where}",
        )
        # What any SELECT holds: it lets all reads and writes through.
        assert held == [("SHARED_READ",)]


def holds_nothing(database: DatabaseFixture, chunks: Chunks) -> bool:
    """Whether the connections that read chunks are in no transaction and hold no lock at all."""
    own = ", ".join(map(str, chunks.connections))
    if database.flavor == "mysql" and asked(
        database,
        "SELECT 1 FROM performance_schema.metadata_locks JOIN performance_schema.threads t "
        f"ON t.thread_id = owner_thread_id WHERE t.processlist_id IN ({own})",
    ):
        return False
    return not asked(
        database,
        f"SELECT 1 FROM information_schema.innodb_trx WHERE trx_mysql_thread_id IN ({own})",
    )


def change_rows(database: DatabaseFixture, name: str) -> None:
    """Change rows of the chunk that is being read; a lock would time out."""
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1")
        cursor.execute("UPDATE t SET v = 1 WHERE id IN (3, 30)")
        cursor.execute("DELETE FROM t WHERE id IN (4, 40)")
        cursor.execute("INSERT INTO t VALUES (-1, 1, ''), (4, 1, '')")


def test_a_copy_locks_nothing(
    database: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No lock: rows change in mid-chunk, an ALTER waits for that chunk alone, a pause for none."""
    name = database.new_database()
    chunks = Chunks(monkeypatch)
    settings = settings_of(database, kafka, keyspace, copy=CopySettings(chunk_rows_max=CHUNK_ROWS))

    def alter_waits() -> bool:
        found = "state LIKE 'Waiting for table metadata lock' AND info LIKE 'ALTER TABLE"
        return bool(
            asked(
                database,
                f"SELECT 1 FROM information_schema.processlist WHERE {found} {name}.t%'",
            )
        )

    with (
        filled_table(database, name),
        ThreadPoolExecutor(1) as beside,
        producing(settings),
    ):
        start(settings, f"{name}.t")
        wait_for("a chunk is being read", chunks.is_held.is_set)
        check_no_row_locks(database, chunks)
        change_rows(database, name)
        altered = beside.submit(
            statements, database, f"ALTER TABLE {name}.t ADD COLUMN added INT NOT NULL DEFAULT 5"
        )
        wait_for("the ALTER waits for the chunk", alter_waits)
        assert request(settings, CopyAction.PAUSE, f"{name}.t").problems == ()
        chunks.release.set()
        altered.result(WAIT_S)
        wait_state(settings, CopyState.PAUSED)
        wait_for("nothing is held", lambda: holds_nothing(database, chunks))
        statements(database, f"ALTER TABLE {name}.t DROP COLUMN v")
        assert request(settings, CopyAction.RESUME, f"{name}.t").problems == ()
        wait_state(settings, CopyState.COMPLETED)
        wait_caught_up(settings)

    log = read_log(settings)
    check_copied_log(log)
    found = replay_upserts(log, name, "t")
    assert {-1, 3, 4} <= {key for (key,) in found}
    assert found == server_rows(database, name, "t", ["id"])
