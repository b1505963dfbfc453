"""What a server's errors mean to all who ask it."""

import pytest
from pymysql.err import MySQLError

from caching.reading.connections import OpenConnection
from databases.connection import server_errors
from databases.errors import ServerLost
from event_token.errors import Retry
from producers.copy.chunk import ChunkJob
from producers.copy.chunk_reader import _table_errors
from producers.copy.definition import CannotCopy, ChunkSpoiled
from resharding.apply.target_session import TargetSession
from sinks.database.urls import dialect_of
from tests.database_servers import DatabaseFixture
from tests.resharding.accounts import resharder_of
from tests.server_error_codes import error_statement

# The connection is at its end: shutdown, the server ends itself, no thread, too many connections
# of the account, offline, killed, silent for too long.
LOST = (1040, 1053, 1135, 1184, 1203, 1226, 1598, 1927, 3032, 3169, 4031)
# Undone: changed meanwhile, memory, COMMIT failed, locks, time limits, a replication group.
UNDONE = (1020, 1041, 1180, 1205, 1213, 1317, 1412, 1615, 1969, 3024, 3100, 3101, 3797)
READ_ONLY = (1290, 1792, 1836, 1874)
# A key twice, no such table, a value that does not fit.
MISTAKES = (1062, 1146, 1366)
JOB = ChunkJob("shop", "orders", "", None, False, 10, "")


def test_an_outage_is_one_to_all_who_ask(database: DatabaseFixture) -> None:
    """Producers, copies, appliers, sinks and readers of caches agree on what will pass."""
    server = resharder_of(database, "-")
    url = f"{database.flavor}://{server.user}:{server.password}@{server.host}:{server.port}/mysql"
    dialect = dialect_of(url)
    session = TargetSession(server)
    try:
        for code in (*LOST, *UNDONE, *READ_ONLY):
            statement = error_statement(code)
            with pytest.raises(ServerLost), server_errors(server, "asking"):
                session.connection.query(statement)
            with pytest.raises((MySQLError, ChunkSpoiled)), _table_errors("shop.orders", JOB):
                session.connection.query(statement)
            with pytest.raises(Retry), dialect.connected() as connection:
                connection.exec_driver_sql(statement)
        for code in LOST:
            with pytest.raises(ServerLost):
                OpenConnection(session.connection).ask(error_statement(code))
    finally:
        session.close()


def test_a_mistake_is_no_outage(database: DatabaseFixture) -> None:
    """What no repetition changes is shown instead of being repeated."""
    server = resharder_of(database, "-")
    session = TargetSession(server)
    try:
        for code in MISTAKES:
            statement = error_statement(code)
            with pytest.raises(MySQLError), server_errors(server, "asking"):
                session.connection.query(statement)
            with pytest.raises(CannotCopy), _table_errors("shop.orders", JOB):
                session.connection.query(statement)
            with pytest.raises(MySQLError):
                OpenConnection(session.connection).ask(statement)
        for code in UNDONE:  # the connection is good
            with pytest.raises(MySQLError):
                OpenConnection(session.connection).ask(error_statement(code))
    finally:
        session.close()


@pytest.mark.parametrize("code", [1598, 1105])
def test_an_applier_looks_at_its_checkpoint_after_any_error_of_commit(
    code: int, database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It connects again, where an error of a row would stop it."""
    session = TargetSession(resharder_of(database, "-"))
    try:
        fails = lambda: session.connection.query(error_statement(code))  # noqa: E731
        monkeypatch.setattr(session.connection, "commit", fails)
        with pytest.raises(ServerLost, match=f"committing on .*server error {code}"):
            session.commit()
    finally:
        session.close()
