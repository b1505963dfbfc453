"""What statements in the binlog mean to the stream, by their words."""

import pytest

from databases.statements import ANSI_QUOTES, NO_BACKSLASH_ESCAPES
from event_token import Flavor
from producers.decoder import UnloggedCascade
from producers.decoder.events.statements import Definition, Statement, StatementKind
from producers.decoder.values.charset import charset_of, readable_text
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import ALL_ROWS, Sink, decode, new_decoder

PARENT = "CREATE TABLE p(id INT PRIMARY KEY)"
CHILD = "CREATE TABLE c(id INT PRIMARY KEY, p INT)"
CASCADE = "ALTER TABLE c ADD FOREIGN KEY (p) REFERENCES p(id) ON /* rows go */ DELETE\nCASCADE"


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("CREATE TABLE t TABLE s", 0),
        ("CREATE TABLE t (TABLE s)", 0),
        ("CREATE TABLE t VALUES ROW(1,2)", 0),
        ("CREATE TABLE t AS ((TABLE s))", 0),
        ("create table t values row(1)", 0),
        ("/*!80000 CREATE */ TABLE t /*!80000 SELECT */ 1", 0),
        ("-- a comment\n CREATE OR REPLACE /* one */ TABLE `t` AS WITH x AS (SELECT 1) TABLE x", 0),
        ("CREATE TABLE t (a INT) PARTITION BY LIST (a) (PARTITION p VALUES IN (1)) SELECT 1", 0),
        (r"CREATE TABLE t (a CHAR(9) DEFAULT '\') SELECT '' a", NO_BACKSLASH_ESCAPES),
        (r'CREATE TABLE t ("\" INT) SELECT 1 AS "\"', ANSI_QUOTES),
        ("SET STATEMENT max_statement_time=9 FOR CREATE TABLE t SELECT 1", 0),
    ],
)
def test_tables_filled_by_a_statement_are_changes(text: str, mode: int) -> None:
    """Each way to fill a table while it is made, wherever its quotes end."""
    assert Statement(text.encode(), mode).kind == StatementKind.CHANGE


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("CREATE PROCEDURE p() BEGIN CREATE TABLE IF NOT EXISTS x AS SELECT 1; END", 0),
        ("CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO CREATE TABLE x SELECT 1", 0),
        ("CREATE VIEW v AS SELECT 1", 0),
        ("CREATE TABLE t (a INT) PARTITION BY RANGE (a) (PARTITION p VALUES LESS THAN (9))", 0),
        ("CREATE TABLE t (a INT) PARTITION BY LIST (a) (PARTITION p VALUES/**/IN(1))", 0),
        ("CREATE TABLE db.table (`select` INT, a$table INT, étable INT) TABLESPACE x", 0),
        (r"CREATE TABLE t (a CHAR(9) DEFAULT '\' SELECT ') COMMENT 'TABLE -- ' # SELECT", 0),
        (r"CREATE TABLE t (a CHAR(9) DEFAULT 'c:\') COMMENT 'SELECT'", NO_BACKSLASH_ESCAPES),
        ("CREATE TABLE t (id INT) START TRANSACTION", 0),
        ("CREATE TABLE t LIKE s", 0),
    ],
)
def test_definitions_that_only_speak_of_rows(text: str, mode: int) -> None:
    """Programs, views, partitions and names are definitions."""
    assert Statement(text.encode(), mode).kind == StatementKind.DDL


def test_a_quote_without_an_end_is_not_judged() -> None:
    """Where the quotes of CREATE TABLE do not fit its SQL mode, its words are not believed."""
    text = rb"CREATE TABLE t (a CHAR(9) DEFAULT 'c:\') COMMENT 'SELECT'"
    assert Statement(text, 0).kind == StatementKind.UNKNOWN


@pytest.mark.parametrize(
    ("text", "cascades"),
    [
        (CASCADE, True),
        ("SET STATEMENT x=1 FOR " + CASCADE, True),
        ("ALTER ONLINE TABLE c ADD FOREIGN KEY (p) REFERENCES p(id) ON UPDATE SET NULL", True),
        ("CREATE TABLE c (p INT REFERENCES p(id) /*!50000 ON DELETE */ CASCADE)", True),
        ("CREATE TABLE c (p INT, FOREIGN KEY (p) REFERENCES p(id) ON DELETE RESTRICT)", False),
        ("CREATE TABLE c (p INT COMMENT 'ON DELETE CASCADE')", False),
        ("CREATE PROCEDURE x() " + CASCADE, False),
        ("ALTER TABLE c ADD t TIMESTAMP NOT NULL DEFAULT NOW() ON UPDATE NOW()", False),
    ],
)
def test_foreign_keys_that_change_rows(text: str, cascades: bool) -> None:
    """A statement is known to declare one by its own words."""
    assert Definition(Statement(text.encode()), "").declares_cascade() is cascades


