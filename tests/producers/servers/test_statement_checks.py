"""Changes logged as statements: those that surely concern no table of the log pass, others stop."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pymysql.err import MySQLError

from producers.filters.binding import TableFilters
from producers.filters.rules import FilterSettings, TablePattern
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import executed_set, run_statements
from tests.producers.decoder.statements_apart import (
    Followed,
    leaving_out,
    new_account,
    statement_catalog,
)

AS_STATEMENTS = "SET SESSION binlog_format = STATEMENT"


@contextmanager
def service_table(database: DatabaseFixture, columns: str) -> Iterator[str]:
    """A table in the servers' own schema, as services have them."""
    name = f"mysql.hb_{secrets.token_hex(4)}"
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {name} ({columns}) ENGINE=InnoDB")
        yield name
        cursor.execute(f"DROP TABLE {name}")


def followed(database: DatabaseFixture, *left_out: str) -> Followed:
    """A stream from here on, whose log leaves out what matches these patterns."""
    rules = leaving_out(*left_out) if left_out else None
    catalog = statement_catalog(database, new_account(database))
    return Followed(database, executed_set(database), rules, catalog)


@pytest.mark.parametrize(
    ("columns", "statements"),
    [
        (  # Amazon RDS and Aurora
            "id BIGINT NOT NULL PRIMARY KEY, value BIGINT",
            (
                (
                    "INSERT INTO {t}(id, value) values (1,1483041015005) ON DUPLICATE KEY UPDATE "
                    "value = 1483041015005"
                ),
            ),
        ),
        (
            "name VARCHAR(60) PRIMARY KEY, value VARCHAR(60)",
            (
                "DELETE FROM {t} where name = 'innodb_txn_key'",
                "insert into {t}(name, value) values ('innodb_txn_key','Wed Dec 14 15:57:50 2022')",
                (
                    "INSERT INTO {t} (name,value) VALUES ('x', NOW()) ON DUPLICATE KEY UPDATE "
                    "value=VALUES(value)"
                ),
            ),
        ),
        (  # Aliyun, Tencent
            "id BIGINT DEFAULT 0, type CHAR(1) PRIMARY KEY",
            (
                (
                    "INSERT INTO {t}(id, type) VALUES (1541048158000, 0) ON DUPLICATE KEY UPDATE "
                    "id = values(id)"
                ),
                "UPDATE {t} SET id='1541048159000' WHERE type='0'",
                "REPLACE INTO {t} SET id = 1, type = '1'",
            ),
        ),
    ],
)
def test_bookkeeping_of_services_passes(
    database: DatabaseFixture, columns: str, statements: tuple[str, ...]
) -> None:
    """A service's statements pass without a rule, counted; rows beside them are logged."""
    name = database.new_database()
    run_statements(database, name, ("CREATE TABLE t(id INT PRIMARY KEY)",))
    with service_table(database, columns) as table:
        stream = followed(database)
        done = [statement.replace("{t}", table) for statement in statements]
        run_statements(database, name, (AS_STATEMENTS, *done))
        run_statements(database, name, ("INSERT INTO t VALUES (1)",))

        assert stream.follow() == {}
        assert stream.passed == len(statements)
        assert [e.table for e in stream.sink.events()] == ["t"]
        assert stream.summary is not None
        assert stream.summary.statement_table == table
        assert stream.position == executed_set(database)


def test_rows_of_the_same_transaction_are_logged(database: DatabaseFixture) -> None:
    """A transaction of rows and such a statement is logged without the statement."""
    name, other = database.new_database(), database.new_database()
    run_statements(database, name, ("CREATE TABLE t(id INT PRIMARY KEY)",))
    run_statements(database, other, ("CREATE TABLE u(id INT PRIMARY KEY, v VARCHAR(40))",))
    stream = followed(database, f"/{other}\\..*/")
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute("SET @v = 'x'")
        cursor.execute(f"INSERT INTO {other}.u VALUES (1, CONCAT(@v, RAND()))")
        cursor.execute("SET SESSION binlog_format = ROW")
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO t VALUES (1)")
        cursor.execute("SAVEPOINT s")
        cursor.execute("COMMIT")
    run_statements(
        database,
        other,
        (
            "SET SESSION binlog_format = MIXED",
            "BEGIN",
            f"INSERT INTO {name}.t SELECT 2 FROM (SELECT UUID()) x",
            "INSERT INTO u VALUES (2, 'y')",
            "COMMIT",
        ),
    )

    assert stream.follow() == {}
    assert stream.passed == 2
    assert [e.after for e in stream.sink.events()] == [{"id": 1}, {"id": 2}]


