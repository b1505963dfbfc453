"""Servers that only the tests of resharding need."""

from collections.abc import Iterator

import pytest

from resharding.switch import opening
from shardstream.local.database_server import (
    NOT_DURABLE,
    LocalDatabase,
    MariadbServer,
    MysqlServer,
)
from tests.database_servers import DatabaseFixture, own_account, running


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine producers and appliers take their time; a test may take its own limit."""
    monkeypatch.setattr(opening, "READY_S_MAX", 60.0)


@pytest.fixture(scope="session")
def mysql_c(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DatabaseFixture]:
    """A third MySQL server."""
    yield from _running(MysqlServer, tmp_path_factory, 9004)


@pytest.fixture(scope="session")
def mariadb_b(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DatabaseFixture]:
    """A second MariaDB server."""
    yield from _running(MariadbServer, tmp_path_factory, 9005)


@pytest.fixture(scope="session")
def mariadb_c(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DatabaseFixture]:
    """A third MariaDB server."""
    yield from _running(MariadbServer, tmp_path_factory, 9006)


def _running(
    kind: type[LocalDatabase], tmp_path_factory: pytest.TempPathFactory, server_id: int
) -> Iterator[DatabaseFixture]:
    yield from running(
        kind(
            tmp_path_factory.mktemp(f"server_{server_id}"),
            server_id=server_id,
            account=own_account(),
            extra_args=NOT_DURABLE,
            die_with_parent=True,
        )
    )


@pytest.fixture
def servers(
    mysql_a: DatabaseFixture, mysql_b: DatabaseFixture, mysql_c: DatabaseFixture
) -> list[DatabaseFixture]:
    """Three MySQL servers: enough to split a shard or to merge two."""
    return [mysql_a, mysql_b, mysql_c]


@pytest.fixture
def mariadb_servers(
    mariadb_a: DatabaseFixture, mariadb_b: DatabaseFixture, mariadb_c: DatabaseFixture
) -> list[DatabaseFixture]:
    """Three MariaDB servers. What matters to a family is tested on both, one server each."""
    return [mariadb_a, mariadb_b, mariadb_c]


@pytest.fixture
def clean_servers(servers: list[DatabaseFixture]) -> list[DatabaseFixture]:
    """The three servers, cleared of what earlier reshards left."""
    for database in servers:
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS _shardstream")
    return servers
