"""Servers that only the tests of resharding need."""

from collections.abc import Iterator

import pytest

from shardstream.local.database_server import NOT_DURABLE, MysqlServer
from tests.database_servers import DatabaseFixture, own_account, running


@pytest.fixture(scope="session")
def mysql_c(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DatabaseFixture]:
    """A third MySQL server."""
    yield from running(
        MysqlServer(
            tmp_path_factory.mktemp("mysql_c"),
            server_id=9004,
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
def clean_servers(servers: list[DatabaseFixture]) -> list[DatabaseFixture]:
    """The three servers, cleared of what earlier reshards left."""
    for database in servers:
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS _shardstream")
    return servers
