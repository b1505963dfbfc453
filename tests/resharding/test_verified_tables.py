"""What `reshard verify` compares: tables of one definition, and keys byte by byte."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from databases.internal_tables import create_internal_tables
from databases.sql import rows
from resharding.apply.target_session import TargetSession
from resharding.errors import DefinitionChanged
from resharding.servers import open_session
from resharding.verification import check_same_definition, create_overlay, give_bytes
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import statements
from tests.resharding.accounts import resharder_of
from tests.waiting import wait_for

TABLE = "CREATE TABLE {0}.t (k VARCHAR(9) PRIMARY KEY, n INT AUTO_INCREMENT, KEY (n))"


@pytest.fixture
def name(mysql_a: DatabaseFixture, mysql_b: DatabaseFixture) -> Iterator[str]:
    """A database with the table on both servers."""
    found = mysql_a.new_database()
    statements(mysql_b, f"CREATE DATABASE {found}")
    for server in (mysql_a, mysql_b):
        statements(server, TABLE.format(found))
    yield found
    statements(mysql_b, f"DROP DATABASE {found}")


def check(name: str, *servers: DatabaseFixture) -> None:
    """Compare the definitions, in a transaction each that then ends."""
    with ExitStack() as stack:
        found = {}
        for server in servers:
            session = stack.enter_context(open_session(resharder_of(server, "-")))
            give_bytes(session)
            session.begin()
            found[str(server.port)] = session
        check_same_definition(name, "t", found)


def test_tables_of_one_definition_are_compared(
    mysql_a: DatabaseFixture, mysql_b: DatabaseFixture, name: str
) -> None:
    """Counters may differ; a column, a collation or a key may not, and the message has the line."""
    statements(mysql_a, f"INSERT INTO {name}.t (k) VALUES ('a'), ('b')")
    check(name, mysql_a, mysql_b)
    statements(mysql_b, f"ALTER TABLE {name}.t MODIFY k VARCHAR(9) COLLATE utf8mb4_bin")

    with pytest.raises(DefinitionChanged, match=rf"{name}\.t is not defined as on .*utf8mb4_bin"):
        check(name, mysql_a, mysql_b)


def test_a_table_that_is_compared_is_not_altered_meanwhile(
    mysql_a: DatabaseFixture, name: str
) -> None:
    """Its definition is kept until the snapshot ends."""
    alter = threading.Thread(
        target=statements, args=(mysql_a, f"ALTER TABLE {name}.t ADD COLUMN more INT")
    )
    with open_session(resharder_of(mysql_a, "-")) as session, mysql_a.connect() as root:
        give_bytes(session)
        session.begin()
        check_same_definition(name, "t", {"a": session})
        alter.start()
        waiting = (
            "SELECT COUNT(*) FROM information_schema.processlist "
            "WHERE state = 'Waiting for table metadata lock'"
        )
        wait_for("the ALTER waits", lambda: rows(root, waiting) == [(1,)])
        columns = rows(session, f"SELECT * FROM {name}.t")
        session.commit()
    alter.join()

    assert columns == []


def test_keys_that_a_collation_takes_as_equal_are_kept_apart(
    mysql_a: DatabaseFixture, name: str
) -> None:
    """A row that was 'n1' and 'N1' since the target's position had both keys."""
    server = resharder_of(mysql_a, "-")
    with closing(open_session(server)) as connection:
        create_internal_tables(connection)
    with closing(TargetSession(server)) as session:
        overlay = create_overlay(session, name, "t", "new_0")
        session.execute(f"REPLACE INTO {overlay} (k, n) VALUES ('n1', 1), ('N1', 1)")

        assert rows(session.connection, f"SELECT k FROM {overlay} ORDER BY BINARY k") == [
            ("N1",),
            ("n1",),
        ]
