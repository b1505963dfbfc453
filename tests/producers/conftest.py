"""Servers of either family, and those for the cases of tests/cases."""

from collections.abc import Iterator

import pytest

from event_token import Flavor
from shardstream.local.database_server import MariadbServer, MysqlServer
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.decoder.case_files import Case
from tests.producers.own_servers import OwnServers


@pytest.fixture(scope="module")
def own_servers(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OwnServers]:
    """Servers that the cases of a module have started."""
    kinds = {Flavor.MYSQL: MysqlServer, Flavor.MARIADB: MariadbServer}
    servers = OwnServers(tmp_path_factory.mktemp("cases"), kinds)
    yield servers
    servers.end()


@pytest.fixture(scope="module")
def minimal(own_servers: OwnServers) -> DatabaseFixture:
    """A server that logs no names, as Azure has it."""
    return own_servers.with_options(Flavor.MYSQL, ("--binlog-row-metadata=MINIMAL",))


@pytest.fixture
def server_of_case(
    case: Case, own_servers: OwnServers, request: pytest.FixtureRequest
) -> DatabaseFixture:
    """The server on which a case runs: a shared one, or one with the options of its server.cnf."""
    if case.server_options:
        return own_servers.with_options(case.flavor, case.server_options)
    name = "mysql_a" if case.flavor is Flavor.MYSQL else "mariadb_a"
    found = request.getfixturevalue(name)
    assert isinstance(found, DatabaseFixture)
    return found


@pytest.fixture(params=["mysql", "mariadb"])
def start_server(real_servers: None, request: pytest.FixtureRequest) -> StartServer:
    """Start servers of each family in turn."""
    found: StartServer = request.getfixturevalue(f"start_{request.param}")
    return found
