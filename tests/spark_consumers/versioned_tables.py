"""System-versioned tables of a MariaDB server, changed in every way, and what a SELECT shows."""

from typing import Any

from producers.typed_columns import NOTHING_DECLARED
from sinks.lake.change_log.reading import CHANGE_COLUMNS, Applier
from sinks.rule.batch_statements import STATEMENT_COLUMNS, Statements
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.decoding import SHARD, catalog_of, decode
from topics.arrow.decoders import ArrowDecoder
from topics.arrow.output_columns import choose_columns

PERIOD = (
    "s {kind} GENERATED ALWAYS AS ROW START, e {kind} GENERATED ALWAYS AS ROW END, "
    "PERIOD FOR SYSTEM_TIME(s, e)"
)
CHANGES = (
    "INSERT INTO {t} (id, v) VALUES (1, 1), (2, 2), (3, 3), (4, 4), (5, 5)",
    "UPDATE {t} SET v = v + 10 WHERE id < 4",
    "DELETE FROM {t} WHERE id = 2",
    "UPDATE {t} SET id = 7 WHERE id = 3",
    "REPLACE INTO {t} (id, v) VALUES (1, 20)",
    "INSERT INTO {t} (id, v) VALUES (1, 2) ON DUPLICATE KEY UPDATE v = 21",
    "DELETE HISTORY FROM {t}",
    "BEGIN",
    "INSERT INTO {t} (id, v) VALUES (8, 1), (9, 1)",
    "UPDATE {t} SET v = 2 WHERE id >= 8",
    "DELETE FROM {t} WHERE id = 9",
    "INSERT INTO {t} (id, v) VALUES (2, 3)",
    "COMMIT",
    "DELETE FROM {t} WHERE id = 4",
    "INSERT INTO {t} (id, v) VALUES (4, 40)",
    "DELETE FROM {t} WHERE id = 5",
)
# By table: how it is created and changed. All have columns id and v.
TABLES = {
    "implicit": ("CREATE TABLE {t} (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING", *CHANGES),
    "explicit": (
        "CREATE TABLE {t} (id INT PRIMARY KEY, v INT, "
        + PERIOD.format(kind="TIMESTAMP(6)")
        + ") WITH SYSTEM VERSIONING",
        *CHANGES,
    ),
    "key_first": (
        "CREATE TABLE {t} (id INT, v INT, "
        + PERIOD.format(kind="TIMESTAMP(6)")
        + ", PRIMARY KEY (e, id)) WITH SYSTEM VERSIONING",
        *CHANGES,
    ),
    "unversioned_column": (
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, v INT WITHOUT SYSTEM VERSIONING, w INT) "
            "WITH SYSTEM VERSIONING"
        ),
        *CHANGES,
        "UPDATE {t} SET w = 1",
    ),
    "partitioned": (
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING "
            "PARTITION BY SYSTEM_TIME LIMIT 2 PARTITIONS 3"
        ),
        *CHANGES,
    ),
    "inserted_history": (
        "CREATE TABLE {t} (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
        *CHANGES,
        "SET @@system_versioning_insert_history = 1",
        "INSERT INTO {t} (id, v, row_start, row_end) VALUES (1, 0, '2001-01-01', '2002-01-01')",
        "INSERT INTO {t} (id, v, row_start, row_end) VALUES (50, 0, '2001-01-01', '2002-01-01')",
        "INSERT INTO {t} (id, v, row_start) VALUES (51, 0, '2001-01-01')",
        "SET @@system_versioning_insert_history = 0",
    ),
    "altered": (
        "CREATE TABLE {t} (id INT PRIMARY KEY, v INT)",
        "INSERT INTO {t} VALUES (60, 1), (61, 1), (62, 1)",
        "ALTER TABLE {t} ADD SYSTEM VERSIONING",
        *CHANGES,
        "UPDATE {t} SET v = 2 WHERE id = 60",
        "SET system_versioning_alter_history = KEEP",
        "ALTER TABLE {t} ADD COLUMN w INT",
        "DELETE FROM {t} WHERE id = 60",
        "ALTER TABLE {t} DROP SYSTEM VERSIONING",
        "INSERT INTO {t} VALUES (63, 1, 1)",
        "DELETE FROM {t} WHERE id = 61",
    ),
    # Not versioned, though its columns have the form.
    "plain": (
        (
            "CREATE TABLE {t} (id INT, v INT, row_start TIMESTAMP(6) NOT NULL DEFAULT NOW(6), "
            "row_end TIMESTAMP(6) NOT NULL DEFAULT '2020-01-01', PRIMARY KEY (id, row_end))"
        ),
        "INSERT INTO {t} (id, v) VALUES (1, 1), (2, 2)",
        "DELETE FROM {t} WHERE id = 2",
    ),
}
NEEDS_INSERT_HISTORY = (10, 11, 0)
Rows = list[tuple[Any, ...]]


def tables_for(server: DatabaseFixture) -> dict[str, tuple[str, ...]]:
    """The tables that the server knows."""
    newer = set() if server.version >= NEEDS_INSERT_HISTORY else {"inserted_history"}
    return {name: table for name, table in TABLES.items() if name not in newer}


def change_tables(server: DatabaseFixture, database: str) -> None:
    """Create and change all tables."""
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        for name, statements in tables_for(server).items():
            for statement in statements:
                cursor.execute(statement.format(t=name))
        connection.commit()


def present_rows(server: DatabaseFixture, database: str, table: str) -> Rows:
    """The id and v of all rows that a SELECT shows."""
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, v FROM {table} ORDER BY id, v")
        return [*cursor.fetchall()]


def check_present_rows(server: DatabaseFixture) -> None:
    """Change all tables, and compare what a replay of the log leaves with what a SELECT shows."""
    database, before = server.new_database(), executed_set(server)
    change_tables(server, database)
    changes = changes_since(server, before)
    statements = Statements()
    for change in changes:
        if change["type"] == "DDL":
            statements.add(change)
    applier = Applier(statements)
    applier.apply(change for change in changes if change["type"] == "ROW")
    tables = applier.finish()
    for name in tables_for(server):
        found = sorted((row["id"], row["v"]) for row in tables[database, name].rows())
        assert found == present_rows(server, database, name), name


def changes_since(server: DatabaseFixture, before: str) -> list[dict[str, Any]]:
    """What the log has of the server's changes, as rows of a change log."""
    catalog = catalog_of(server, NOTHING_DECLARED)
    sink, _ = decode(capture(server, before), server.flavor, before, catalog=catalog)
    output = choose_columns(",".join({"op", *CHANGE_COLUMNS, *STATEMENT_COLUMNS}))
    decoder = ArrowDecoder(output, sink.schema_ids.text_of, shard=SHARD)
    records = [message.value for message in sink.messages]
    found: list[dict[str, Any]] = decoder.decode(records, range(len(records))).to_pylist()
    return found
