"""A batch is in the target once, whatever is repeated, lost or run twice."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Connection, event

from event_token.errors import Retry
from shardstream.local.postgres_server import NOBODY, PostgresServer
from sinks.database.database import SqlDatabase
from sinks.database.dialect import rows_of
from sinks.database.options import DatabaseOptions
from sinks.errors import TargetConflict
from sinks.resume import HeldBatch
from tests.database_servers import DatabaseFixture, StartServer
from tests.faults.disks import filled, small_disk
from tests.postgres_servers import PostgresFixture, running_postgres
from tests.sinks.database.followed import (
    EVERYWHERE,
    ITEMS,
    ON_MYSQL_TOO,
    Followed,
    Item,
    TargetServer,
    batch,
    changes,
    position,
)
from tests.sinks.database.mysql_targets import MysqlTargets

# A new database takes 8 MB of it.
DISK_BYTES = 24 * 1024 * 1024
# What PostgreSQL's files grow by, at least.
BLOCK_BYTES = 8192
BLOCKS_MAX = 1_000
ONE = Item(1, 1, 100, note="a")
TWO = Item(1, 2, 200, note="b")


def test_a_batch_that_is_run_again_is_dropped(followed: Followed) -> None:
    """After a crash between the target's commit and Spark's, the same batch comes again."""
    followed.apply([ONE])
    staged = followed.database.stage([changes([replace(TWO, seq=9)])])

    assert not followed.database.apply(batch(0), staged)
    followed.check()
    assert followed.stages == []


@ON_MYSQL_TOO
def test_staged_rows_are_not_in_the_table_until_the_batch_is_applied(followed: Followed) -> None:
    """A driver that is killed between staging and COMMIT leaves no row; the next one cleans up."""
    followed.apply([ONE])
    followed.database.stage([changes([TWO])])
    followed.check()
    followed.server.end_sessions(followed.login[0])
    with SqlDatabase(followed.url, followed.options).claimed():
        assert followed.stages == []
        followed.apply([TWO])
        followed.check()


def test_a_gap_between_target_and_checkpoint_stops(followed: Followed) -> None:
    """A target restored from an older backup lacks batches that the checkpoint has behind it."""
    followed.apply([ONE])

    with pytest.raises(TargetConflict, match="was restored to an earlier state"):
        followed.database.apply(batch(2), followed.database.stage([changes([TWO])]))
    followed.check()


@EVERYWHERE
def test_a_second_query_is_refused_while_the_first_one_lives(followed: Followed) -> None:
    """F34: of two drivers the second is refused, and once it takes over, the first one is."""
    followed.apply([ONE])
    other = SqlDatabase(followed.url, followed.options)
    first_of_other = replace(batch(1), query_id="query-2", batch_id=0)

    with pytest.raises(TargetConflict, match="another query writes"), other.claimed():
        pass
    followed.server.end_sessions(followed.login[0])
    with other.claimed():
        assert other.apply(first_of_other, [])
        # The first one lives on without knowing.
        with pytest.raises(TargetConflict, match="written by query query-2"):
            followed.database.apply(batch(1), followed.database.stage([changes([TWO])]))
    assert other.held() == HeldBatch("query-2", 0, position(1))
    followed.check()


@ON_MYSQL_TOO
def test_a_query_that_ended_gives_the_lock_back(target_server: TargetServer) -> None:
    """F34: the next query of the same process may write, whichever connections are open then."""
    followed = Followed(target_server)
    followed.database.prepare()
    for i in range(3):
        with followed.database.claimed():
            engine = followed.database._open()
            with engine.connect(), engine.connect():
                pass
            followed.apply([Item(1, i + 1, 100 + i)])
    followed.check()


@EVERYWHERE
def test_a_connection_lost_in_commit_is_looked_up(followed: Followed) -> None:
    """F34: the outcome of a COMMIT without an answer stands in the position: it is not repeated."""
    followed.apply([ONE])
    staged = followed.database.stage([changes([TWO])])
    engine = followed.database._open()
    lost: list[int] = []

    def lose_answer(connection: Connection) -> None:
        cursor = connection.connection.cursor()
        if not lost and followed.moves_position(cursor, 1):
            cursor.execute("COMMIT")
            cursor.execute("BEGIN")
            lost.append(1)
            followed.server.end_sessions(followed.login[0])

    event.listen(engine, "commit", lose_answer)
    try:
        assert followed.database.apply(batch(1), staged)
    finally:
        event.remove(engine, "commit", lose_answer)
    assert lost
    assert followed.rows("SELECT note FROM shop.items") == [("b",)]
    held = followed.database.held()
    assert held is not None
    assert held.batch_id == 1


def test_a_killed_server_asks_for_a_retry(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """F34: while the server is down the batch fails for a while; then it is applied once."""
    folder = tmp_path_factory.mktemp("killed")
    server = PostgresServer(folder, password="secret", die_with_parent=True)
    for postgres in running_postgres(server):
        followed = Followed(postgres)
        followed.database.prepare()
        with followed.database.claimed():
            followed.apply([ONE])
        staged = followed.database.stage([changes([TWO])])
        server.kill()
        with pytest.raises(Retry):
            followed.database.apply(batch(1), staged)
        server.start()
        # Unlogged tables are empty after a crash of the server: the batch is staged again.
        with pytest.raises(Retry, match="1 of 1 staged rows are gone"):
            followed.database.apply(batch(1), staged)
        followed.apply([TWO])
        followed.check()


def test_a_server_killed_in_commit_is_asked_again(start_mariadb: StartServer) -> None:
    """F34: whether the COMMIT that a crash has cut off is in the target stands in the position."""
    source = start_mariadb(("--innodb-flush-log-at-trx-commit=1",))
    followed = Followed(MysqlTargets(source))
    followed.database.prepare()
    followed.apply([ONE])
    for number, has_committed in enumerate((False, True), start=1):
        item = replace(TWO, seq=number + 1, note=str(number))
        staged = followed.database.stage([changes([item])])
        with (
            killed_in_commit(followed, source, number, has_committed=has_committed),
            pytest.raises(Retry),
        ):
            followed.database.apply(batch(number), staged)
        source.server.start()
        again = followed.database.stage([changes([item])])

        assert followed.database.apply(batch(number), again) is not has_committed
        assert followed.rows("SELECT note FROM shop.items") == [(str(number),)]


@contextmanager
def killed_in_commit(
    followed: Followed, source: DatabaseFixture, number: int, *, has_committed: bool
) -> Iterator[None]:
    """Kill the server where it is about to commit a batch, or has just done so."""
    engine = followed.database._open()
    killed: list[int] = []

    def kill(connection: Connection) -> None:
        cursor = connection.connection.cursor()
        if killed or not followed.moves_position(cursor, number):
            return
        killed.append(1)
        if has_committed:
            cursor.execute("COMMIT")
        source.server.kill()

    event.listen(engine, "commit", kill)
    try:
        yield
    finally:
        event.remove(engine, "commit", kill)
    assert killed


@contextmanager
def on_small_disk(postgres: PostgresFixture, database: str, folder: Path) -> Iterator[Path]:
    """Put a database on a disk of its own; it is dropped afterwards."""
    with small_disk(folder, DISK_BYTES) as disk:
        space = disk / "space"
        space.mkdir()
        os.chown(space, NOBODY, NOBODY)
        postgres.ask("postgres", f"CREATE TABLESPACE {database} LOCATION '{space}'")
        try:
            postgres.ask("postgres", f"ALTER DATABASE {database} SET TABLESPACE {database}")
            yield disk
        finally:
            postgres.ask("postgres", f"DROP DATABASE {database} WITH (FORCE)")
            postgres.ask("postgres", f"DROP TABLESPACE {database}")


def test_each_step_of_a_batch_may_find_the_disk_full(
    postgres: PostgresFixture, tmp_path: Path
) -> None:
    """F42: the error names database and reason; once there is room, the batch is applied once."""
    followed = Followed(postgres)
    many = [Item(i, i, 200 + i, note=str(i) * 10) for i in range(1, 500)]
    said: list[str] = []
    with on_small_disk(postgres, followed.name, tmp_path / "disk") as disk:
        followed.database.prepare()
        staged = followed.database.stage([changes(many)])
        with filled(disk, 0), pytest.raises(Retry, match="No space left on device"):
            followed.database.apply(batch(0), staged)
        for blocks in range(BLOCKS_MAX):
            followed.number = -1
            try:
                with filled(disk, blocks * BLOCK_BYTES):
                    followed.database.drop_stages()
                    followed.apply(many)
            except Retry as error:
                said.append(str(error))
            else:
                break
        followed.check()

    assert len(said) > 1
    for each in said:
        assert each.startswith(f"postgresql://127.0.0.1/{followed.name}: could not ")
        assert each.endswith("No space left on device")


def test_an_account_needs_only_the_rights_that_are_documented(postgres: PostgresFixture) -> None:
    """Without CREATE on the database two schemas that the account owns are enough."""
    followed = Followed(postgres)
    user = followed.login[0]
    with postgres.connect(followed.name) as connection:
        connection.execute(f"REVOKE CREATE ON DATABASE {followed.name} FROM {user}".encode())
        for schema in ("_shardstream", "shop"):
            connection.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {user}".encode())
    followed.database.prepare()
    with followed.database.claimed():
        followed.apply([ONE])
        followed.check()


def test_a_cancelled_statement_is_tried_again(postgres: PostgresFixture) -> None:
    """A statement_timeout ends a batch that waits for a lock; once that is gone it is applied."""
    followed = Followed(postgres)
    followed.database.prepare()
    followed.apply([ONE])
    user = followed.login[0]
    staged = followed.database.stage([changes([TWO])])
    with postgres.connect(followed.name) as administrator:
        administrator.execute(f"ALTER ROLE {user} SET statement_timeout = '500ms'".encode())
        postgres.end_sessions(user)
        with administrator.transaction():
            administrator.execute("LOCK TABLE _shardstream.position")
            with pytest.raises(Retry, match="statement timeout"):
                followed.database.apply(batch(1), staged)
        administrator.execute(f"ALTER ROLE {user} RESET statement_timeout".encode())
    postgres.end_sessions(user)

    assert followed.database.apply(batch(1), staged)


@ON_MYSQL_TOO
def test_two_first_starts_wait_for_each_other(target_server: TargetServer) -> None:
    """The second one finds what the first one is about to create and store."""
    followed = Followed(target_server)
    other = SqlDatabase(followed.url, followed.options)
    begun = {"deletes": "hard", "schema": ""}
    with ThreadPoolExecutor(1) as pool:
        with followed.database._transaction() as connection:
            followed.database._catalog.create(connection)
            followed.database._catalog.settle_options(connection, begun)
            second = pool.submit(other.prepare)
            while not _is_waiting(followed):
                assert not second.done()
        second.result(120)

    assert other.held() is None


@pytest.mark.parametrize("target_server", ["mysql_a"], indirect=True)
def test_two_followers_register_tables_at_the_same_moment(target_server: TargetServer) -> None:
    """The second one runs its batch again; its position has not moved without the batch's rows."""
    followed = Followed(target_server)
    followed.database.prepare()
    staged = followed.database.stage([changes([ONE])])
    other = SqlDatabase(followed.url, DatabaseOptions("other"))
    with ThreadPoolExecutor(1) as pool:
        with other._transaction() as connection:
            other._catalog.add_table(
                *(connection, ("shop", "parts")),
                schema=followed.name,
                name="parts",
                shape=ITEMS,
                state="following",
            )
            second = pool.submit(followed.database.apply, batch(0), staged)
            while not _is_waiting(followed):
                assert not second.done()
        with pytest.raises(Retry, match="another follower was quicker"):
            second.result(120)

    assert followed.database.held() is None
    followed.apply([ONE])
    assert followed.rows("SELECT id FROM shop.items") == [(ONE.key,)]


