"""A real PostgreSQL server for tests: started on demand, killed with pytest."""

import secrets
import shutil
from collections.abc import Iterator
from typing import Any

import psycopg

from shardstream.local.postgres_server import PostgresServer


class PostgresFixture:
    """A running server: connections of its superuser, and databases of unique names."""

    def __init__(self, server: PostgresServer) -> None:
        """Wrap a running server."""
        self.server = server
        self.host = server.host
        self.port = server.port
        self.user = server.user
        self.password = server.password

    def connect(self, database: str = "postgres", **arguments: Any) -> psycopg.Connection[Any]:
        """Connect as superuser with autocommit; `arguments` are psycopg's and take precedence."""
        chosen = {"user": self.user, "password": self.password, "autocommit": True, **arguments}
        return psycopg.connect(host=self.host, port=self.port, dbname=database, **chosen)

    def ask(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as superuser; return its rows, none if it has none."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def end_sessions(self, user: str) -> None:
        """End the sessions of an account, as the death of its process would, and wait for it."""
        mine = f"FROM pg_stat_activity WHERE usename = '{user}'"
        self.ask("postgres", f"SELECT pg_terminate_backend(pid) {mine}")
        while self.ask("postgres", f"SELECT 1 {mine}"):
            pass

    def new_database(self) -> str:
        """Create a database with a unique name and return the name."""
        name = f"db_{secrets.token_hex(4)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return name

    def new_login(self, database: str) -> tuple[str, str]:
        """Create an account that may connect and create schemas in a database; name, password."""
        name, password = f"follower_{secrets.token_hex(4)}", secrets.token_hex(8)
        with self.connect() as connection:
            connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'".encode())
            connection.execute(f"GRANT CONNECT, CREATE ON DATABASE {database} TO {name}".encode())
        return name, password

    def url(self, database: str, user: str | None = None, password: str | None = None) -> str:
        """The URL of a database, by default as superuser."""
        login = f"{user or self.user}:{password or self.password}"
        return f"postgresql://{login}@{self.host}:{self.port}/{database}"


def running_postgres(server: PostgresServer) -> Iterator[PostgresFixture]:
    """Start a server and end it when the generator is closed; its log stays."""
    try:
        server.start()
        yield PostgresFixture(server)
    finally:
        server.kill()
        if server.datadir.exists():
            shutil.rmtree(server.datadir)
