"""Real database servers for tests: started on demand, killed with pytest."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from pymysql.cursors import Cursor

from databases.server_facts import version_of
from shardstream.local.database_server import NOT_DURABLE, LocalAccount, LocalDatabase

SERVER_ID_FIRST_OWN = 9100


class DatabaseFixture:
    """A running server: root connections, a replication account, fresh schema names."""

    def __init__(self, server: LocalDatabase) -> None:
        """Wrap a running server."""
        self.server = server
        self.flavor = server.flavor
        self.host = server.host
        self.port = server.port
        self.root_user = server.root_user
        self.user = server.user
        self.password = server.password
        self.connect = server.connect

    @cached_property
    def version(self) -> tuple[int, int, int]:
        """The server's version."""
        return version_of(self.server.binaries().version)

    def new_database(self) -> str:
        """Create a schema with a unique name and return the name."""
        name = f"db_{secrets.token_hex(4)}"
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        return name

    @contextmanager
    def one_table(self) -> Iterator[tuple[str, Cursor]]:
        """A new schema with the table `t (id INT PRIMARY KEY)`, and a cursor in it."""
        name = self.new_database()
        with self.connect(database=name) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
            yield name, cursor


def own_account() -> LocalAccount:
    """A replication account with a password of this session."""
    return LocalAccount("shardstream", secrets.token_hex(8))


def running(server: LocalDatabase) -> Iterator[DatabaseFixture]:
    """Start a server and end it when the generator is closed."""
    try:
        server.start()
        yield DatabaseFixture(server)
    finally:
        end(server)


def end(server: LocalDatabase) -> None:
    """Kill a server and remove its 100 MB of data; its log stays, to explain a failure."""
    server.kill()
    if server.datadir.exists():
        shutil.rmtree(server.datadir)


class StartServer:
    """Starts servers of one kind, with settings of their own, and adds them to `started`."""

    def __init__(
        self, kind: type[LocalDatabase], folder: Path, started: list[LocalDatabase]
    ) -> None:
        """Start nothing yet. Each server gets a folder in `folder`."""
        self._kind = kind
        self._folder = folder
        self._started = started

    def __call__(self, extra_args: tuple[str, ...] = ()) -> DatabaseFixture:
        """Start one server; `extra_args` take precedence."""
        [found] = self.together(1, extra_args)
        return found

    def together(self, count: int, extra_args: tuple[str, ...] = ()) -> list[DatabaseFixture]:
        """Start this number of servers side by side."""
        servers = [self._launched(extra_args) for _ in range(count)]
        for server in servers:
            server.finish_start()
        return [DatabaseFixture(server) for server in servers]

    def _launched(self, extra_args: tuple[str, ...]) -> LocalDatabase:
        number = len(self._started)
        server = self._kind(
            self._folder / f"{self._kind.flavor}-{number}",
            server_id=SERVER_ID_FIRST_OWN + number,
            account=own_account(),
            extra_args=(*NOT_DURABLE, *extra_args),
            die_with_parent=True,
        )
        self._started.append(server)
        server.launch()
        return server
