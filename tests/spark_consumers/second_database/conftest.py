"""A second database on the session's PostgreSQL server."""

from collections.abc import Iterator

import pytest

from tests.postgres_servers import PostgresFixture
from tests.spark_consumers.second_database.followed import Followed


@pytest.fixture
def followed(postgres: PostgresFixture) -> Iterator[Followed]:
    """A database in which nothing is yet, written by an account with the documented rights."""
    found = Followed(postgres)
    found.database.prepare()
    with found.database.claimed():
        yield found
