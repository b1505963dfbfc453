"""A batch is in the target once, whatever is repeated, lost or run twice."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.engine.interfaces import DBAPICursor

from event_token.errors import Retry
from shardstream.local.postgres_server import PostgresServer
from spark_consumers.errors import TargetConflict
from spark_consumers.second_database.database import SqlDatabase
from spark_consumers.sink_query.resume import TargetState
from tests.postgres_servers import PostgresFixture, running_postgres
from tests.spark_consumers.second_database.followed import (
    EVERYWHERE,
    ON_MYSQL_TOO,
    Followed,
    Item,
    TargetServer,
    batch,
    changes,
    position,
)

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
    assert other.held() == TargetState("query-2", 0, position(1))
    followed.check()


@ON_MYSQL_TOO
def test_a_query_that_ended_gives_the_lock_back(target_server: TargetServer) -> None:
    """F34: the next query of the same process may write, whichever connections are open then."""
    followed = Followed(target_server)
    followed.database.prepare()
    for i in range(3):
        with followed.database.claimed():
            with followed.database._transaction(), followed.database._transaction():
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
        if not lost and _moves_position(followed, cursor):
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


def test_two_first_starts_wait_for_each_other(postgres: PostgresFixture) -> None:
    """The second one finds the schema that the first one is about to create."""
    followed = Followed(postgres)
    user = followed.login[0]
    waiting = f"usename = '{user}' AND wait_event_type = 'Lock'"
    other = SqlDatabase(followed.url, followed.options)
    with ThreadPoolExecutor(1) as pool:
        with followed.database._transaction() as connection:
            followed.database._catalog.create(connection)
            second = pool.submit(other.prepare)
            while not followed.rows(f"SELECT 1 FROM pg_stat_activity WHERE {waiting}"):
                assert not second.done()
        second.result(120)

    assert other.held() is None


def _moves_position(followed: Followed, cursor: DBAPICursor) -> bool:
    """Whether the transaction has moved the position to batch 1."""
    cursor.execute(f"SELECT batch FROM {followed.database._dialect.internal('position')}")
    return [row[0] for row in cursor.fetchall()] == [1]
