"""A primary and its replica of each family, for all tests of this folder."""

from collections.abc import Iterator

import pytest

from shardstream.local.database_server import LocalDatabase, MariadbServer, MysqlServer
from tests.caching.reading.reading import Pair, allow_reads
from tests.database_servers import DatabaseFixture, StartServer, end
from tests.producers.servers.replication import start_pair, wait_same

KINDS = {"mysql": MysqlServer, "mariadb": MariadbServer}
# Appliers beside each other, as replicas of busy primaries have them: MySQL's default.
OPTIONS = {
    "mysql": (),
    "mariadb": ("--slave-parallel-threads=4", "--slave-parallel-mode=optimistic"),
}


@pytest.fixture(scope="module", params=sorted(KINDS))
def servers(
    real_servers: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[DatabaseFixture, DatabaseFixture]]:
    """The two servers; a test that changes their replication changes it back."""
    started: list[LocalDatabase] = []
    folder = tmp_path_factory.mktemp(request.param)
    start = StartServer(KINDS[request.param], folder, started)
    yield start_pair(start, OPTIONS[request.param])
    for server in started:
        end(server)


@pytest.fixture
def pair(servers: tuple[DatabaseFixture, DatabaseFixture]) -> Pair:
    """The two servers with a new table, which the replica has."""
    primary, replica = servers
    with primary.one_table() as (name, _):
        allow_reads(primary, name)
    wait_same(replica, primary)
    return Pair(primary, replica, name)