# What makes another table than the named one change; the log has `{inc}.t`, and not `{exc}`.
ELSEWHERE = {
    "the table itself": ((), "INSERT INTO {inc}.t VALUES (2, 2)", "it changes {inc}.t"),
    "a trigger": (
        ("CREATE TRIGGER g BEFORE INSERT ON u FOR EACH ROW INSERT INTO {inc}.t VALUES (3, 3)",),
        "INSERT INTO u VALUES (1, 1)",
        "trigger g of {exc}.u",
    ),
    "a trigger of an upsert's update": (
        ("CREATE TRIGGER g AFTER UPDATE ON u FOR EACH ROW UPDATE {inc}.t SET v = v + 1",),
        "INSERT INTO u VALUES (1, 1) ON DUPLICATE KEY UPDATE v = 5",
        "trigger g of {exc}.u",
    ),
    "a trigger of a replace's delete": (
        ("CREATE TRIGGER g AFTER DELETE ON u FOR EACH ROW DELETE FROM {inc}.t",),
        "REPLACE INTO u VALUES (1, 1)",
        "trigger g of {exc}.u",
    ),
    "a function": (
        (
            (
                "CREATE FUNCTION f() RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN "
                "UPDATE {inc}.t SET v = v + 1; RETURN 7; END"
            ),
        ),
        "INSERT INTO u VALUES (f(), 1)",
        "stored function f",
    ),
    "a function named as a keyword": (
        (
            (
                "CREATE FUNCTION `now`() RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN "
                "UPDATE {inc}.t SET v = v + 1; RETURN 7; END"
            ),
        ),
        "INSERT INTO u VALUES (now (), 1)",
        "stored function now",
    ),
    "a view": (("CREATE VIEW w AS SELECT * FROM {inc}.t",), "INSERT INTO w VALUES (2, 2)", "VIEW"),
    "a function of a view": (
        (
            (
                "CREATE FUNCTION f() RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN "
                "UPDATE {inc}.t SET v = v + 1; RETURN 7; END"
            ),
            "CREATE VIEW w AS SELECT f() AS a",
        ),
        "INSERT INTO u SELECT a, 1 FROM w",
        "it may read the view {exc}.w",
    ),
    "a foreign key": (
        (
            (
                "CREATE TABLE {inc}.c(id INT PRIMARY KEY, "
                "FOREIGN KEY (id) REFERENCES {exc}.u (id) ON DELETE CASCADE)"
            ),
            "INSERT INTO u VALUES (1, 1)",
            "INSERT INTO {inc}.c VALUES (1)",
        ),
        "DELETE FROM u WHERE id = 1",
        "changes {inc}.c with {exc}.u",
    ),
    "a table of the MERGE engine": (
        (
            "CREATE TABLE {inc}.m(id INT) ENGINE=MyISAM",
            "CREATE TABLE w(id INT) ENGINE=MERGE UNION=({inc}.m) INSERT_METHOD=LAST",
        ),
        "INSERT INTO w VALUES (1)",
        "MR",
    ),
    "another table of a join": (
        (),
        "UPDATE u JOIN {inc}.t ON u.id <> t.id OR 1 SET t.v = 9",
        "it changes {inc}.t",
    ),
    "an executed comment": ((), "INSERT INTO /*!50000 {inc}. */ t VALUES (2, 2)", "comment"),
    "a procedure's statement": (
        ("CREATE PROCEDURE p() INSERT INTO {inc}.t VALUES (4, 4)",),
        "CALL p()",
        "it changes {inc}.t",
    ),
}


