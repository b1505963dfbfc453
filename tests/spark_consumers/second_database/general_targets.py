"""Second databases that are reached in the general way."""

import secrets
from pathlib import Path
from typing import Any

from sqlalchemy import text

from spark_consumers.second_database.urls import dialect_of
from tests.postgres_servers import PostgresFixture


class FileTargets:
    """Files of SQLite or DuckDB in one folder."""

    def __init__(self, kind: str, folder: Path) -> None:
        """`kind`: as in the URL."""
        self.kind = kind
        self.folder = folder

    def new_database(self) -> str:
        """Return a unique name; the file is created by whoever opens it."""
        return f"db_{secrets.token_hex(4)}"

    def new_login(self, database: str) -> tuple[str, str]:
        """Return nothing that is used: files have no accounts."""
        return database, ""

    def url(self, database: str, *_login: str) -> str:
        """The URL of a database."""
        return f"{self.kind}:///{self.folder / database}"

    def ask(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement written in PostgreSQL's words; return its rows."""
        own = _in_default_schema(statement)
        engine = dialect_of(self.url(database)).open_engine()
        with engine.begin() as connection:
            found = connection.execute(text(own.replace("x:y", "x\\:y")))
            rows = [tuple(row) for row in found.all()] if found.returns_rows else []
        engine.dispose()
        return rows

    def end_sessions(self, user: str) -> None:
        """Fail: the only session is this process."""
        raise NotImplementedError(user)


class StandardTargets:
    """PostgreSQL as a database of which only SQLAlchemy's dialect is known."""

    def __init__(self, server: PostgresFixture) -> None:
        """Wrap a running server."""
        self.server = server
        self.new_database = server.new_database
        self.url = server.url
        self.end_sessions = server.end_sessions

    def new_login(self, database: str) -> tuple[str, str]:
        """Create an account that may create tables; name, password."""
        name, password = self.server.new_login(database)
        self.server.ask(database, f"GRANT CREATE ON SCHEMA public TO {name}")
        return name, password

    def ask(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as superuser; return its rows."""
        return self.server.ask(database, _in_default_schema(statement))


def _in_default_schema(statement: str) -> str:
    return statement.replace("_shardstream.", "_shardstream_").replace("shop.", "")
