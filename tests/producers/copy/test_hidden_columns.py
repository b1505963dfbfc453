"""A copy by an account that may not read everything: what it cannot see is named."""

from dataclasses import dataclass

import pytest

from producers.copy.chunk import ChunkJob
from producers.copy.chunk_reader import ChunkReader
from producers.copy.definition import CannotCopy
from producers.copy.requests import Inspection, inspect
from producers.filters.rules import FilterSettings, TablePattern
from producers.settings import ServerSettings
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.statements_apart import new_account
from tests.producers.servers.replication import statements
from tests.producers.session.producing import settings_alone
from topics.progress.copy_topic import CopyAction, CopyRequest

TABLE = "CREATE TABLE {name}.{table} (id INT PRIMARY KEY, v INT, secret INT, late INT INVISIBLE)"
REPLICATION = "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"


@dataclass(frozen=True)
class Restricted:
    """A server whose database `name` has the tables t and u, and an account with few grants."""

    database: DatabaseFixture
    name: str
    user: str

    @property
    def server(self) -> ServerSettings:
        """The server with that account."""
        return ServerSettings(self.database.host, self.database.port, self.user, self.user)

    def grant(self, *grants: str) -> None:
        """Grant what is named, on t unless it says on what."""
        statements(
            self.database,
            *(
                f"GRANT {each if ' ON ' in each else f'{each} ON {self.name}.t'} TO {self.user}@'%'"
                for each in grants
            ),
        )

    def asked(self, *tables: str, include: str = "") -> Inspection:
        """What a producer of this account says to a request to copy these tables, or all."""
        patterns = (TablePattern(include),) if include else ()
        settings = settings_alone(
            self.database, servers=(self.server,), filters=FilterSettings(include=patterns)
        )
        request = CopyRequest(CopyAction.START, tuple(f"{self.name}.{each}" for each in tables))
        return inspect(self.server, settings, request)

    def read(self) -> None:
        """Read the rows of t."""
        reader = ChunkReader(settings_alone(self.database, servers=(self.server,)), self.server)
        try:
            reader.read(ChunkJob(self.name, "t", "", None, False, 10, ""))
        finally:
            reader.close()


@pytest.fixture
def restricted(database: DatabaseFixture) -> Restricted:
    """Two tables, and an account that may not read them yet."""
    name = database.new_database()
    statements(database, *(TABLE.format(name=name, table=table) for table in ("t", "u")))
    return Restricted(database, name, new_account(database, REPLICATION))


@pytest.mark.parametrize("columns", ["id, v", "id, v, secret", "secret, id, v"])
def test_a_table_with_columns_that_the_account_cannot_see_is_not_copied(
    restricted: Restricted, columns: str
) -> None:
    """The catalog leaves such columns out: their values would be NULL in each copied row."""
    restricted.grant(f"SELECT ({columns})")

    [problem] = restricted.asked("t").problems

    assert f"GRANT SELECT ON `{restricted.name}`.`t` TO '{restricted.user}'@'%'" in problem
    with pytest.raises(CannotCopy, match="may read only some of its columns"):
        restricted.read()
    restricted.grant("SELECT")
    assert restricted.asked("t").problems == ()
    restricted.read()


def test_a_definition_that_is_no_text_is_shown_all_the_same(restricted: Restricted) -> None:
    """MariaDB shows a default of bytes as it is: the rows can be copied, and are."""
    default = f"ALTER TABLE {restricted.name}.t ADD b BINARY(3) DEFAULT 0xFF00AA"
    statements(restricted.database, default)
    restricted.grant("SELECT")

    assert restricted.asked("t").problems == ()
    restricted.read()


def test_a_column_that_the_account_may_write_alone_is_named(restricted: Restricted) -> None:
    """With another privilege on the table the catalog lists it, and the server refuses to read."""
    restricted.grant("SELECT (id, v)", "INSERT")

    with pytest.raises(CannotCopy, match=r"SELECT command denied.*'secret'"):
        restricted.read()


def test_a_copy_of_all_tables_says_what_the_account_cannot_see(restricted: Restricted) -> None:
    """The catalog does not list u at all. SELECT on all that the log may have is enough."""
    name = restricted.name
    restricted.grant("SELECT")

    seen = restricted.asked()
    limited = restricted.asked(include=rf"/{name}\..*/")

    assert seen.tables == limited.tables == ((name, "t"),)
    for each in (seen, limited):
        [problem] = each.problems
        assert f"on the whole of no database and on parts of {name}" in problem
    restricted.grant(f"SELECT ON {name}.*")
    [problem] = restricted.asked().problems
    assert f"on the whole of {name} and on parts of no other" in problem
    whole = restricted.asked(include=rf"/{name}\..*/")
    assert (whole.tables, whole.problems) == (((name, "t"), (name, "u")), ())
    restricted.grant("SELECT ON *.*")
    # Tables that other tests have left may have problems of their own.
    assert not [p for p in restricted.asked().problems if "has SELECT on" in p]
