"""Ends connections of an account, as servers do not when the account changes."""

from contextlib import suppress

from pymysql.err import OperationalError

from tests.database_servers import DatabaseFixture


def end_sessions(database: DatabaseFixture, user: str) -> None:
    """Kill the account's connections."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", (user,))
        for (each,) in cursor.fetchall():
            with suppress(OperationalError):  # it has ended by itself
                cursor.execute("KILL %s", (each,))
