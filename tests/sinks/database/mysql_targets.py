"""The session's MySQL and MariaDB servers as second databases."""

import secrets
from contextlib import suppress
from typing import Any

from pymysql.err import OperationalError

from tests.database_servers import DatabaseFixture

# What docs/second-database.md asks for.
RIGHTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, CREATE TEMPORARY TABLES"


class MysqlTargets:
    """A server: databases of unique names, and accounts with the documented rights."""

    def __init__(self, server: DatabaseFixture) -> None:
        """Wrap a running server."""
        self.server = server

    def new_database(self) -> str:
        """Create a database with a unique name and return the name.

        Its default is the character set that MariaDB's had for long, which lacks most characters.
        """
        name = self.server.new_database()
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} CHARACTER SET latin1")
        return name

    def new_login(self, database: str) -> tuple[str, str]:
        """Create an account with rights on a database; name, password."""
        name, password = f"follower_{secrets.token_hex(4)}", secrets.token_hex(8)
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE USER {name}@'%' IDENTIFIED BY '{password}'")
            cursor.execute(f"GRANT {RIGHTS} ON {database}.* TO {name}@'%'")
        return name, password

    def url(self, database: str, user: str, password: str) -> str:
        """The URL of a database."""
        host = f"{self.server.host}:{self.server.server.port}"
        return f"{self.server.flavor.value}://{user}:{password}@{host}/{database}"

    def ask(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as root, written in PostgreSQL's words; return its rows."""
        own = statement.replace("_shardstream.", "_shardstream_").replace("shop.", "")
        with (
            self.server.connect(database=database, autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(own.replace('"', "`"))
            return list(cursor.fetchall())

    def end_sessions(self, user: str) -> None:
        """End the sessions of an account, as the death of its process would, and wait for it."""
        query = f"SELECT id FROM information_schema.processlist WHERE user = '{user}'"
        while found := self.ask("mysql", query):
            for (number,) in found:
                with suppress(OperationalError):  # it has ended by itself
                    self.ask("mysql", f"KILL {number}")
