"""Real servers for all tests: started when asked for, shared by the session, dead with pytest."""

import secrets
import shutil
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import pytest

from databases.server_facts import version_of
from shardstream.local.database_server import (
    NOT_DURABLE,
    Account,
    DatabaseServer,
    MariadbServer,
    MysqlServer,
)
from shardstream.local.kafka_cluster import KafkaCluster

# Distinct ids, none of which a producer under test would choose.
SERVER_IDS = {"mysql_a": 9001, "mysql_b": 9002, "mariadb_a": 9003}
SERVER_ID_FIRST_OWN = 9100


class DatabaseFixture:
    """A running server: root connections, a replication account, fresh schema names."""

    def __init__(self, server: DatabaseServer) -> None:
        """Take a server that runs."""
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
        """Create a schema with a name of its own and give the name."""
        name = f"db_{secrets.token_hex(4)}"
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        return name


StartServer = Callable[..., DatabaseFixture]


def _own_account() -> Account:
    return Account("shardstream", secrets.token_hex(8))


def _running(server: DatabaseServer) -> Iterator[DatabaseFixture]:
    try:
        server.start()
        yield DatabaseFixture(server)
    finally:
        _end(server)


def _end(server: DatabaseServer) -> None:
    """The log stays for whoever looks into a failure; 100 MB of data a server need not."""
    server.kill()
    if server.datadir.exists():
        shutil.rmtree(server.datadir)


def _shared(
    kind: type[DatabaseServer], name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DatabaseFixture]:
    yield from _running(
        kind(
            tmp_path_factory.mktemp(name),
            server_id=SERVER_IDS[name],
            account=_own_account(),
            extra_args=NOT_DURABLE,
            die_with_parent=True,
        )
    )


@pytest.fixture(scope="session")
def mysql_a(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseFixture]:
    """A MySQL server."""
    yield from _shared(MysqlServer, "mysql_a", tmp_path_factory)


@pytest.fixture(scope="session")
def mysql_b(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseFixture]:
    """A second MySQL server."""
    yield from _shared(MysqlServer, "mysql_b", tmp_path_factory)


@pytest.fixture(scope="session")
def mariadb_a(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseFixture]:
    """A MariaDB server."""
    yield from _shared(MariadbServer, "mariadb_a", tmp_path_factory)


@pytest.fixture(params=["mysql_a", "mariadb_a"])
def database(request: pytest.FixtureRequest) -> DatabaseFixture:
    """A server of each family in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, DatabaseFixture)
    return found


def _starter(
    kind: type[DatabaseServer], folder: Path, started: list[DatabaseServer]
) -> StartServer:
    def start(extra_args: tuple[str, ...] = ()) -> DatabaseFixture:
        server = kind(
            folder / f"{kind.flavor}-{len(started)}",
            server_id=SERVER_ID_FIRST_OWN + len(started),
            account=_own_account(),
            extra_args=(*NOT_DURABLE, *extra_args),
            die_with_parent=True,
        )
        started.append(server)
        server.start()
        return DatabaseFixture(server)

    return start


@pytest.fixture
def start_mysql(tmp_path: Path) -> Iterator[StartServer]:
    """Start a MySQL server with settings of the test's own; it ends with the test."""
    started: list[DatabaseServer] = []
    yield _starter(MysqlServer, tmp_path, started)
    for server in started:
        _end(server)


@pytest.fixture
def start_mariadb(tmp_path: Path) -> Iterator[StartServer]:
    """Start a MariaDB server with settings of the test's own; it ends with the test."""
    started: list[DatabaseServer] = []
    yield _starter(MariadbServer, tmp_path, started)
    for server in started:
        _end(server)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A Kafka broker."""
    yield from _cluster(1, tmp_path_factory)


@pytest.fixture(scope="session")
def kafka3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three Kafka brokers with replication; a test that stops one starts it again."""
    yield from _cluster(3, tmp_path_factory)


def _cluster(brokers: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    folder = tmp_path_factory.mktemp(f"kafka{brokers}")
    cluster = KafkaCluster(folder, brokers=brokers, die_with_parent=True)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture
def keyspace() -> str:
    """A keyspace name that no other test has, so its topics are its own."""
    return f"ks{secrets.token_hex(4)}"