@ON_MYSQL_TOO
def test_silent_connections_are_kept_alive(target_server: TargetServer) -> None:
    """A server that is gone is noticed within minutes, and firewalls see the connection in use."""
    followed = Followed(target_server)
    with followed.database._transaction() as connection:
        driver = cast("Any", connection.connection.driver_connection)
        number = driver._sock.fileno() if hasattr(driver, "_sock") else driver.fileno()
        with socket.socket(fileno=os.dup(number)) as sock:
            idle_s = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            is_on = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    assert (is_on, idle_s) == (1, 60)


@pytest.mark.parametrize("target_server", ["mysql_a", "mariadb_a"], indirect=True)
def test_only_the_connection_with_the_lock_may_be_silent_for_long(
    target_server: TargetServer,
) -> None:
    """Once it has given the lock back, the server closes it as any other."""
    followed = Followed(target_server)
    followed.database.prepare()
    asked = "SELECT @@SESSION.wait_timeout = @@GLOBAL.wait_timeout"
    with followed.database.claimed():
        pass
    with followed.database._transaction() as one, followed.database._transaction() as two:
        assert [rows_of(each, asked) for each in (one, two)] == [[(1,)], [(1,)]]


def _is_waiting(followed: Followed) -> bool:
    """Whether a session of the follower waits for a lock; on MySQL, to insert a row."""
    user = followed.login[0]
    if isinstance(followed.server, PostgresFixture):
        waiting = f"usename = '{user}' AND wait_event_type = 'Lock'"
        return bool(followed.rows(f"SELECT 1 FROM pg_stat_activity WHERE {waiting}"))
    inserting = f"user = '{user}' AND info LIKE 'INSERT INTO%'"
    listed = followed.rows(f"SELECT 1 FROM information_schema.processlist WHERE {inserting}")
    # What is listed may be a statement that goes through.
    [(_, waits)] = followed.rows("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
    return bool(listed) and int(waits) > 0
