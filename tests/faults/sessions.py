"""Accounts whose passwords change, and the ends of their connections, which servers keep."""

import secrets
from contextlib import suppress

from pymysql.err import OperationalError

from event_token import Flavor
from shardstream.local.database_server import GRANTS, MARIADB_GRANTS
from tests.database_servers import DatabaseFixture

PASSWORD = "Marker-Passw0rd"


def new_account(database: DatabaseFixture) -> tuple[str, str, tuple[str, str]]:
    """A user, its account, and the statements that make it a producer's with PASSWORD."""
    user = f"u_{secrets.token_hex(4)}"
    account = f"'{user}'@'{database.host}'"
    grants = MARIADB_GRANTS if database.flavor is Flavor.MARIADB else GRANTS
    create = f"CREATE USER {account} IDENTIFIED BY '{PASSWORD}'"
    return user, account, (create, f"GRANT {grants} ON *.* TO {account}")


def end_sessions(database: DatabaseFixture, user: str) -> None:
    """Kill the account's connections."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", (user,))
        for (each,) in cursor.fetchall():
            with suppress(OperationalError):  # it has ended by itself
                cursor.execute("KILL %s", (each,))