def test_a_cascade_declared_while_the_stream_runs_stops_it(mariadb_a: DatabaseFixture) -> None:
    """Rows that such a key deletes are in no binlog: the stream ends at the key, by name."""
    name = mariadb_a.new_database()
    before = executed_set(mariadb_a)
    rows = ("INSERT INTO p VALUES (1)", "INSERT INTO c VALUES (10, 1)", "DELETE FROM p")
    run_statements(mariadb_a, name, (PARENT, CHILD, CASCADE, *rows, "DROP TABLE c, p"))
    stream = capture(mariadb_a, before)

    sink, _ = decode(stream, Flavor.MARIADB, before)
    assert [e.op for e in sink.events() if e.table == "c"] == ["INSERT"]
    decoder = new_decoder(Sink(), Flavor.MARIADB, before, refuses_cascades=True)
    with pytest.raises(UnloggedCascade, match="this server does not log such changes") as caught:
        decoder.feed(stream, 0, len(stream), ALL_ROWS)
    assert "statement begins: ALTER TABLE c" in str(caught.value)
    assert "shard -80" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE USER x IDENTIFIED BY 'secret'",
        "create or replace user x identified by 'secret'",
        "/*!50000 ALTER */ /* TABLE */ USER x IDENTIFIED BY 'secret'",
        "DROP ROLE r",
        "RENAME USER a TO b",
        "SET PASSWORD FOR x = 'hash'",
        "SET DEFAULT ROLE r TO x",
        "GRANT ALL ON *.* TO x IDENTIFIED BY 'secret'",
        "REVOKE ALL ON *.* FROM x",
        "SET STATEMENT max_statement_time=1 FOR CREATE USER x IDENTIFIED BY 'secret'",
        "CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (PASSWORD 'secret')",
    ],
)
def test_statements_about_accounts(text: str) -> None:
    """A18: what may hold a password is known by its words, wherever they are."""
    assert Statement(text.encode()).kind == StatementKind.ACCOUNT


@pytest.mark.parametrize(
    "text",
    [
        "TRUNCATE user",
        "CREATE TABLE user (id INT)",
        "CREATE TABLE t (a INT) COMMENT 'CREATE USER'",
        "ALTER TABLE `role` ADD a INT",
        "DROP TABLE user, role",
        "RENAME TABLE user TO role",
        "CREATE PROCEDURE p() BEGIN CREATE USER x; END",
    ],
)
def test_tables_called_like_accounts(text: str) -> None:
    """A18: a table named user or role is a table."""
    assert Statement(text.encode()).kind == StatementKind.DDL


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ALTER TABLE t ADD INDEX i (a), COMMENT 'secret'", "ALTER TABLE"),
        ("/* secret */ CREATE OR REPLACE TEMPORARY TABLE t (a INT DEFAULT 7)", "CREATE TABLE"),
        ("SET STATEMENT max_statement_time = 5 FOR DROP VIEW `table`", "DROP VIEW"),
        ("CREATE DEFINER=view@event PROCEDURE shop.function() SELECT 1", "CREATE PROCEDURE"),
        ("truncate orders", "TRUNCATE"),
        ("DROP SCHEMA hr", "DROP SCHEMA"),
    ],
)
def test_the_kind_of_a_definition_has_reserved_words_alone(text: str, kind: str) -> None:
    """What operators are shown holds no name, comment, default or setting."""
    assert Definition(Statement(text.encode()), "").kind() == kind


ODD_STATEMENTS = (
    b"CREATE TABLE a(b INT) /* caf\xe9 */",
    b"CREATE TABLE c(d VARBINARY(4) DEFAULT _binary'\xff\xfe')",
    b"ALTER TABLE c COMMENT = 'quoted' /* \xff' SELECT */",
    b"DROP TABLE a, c -- \x80",
)


@pytest.mark.parametrize("charset", ["utf8mb4", "latin1", "gbk", "sjis"])
def test_bytes_that_are_not_text_do_not_stop_the_shard(
    database: DatabaseFixture, charset: str
) -> None:
    """B2: a DDL with bytes that its character set has no characters for is logged, escaped."""
    name = database.new_database()
    before = executed_set(database)
    with database.connect(database=name) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"SET NAMES {charset}")
        for statement in ODD_STATEMENTS:
            connection.query(statement)

    sink, summary = decode(capture(database, before), database.flavor, before)

    assert summary.position == executed_set(database)
    logged = [event.statement or "" for event in sink.events()]
    assert [text.split()[0] for text in logged] == ["CREATE", "CREATE", "ALTER", "DROP"]
    if charset == "utf8mb4":
        assert logged[0] == "CREATE TABLE a(b INT) /* caf\\xe9 */"
        assert "_binary'\\xff\\xfe'" in logged[1]


def test_every_character_set_gives_readable_statements() -> None:
    """B2: no bytes of a statement are an error, whatever character set it names."""
    for collation in range(1, 4096):
        assert readable_text(b"ALTER \xff\x80'\xa1", charset_of(collation)) != ""
