"""Servers for the cases of tests/cases."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from event_token import Flavor
from shardstream.local.database_server import (
    NOT_DURABLE,
    Account,
    DatabaseServer,
    MariadbServer,
    MysqlServer,
)
from tests.database_servers import DatabaseFixture, end
from tests.producers.decoder.case_files import Case

FIRST_SERVER_ID = 9200


class OwnServers:
    """Servers with options of their own, each started for the first case that asks for it."""

    def __init__(self, folder: Path, kinds: Mapping[Flavor, type[DatabaseServer]]) -> None:
        self._folder = folder
        self._kinds = kinds
        self._started: list[DatabaseServer] = []
        self.running: dict[tuple[Flavor, tuple[str, ...]], DatabaseFixture] = {}

    def with_options(self, flavor: Flavor, options: tuple[str, ...]) -> DatabaseFixture:
        found = self.running.get((flavor, options))
        if found is None:
            number = len(self._started)
            server = self._kinds[flavor](
                self._folder / str(number),
                server_id=FIRST_SERVER_ID + number,
                account=Account("shardstream", "of this test alone"),
                extra_args=(*NOT_DURABLE, *options),
                die_with_parent=True,
            )
            self._started.append(server)
            server.start()
            found = self.running[flavor, options] = DatabaseFixture(server)
        return found

    def end(self) -> None:
        for server in self._started:
            end(server)


@pytest.fixture(scope="module")
def own_servers(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OwnServers]:
    """Those that the cases of a module have asked for."""
    kinds = {Flavor.MYSQL: MysqlServer, Flavor.MARIADB: MariadbServer}
    servers = OwnServers(tmp_path_factory.mktemp("cases"), kinds)
    yield servers
    servers.end()


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
