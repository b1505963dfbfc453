"""Definitions that change rows without row events: they stop the shard by name."""

import shutil
from pathlib import Path

import pytest

from producers.decoder import StatementInRowStream
from producers.decoder.events.statements import Definition, Statement
from producers.filters.binding import TableFilters
from producers.filters.rules import FilterSettings, TablePattern
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import decode

PARTITIONED = (
    "CREATE TABLE p(id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10))"
)


def test_an_exchanged_partition_stops_the_shard(database: DatabaseFixture) -> None:
    """A19: EXCHANGE PARTITION moves rows between tables, and no row event shows it."""
    name = database.new_database()
    run_statements(database, name, (PARTITIONED, "CREATE TABLE q(id INT PRIMARY KEY)"))
    before = executed_set(database)
    exchange = "ALTER TABLE p EXCHANGE PARTITION a /* with */ WITH TABLE {db}.q"
    run_statements(database, name, (exchange.replace("{db}", name),))
    stream = capture(database, before)

    with pytest.raises(StatementInRowStream, match=rf"rows of {name}\.p, {name}\.q, .*a copy"):
        decode(stream, database.flavor, before)

    both = TableFilters(FilterSettings(exclude=(TablePattern(f"/{name}[.].*/"),)), {})
    _, summary = decode(stream, database.flavor, before, rules=both)
    assert summary.position == executed_set(database)
    one = TableFilters(FilterSettings(exclude=(TablePattern(f"{name}.p"),)), {})
    with pytest.raises(StatementInRowStream, match=rf"rows of {name}\.q, which"):
        decode(stream, database.flavor, before, rules=one)


def test_an_imported_tablespace_stops_the_shard(database: DatabaseFixture) -> None:
    """A19: IMPORT TABLESPACE brings in a file of rows, and no row event shows them."""
    name = database.new_database()
    tables = [f"CREATE TABLE {table}(id INT PRIMARY KEY)" for table in ("t", "u")]
    run_statements(database, name, (*tables, "INSERT INTO t VALUES (1), (2)"))
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.datadir")
        [(folder,)] = cursor.fetchall()
        cursor.execute("ALTER TABLE u DISCARD TABLESPACE")
        before = executed_set(database)
        cursor.execute("FLUSH TABLES t FOR EXPORT")
        for file in Path(folder, name).glob("t.*"):
            if file.suffix in {".ibd", ".cfg"}:
                shutil.copy(file, file.with_stem("u"))
        cursor.execute("UNLOCK TABLES")
        cursor.execute("ALTER TABLE u IMPORT TABLESPACE")
        cursor.execute("SELECT COUNT(*) FROM u")
        assert cursor.fetchall() == ((2,),)

    with pytest.raises(StatementInRowStream, match=rf"rows of {name}\.u, .*begins: ALTER TABLE u"):
        decode(capture(database, before), database.flavor, before)


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("ALTER TABLE t DISCARD PARTITION a TABLESPACE", True),
        ("ALTER TABLE t IMPORT PARTITION a TABLESPACE", True),
        ("ALTER TABLE t CONVERT PARTITION a TO TABLE u", True),
        ("ALTER /* x */ ONLINE TABLE t\nCONVERT TABLE u TO PARTITION a VALUES LESS THAN (9)", True),
        ("SET STATEMENT x=1 FOR ALTER TABLE t EXCHANGE PARTITION a WITH TABLE u", True),
        ("ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4", False),
        ("ALTER TABLE t COMMENT 'IMPORT TABLESPACE'", False),
        ("ALTER TABLE t ADD `exchange partition` INT", False),
        ("CREATE TABLE t (id INT) TABLESPACE x", False),
        ("ALTER TABLE shop.import PARTITION BY HASH (id) PARTITIONS 4", False),
        ("ALTER TABLE t ADD COLUMN c INT AFTER discard PARTITION BY HASH (id)", False),
    ],
)
def test_definitions_that_move_rows(text: str, moves: bool) -> None:
    """A19: they are known by their own words."""
    assert Definition(Statement(text.encode()), "").moves_rows() is moves


@pytest.mark.parametrize(
    ("text", "renames"),
    [
        ("RENAME TABLE t TO u, v TO t", True),
        ("/* x */ rename tables t to u", True),
        ("ALTER TABLE t RENAME u", True),
        ("ALTER TABLE t ADD COLUMN c INT, RENAME TO u", True),
        ("ALTER ONLINE TABLE t RENAME AS u", True),
        ("ALTER TABLE t RENAME COLUMN a TO b", False),
        ("ALTER TABLE t RENAME INDEX a TO b, RENAME KEY c TO d", False),
        ("ALTER TABLE t COMMENT 'RENAME TO u'", False),
        ("CREATE TABLE t (`rename` INT)", False),
        ("DROP TABLE t", False),
    ],
)
def test_definitions_that_rename_tables(text: str, renames: bool) -> None:
    """A name that other rows had before is known by RENAME, and not by a column's or a text."""
    assert Definition(Statement(text.encode()), "").renames_tables() is renames


def test_names_in_definitions() -> None:
    """A19: names are taken with their database, quoted or not, and never from text."""
    text = (
        "ALTER TABLE IF EXISTS `a``b` . `c.d` EXCHANGE PARTITION x WITH TABLE ü COMMENT 'TABLE e'"
    )

    assert Definition(Statement(text.encode()), "here").names_after_table() == [
        ("a`b", "c.d"),
        ("here", "ü"),
    ]
