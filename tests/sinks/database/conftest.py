"""A second database on one of the session's servers."""

from collections.abc import Iterator

import pytest

from tests.database_servers import DatabaseFixture
from tests.postgres_servers import PostgresFixture
from tests.sinks.database.followed import Followed, TargetServer
from tests.sinks.database.mysql_targets import MysqlTargets


@pytest.fixture
def target_server(
    real_servers: None,
    request: pytest.FixtureRequest,
) -> TargetServer:
    """The PostgreSQL server, or the target that a test's marks name."""
    found = request.getfixturevalue(getattr(request, "param", "postgres"))
    if isinstance(found, DatabaseFixture):
        return MysqlTargets(found)
    assert isinstance(found, PostgresFixture)
    return found


@pytest.fixture
def followed(target_server: TargetServer) -> Iterator[Followed]:
    """A database in which nothing is yet, written by an account with the documented rights."""
    found = Followed(target_server)
    found.database.prepare()
    with found.database.claimed():
        yield found
