"""A chunk is read behind another one only where the table and its key are still the same."""

import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from databases.connection import open_connection
from databases.errors import TableChanged
from databases.table_cursor import TableCursor, is_same_table, table_identity
from event_token import Flavor
from producers.copy.chunk import Chunk, ChunkJob
from producers.copy.chunk_reader import ChunkReader
from producers.settings import ServerSettings
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.statements_apart import new_account
from tests.producers.servers.replication import executed, statements
from tests.producers.session.producing import server_of, settings_alone

ROWS = 10
FIRST = 4
INT_KEY = "k INT NOT NULL, v INT, PRIMARY KEY (k)"
TEXT_KEY = "k VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, v INT"
LABELS = ", ".join(f"'{i}'" for i in range(ROWS))
LABELS_BACK = ", ".join(f"'{i}'" for i in reversed(range(ROWS)))
PARTS = "PARTITION BY RANGE (k) (PARTITION p0 VALUES LESS THAN (5), PARTITION p1 VALUES LESS THAN"

# What happens to the table behind its first chunk, by what a person would say of it.
CHANGES = {
    "direction": (INT_KEY, "DROP PRIMARY KEY, ADD PRIMARY KEY (k DESC)"),
    "labels": (f"k ENUM({LABELS}) PRIMARY KEY, v INT", f"MODIFY k ENUM({LABELS_BACK})"),
    "collation": (TEXT_KEY, "MODIFY k VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
    "type": (INT_KEY, "MODIFY k VARCHAR(9) NOT NULL"),
    "columns": (INT_KEY, "DROP PRIMARY KEY, ADD PRIMARY KEY (v, k)"),
    "unique key": (
        "k INT NOT NULL, v INT, UNIQUE KEY u (k)",
        "DROP INDEX u, ADD UNIQUE KEY u (k DESC)",
    ),
    "another column": (INT_KEY, "ADD COLUMN extra INT NOT NULL DEFAULT 7"),
    "bytes": ("k BINARY(2) PRIMARY KEY, v INT", "MODIFY k BINARY(4)"),
    "rebuilt": (INT_KEY, "FORCE"),
}
KEPT = {
    "index": (INT_KEY, "ADD INDEX (v)"),
    "comment": (INT_KEY, "COMMENT 'of the same rows'"),
    "default": (INT_KEY, "ALTER v SET DEFAULT 5"),
    "partition": (
        f"{INT_KEY}) {PARTS} (50)",
        "ADD PARTITION (PARTITION p2 VALUES LESS THAN (60))",
    ),
    "dropped partition": (f"{INT_KEY}) {PARTS} (50)", "DROP PARTITION p0"),
}


@pytest.fixture(params=["mysql_a", "mariadb_a"])
def server(request: pytest.FixtureRequest) -> DatabaseFixture:
    """A server of each family."""
    found: DatabaseFixture = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def reader(server: DatabaseFixture) -> Iterator[ChunkReader]:
    """Reads with the producer's account."""
    with closing(ChunkReader(settings_alone(server), server_of(server))) as found:
        yield found


def create(server: DatabaseFixture, table: str, columns: str) -> None:
    """A table with ROWS rows."""
    values = ", ".join(f"('{i}', {i})" for i in range(ROWS))
    statements(
        server,
        f"CREATE TABLE {table} ({columns})",
        f"INSERT INTO {table} (k, v) VALUES {values}",
    )


def read(
    server: DatabaseFixture, reader: ChunkReader, name: str, after: TableCursor | None
) -> Chunk:
    """The chunk behind a cursor, as the first one of a session."""
    job = ChunkJob(name, "t", "", after, True, FIRST if after is None else ROWS, executed(server))
    return reader.read(job)


def cursor_behind(chunk: Chunk) -> TableCursor:
    """Where a chunk ended."""
    part = chunk.part
    return TableCursor(part.rows.pieces[-1].last_key, part.definition.fingerprint, part.identity)


@pytest.mark.parametrize("change", CHANGES)
def test_an_altered_table_is_not_read_on(
    server: DatabaseFixture, reader: ChunkReader, change: str
) -> None:
    """Its key's type, collation, labels or direction, its columns or its rows may be others."""
    name = server.new_database()
    columns, alter = CHANGES[change]
    create(server, f"{name}.t", columns)
    first = read(server, reader, name, None)
    statements(server, f"ALTER TABLE {name}.t {alter}")

    with pytest.raises(TableChanged, match=rf"table {name}\.t "):
        read(server, reader, name, cursor_behind(first))


@pytest.mark.parametrize("change", KEPT)
def test_a_table_whose_rows_stay_is_read_on(
    server: DatabaseFixture, reader: ChunkReader, change: str
) -> None:
    """Indexes, comments, defaults and partitions that come and go leave its cursor valid."""
    name = server.new_database()
    columns, alter = KEPT[change]
    create(server, f"{name}.t", columns)
    first = read(server, reader, name, None)
    statements(server, f"ALTER TABLE {name}.t {alter}")

    rest = read(server, reader, name, cursor_behind(first))

    assert first.part.rows.rows + rest.part.rows.rows >= ROWS - (change == "dropped partition")


@pytest.mark.parametrize(
    "replace",
    [
        ("RENAME TABLE {0}.t TO {0}.old, {0}.other TO {0}.t",),
        ("DROP TABLE {0}.t", "RENAME TABLE {0}.other TO {0}.t"),
        ("DROP TABLE {0}.t", "CREATE TABLE {0}.t LIKE {0}.other"),
    ],
)
def test_another_table_of_the_name_is_not_read_on(
    server: DatabaseFixture, reader: ChunkReader, replace: tuple[str, ...]
) -> None:
    """A table of the same definition that has taken its name has other rows."""
    name = server.new_database()
    create(server, f"{name}.t", INT_KEY)
    create(server, f"{name}.other", INT_KEY)
    first = read(server, reader, name, None)
    statements(server, *(each.format(name) for each in replace))

    with pytest.raises(TableChanged, match="was replaced or rebuilt"):
        read(server, reader, name, cursor_behind(first))


def test_without_process_the_time_of_creation_stands_for_ids(server: DatabaseFixture) -> None:
    """An account that sees no ids still notices another table, at the price of every ALTER."""
    name = server.new_database()
    create(server, f"{name}.t", INT_KEY)
    user = new_account(server, "SELECT ON *.*")
    account = ServerSettings(server.host, server.port, user, user)
    with closing(open_connection(account)) as connection:
        found = table_identity(connection, Flavor(server.flavor.value), name, "t")

    assert re.fullmatch(r"created=20\d\d-.*", found[1])


def test_identities_are_compared_where_they_can_be() -> None:
    """Other servers have other ids; partitions come and go, and those that stay keep theirs."""
    assert is_same_table(("a", "=1"), ("a", "=1"))
    assert not is_same_table(("a", "=1"), ("a", "=2"))
    assert is_same_table(("a", "=1"), ("b", "=2"))
    assert is_same_table((), ("a", "=2"))
    assert is_same_table(("a", "#p#x=1", "#p#y=2"), ("a", "#p#y=2", "#p#z=3"))
    assert not is_same_table(("a", "#p#x=1", "#p#y=2"), ("a", "#p#x=1", "#p#y=3"))
    assert not is_same_table(("a", "#p#x=1"), ("a", "#p#z=1"))
    assert not is_same_table(("a", "created=2026-01-01 00:00:00"), ("a", "=1"))
