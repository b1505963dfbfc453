"""A second database on one of the session's servers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_consumers.second_database import database, urls
from spark_consumers.second_database.general.dialect import GeneralDialect
from tests.database_servers import DatabaseFixture
from tests.postgres_servers import PostgresFixture
from tests.spark_consumers.second_database.followed import Followed, TargetServer
from tests.spark_consumers.second_database.general_targets import FileTargets, StandardTargets
from tests.spark_consumers.second_database.mysql_targets import MysqlTargets


@pytest.fixture
def target_server(
    real_servers: None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> TargetServer:
    """The PostgreSQL server, or the target that a test's marks name.

    `standard` is PostgreSQL as well, but as a database of which only SQLAlchemy's dialect is known.
    """
    name = getattr(request, "param", "postgres")
    if name in urls.GENERAL:
        return FileTargets(name, tmp_path)
    if name == "standard":
        monkeypatch.setattr(database, "dialect_of", _standard)
        return StandardTargets(request.getfixturevalue("postgres"))
    found = request.getfixturevalue(name)
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


def _standard(url: str, **_options: Any) -> GeneralDialect:
    return GeneralDialect(urls.parse_url(url).set(drivername="postgresql+psycopg"))