@pytest.mark.parametrize("way", ELSEWHERE)
def test_what_may_change_a_logged_table_stops(database: DatabaseFixture, way: str) -> None:
    """Each way by which a statement on an excluded table changes a logged one stops the shard."""
    setup, statement, says = ELSEWHERE[way]
    inc, exc = database.new_database(), database.new_database()

    def text(of: str) -> str:
        return of.replace("{inc}", inc).replace("{exc}", exc)

    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL log_bin_trust_function_creators = ON")
    run_statements(
        database,
        exc,
        (
            f"CREATE TABLE {inc}.t(id INT PRIMARY KEY, v INT)",
            f"INSERT INTO {inc}.t VALUES (1, 1)",
            "CREATE TABLE u(id INT PRIMARY KEY, v INT)",
            "INSERT INTO u VALUES (9, 9)",
            *map(text, setup),
        ),
    )
    stream = followed(database, f"/{exc}\\..*/")
    if way == "an executed comment":
        exc = inc
    run_statements(database, exc, (AS_STATEMENTS, text(statement)))

    [stop] = stream.follow().values()
    assert text(says) in stop
    assert "binlog_format=ROW" in stop


def test_a_trigger_that_is_gone_by_now_stops(database: DatabaseFixture) -> None:
    """The catalog has no trigger any more: the statement that met it is not passed."""
    inc, exc = database.new_database(), database.new_database()
    run_statements(
        database,
        exc,
        (
            f"CREATE TABLE {inc}.t(id INT PRIMARY KEY)",
            "CREATE TABLE u(id INT PRIMARY KEY)",
            "CREATE TABLE other(id INT PRIMARY KEY)",
        ),
    )
    stream = followed(database, f"/{exc}\\..*/")
    run_statements(database, exc, (AS_STATEMENTS, "INSERT INTO u VALUES (1)"))
    assert stream.follow() == {}
    run_statements(
        database,
        exc,
        (
            AS_STATEMENTS,
            "INSERT INTO u VALUES (2)",
            f"CREATE TRIGGER g AFTER INSERT ON u FOR EACH ROW INSERT INTO {inc}.t VALUES (NEW.id)",
            "INSERT INTO u VALUES (3)",
            "DROP TRIGGER g",
            "INSERT INTO u VALUES (4)",
            "DROP TABLE other",
        ),
    )

    [stop] = stream.follow().values()
    assert "has executed DROP TRIGGER since" in stop
    assert stream.passed == 3


def test_the_grants_that_are_missing_are_named(database: DatabaseFixture) -> None:
    """An account that cannot see triggers stops with the GRANT; with it, the statement passes."""
    exc = database.new_database()
    user = new_account(database, "REPLICATION SLAVE, REPLICATION CLIENT, PROCESS, SELECT ON *.*")
    run_statements(
        database,
        exc,
        ("CREATE TABLE u(id INT PRIMARY KEY)",),
    )
    stream = Followed(
        database,
        executed_set(database),
        leaving_out(f"/{exc}\\..*/"),
        statement_catalog(database, user),
    )
    with service_table(database, "id INT PRIMARY KEY") as table:
        run_statements(
            database,
            exc,
            (AS_STATEMENTS, f"REPLACE {table} VALUES (1)", "INSERT INTO u VALUES (1)"),
        )
        [stop] = stream.follow().values()
        assert stream.passed == 1
        assert f"GRANT TRIGGER ON `{exc}`.* TO '{user}'@'%';" in stop
    run_statements(
        database, exc, (f"GRANT TRIGGER ON {exc}.* TO {user}@'%'", "INSERT INTO u VALUES (2)")
    )
    stream.catalog = statement_catalog(database, user)
    run_statements(database, exc, (AS_STATEMENTS, "INSERT INTO u VALUES (3)"))

    assert stream.follow() == {}
    assert stream.passed == 2


def test_a_file_that_is_loaded_as_a_statement(database: DatabaseFixture) -> None:
    """LOAD DATA into an excluded table passes with its file, into a logged one it stops."""
    inc, exc = database.new_database(), database.new_database()
    run_statements(
        database,
        exc,
        (
            f"CREATE TABLE {inc}.t(id INT PRIMARY KEY, v INT)",
            "CREATE TABLE u(id INT PRIMARY KEY, v INT)",
            "INSERT INTO u VALUES (1, 1)",
            "SELECT * INTO OUTFILE '{db}.txt' FROM u",
            "DELETE FROM u",
        ),
    )
    stream = followed(database, f"/{exc}\\..*/")
    run_statements(
        database,
        exc,
        (
            AS_STATEMENTS,
            "LOAD DATA INFILE '{db}.txt' INTO TABLE u (id, @v) SET v = @v + 1",
            f"LOAD DATA INFILE '{{db}}.txt' REPLACE INTO TABLE {inc}.t",
        ),
    )

    [stop] = stream.follow().values()
    assert f"it changes {inc}.t" in stop
    assert stream.passed == 1


def test_a_rule_may_ask_for_a_table_of_the_servers(database: DatabaseFixture) -> None:
    """A table of `mysql` that an include pattern names is in the log: its statements stop."""
    with service_table(database, "id INT PRIMARY KEY") as table:
        for pattern, stops in ((table, 1), ("/.*/", 0)):
            stream = followed(database)
            stream.rules = TableFilters(FilterSettings(include=(TablePattern(pattern),)), {})
            name = database.new_database()
            run_statements(database, name, (AS_STATEMENTS, f"REPLACE INTO {table} VALUES (1)"))
            assert len(stream.follow()) == stops


def test_the_servers_schemas_cannot_have_triggers(database: DatabaseFixture) -> None:
    """No grant is asked for to see triggers there, because no server creates one."""
    name = database.new_database()
    run_statements(database, name, ("CREATE TABLE t(id INT PRIMARY KEY)",))
    with service_table(database, "id INT PRIMARY KEY") as table:
        for each in (table, "performance_schema.setup_actors"):
            body = f"FOR EACH ROW INSERT INTO {name}.t VALUES (1)"
            for schema in ("mysql", name):
                with pytest.raises(MySQLError):
                    run_statements(
                        database, schema, (f"CREATE TRIGGER g AFTER INSERT ON {each} {body}",)
                    )
        run_statements(
            database, name, ("CREATE TRIGGER g AFTER INSERT ON t FOR EACH ROW SET @a = 1",)
        )
        with pytest.raises(MySQLError):
            run_statements(database, name, (f"RENAME TABLE t TO mysql.{name}",))


def test_a_table_of_the_servers_schema_may_be_a_view(database: DatabaseFixture) -> None:
    """Not the schema decides alone: a view there stops, whatever it is named."""
    name = database.new_database()
    view = f"mysql.v_{secrets.token_hex(4)}"
    run_statements(
        database,
        name,
        ("CREATE TABLE t(id INT PRIMARY KEY)", f"CREATE VIEW {view} AS SELECT * FROM {name}.t"),
    )
    stream = followed(database)
    try:
        run_statements(database, name, (AS_STATEMENTS, f"INSERT INTO {view} VALUES (1)"))
        [stop] = stream.follow().values()
        assert "VIEW" in stop
    finally:
        run_statements(database, name, (f"DROP VIEW {view}",))


def test_a_sequence_is_never_changed_by_a_logged_statement(mariadb_a: DatabaseFixture) -> None:
    """MariaDB logs what takes a value of a sequence as rows, so its statements are no concern."""
    inc, exc = mariadb_a.new_database(), mariadb_a.new_database()
    run_statements(
        mariadb_a,
        exc,
        (
            f"CREATE SEQUENCE {inc}.s",
            f"CREATE TABLE u(id INT PRIMARY KEY DEFAULT (NEXT VALUE FOR {inc}.s), v INT)",
        ),
    )
    with pytest.raises(MySQLError, match="limited to row-based logging"):
        run_statements(mariadb_a, exc, (AS_STATEMENTS, "INSERT INTO u (v) VALUES (1)"))
