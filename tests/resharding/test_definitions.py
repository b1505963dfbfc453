"""The objects of a source on either family, and what a reshard does with each."""

import pytest

from event_token import Flavor, UsageError
from resharding.definitions import (
    ReshardTable,
    SourceObject,
    Transfer,
    merged_objects,
    missing_objects,
    object_problems,
    read_definitions,
    read_objects,
)
from resharding.servers import open_session
from tests.database_servers import DatabaseFixture
from tests.resharding.accounts import resharder_of
from tests.resharding.scripts import run_script

# Bodies with semicolons, and a mode that changes what quotes mean.
OBJECTS = (
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, total INT)",
    "CREATE VIEW totals AS SELECT id, total FROM orders WHERE total > 0",
    "CREATE PROCEDURE pay(IN n BIGINT) BEGIN UPDATE orders SET total = n; SELECT 'paid; yes'; END",
    "SET SESSION sql_mode = 'ANSI_QUOTES'",
    'CREATE FUNCTION "doubled"(x INT) RETURNS INT DETERMINISTIC RETURN x * 2',
    "SET SESSION sql_mode = DEFAULT",
    "CREATE TRIGGER z_first BEFORE INSERT ON orders FOR EACH ROW SET @seen = NEW.id",
    "CREATE TRIGGER a_second BEFORE INSERT ON orders FOR EACH ROW SET @seen = @seen + 1",
    "CREATE EVENT tidy ON SCHEDULE EVERY 1 DAY DISABLE DO BEGIN DELETE FROM orders; END",
)
SEQUENCES = ("CREATE SEQUENCE ids START WITH 3 INCREMENT BY 4 CACHE 10",)
KINDS = {"view totals": "VIEW", "procedure pay": "PROCEDURE", "function doubled": "FUNCTION"}


def test_every_object_is_listed_and_can_be_created_again(database: DatabaseFixture) -> None:
    """B18: each is listed, triggers in their order, and the printed statements work as they are."""
    schema = database.new_database()
    is_mariadb = database.flavor.value == "mariadb"
    with database.connect(database=schema) as connection, connection.cursor() as cursor:
        for statement in (*OBJECTS, *(SEQUENCES if is_mariadb else ())):
            cursor.execute(statement)
        with open_session(resharder_of(database, "-")) as session:
            found = read_objects(session, [schema])
        transfers = {f"{each.kind.lower()} {each.name}": each.transfer for each in found}
        wanted = {
            "base table orders": Transfer.CARRIED,
            "trigger z_first": Transfer.BY_SWITCH,
            "trigger a_second": Transfer.BY_SWITCH,
            "event tidy": Transfer.AFTER_SWITCH,
            **dict.fromkeys(KINDS, Transfer.BEFORE_SWITCH),
        }
        if is_mariadb:
            wanted["sequence ids"] = Transfer.BEFORE_SWITCH
        assert transfers == wanted
        triggers = [each.name for each in found if each.kind == "TRIGGER"]
        assert triggers == ["z_first", "a_second"]

        to_create = [
            e for e in found if e.transfer in {Transfer.BEFORE_SWITCH, Transfer.AFTER_SWITCH}
        ]
        for each in to_create:
            cursor.execute(f"DROP {each.kind} {schema}.{each.name}")
        with open_session(resharder_of(database, "-")) as session:
            left = read_objects(session, [schema])
            assert {e.full_name for e in missing_objects(found, left)} == {
                e.full_name for e in to_create if e.kind != "EVENT"
            }
            for each in to_create:
                run_script(cursor, each.script())
            assert read_objects(session, [schema]) == found
        cursor.execute(f"DROP DATABASE {schema}")


def defined(database: DatabaseFixture, statement: str) -> ReshardTable:
    """The table t of a new database, as a reshard reads it."""
    schema = database.new_database()
    with database.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        cursor.execute("INSERT INTO t () VALUES ()")
        with open_session(resharder_of(database, "-")) as session:
            [found] = read_definitions(session, [schema])
        cursor.execute(f"DROP DATABASE {schema}")
    return found


@pytest.mark.parametrize(
    "partitions", ["", " PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (100))"]
)
def test_only_the_counter_of_the_table_is_left_out(
    database: DatabaseFixture, partitions: str
) -> None:
    """Texts that look like the option stay: they are what new rows get."""
    found = defined(
        database,
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, `n AUTO_INCREMENT=4` INT, "
        "v VARCHAR(60) DEFAULT 'a\n) x AUTO_INCREMENT=5 y') AUTO_INCREMENT=7 "
        f"COMMENT 'it''s AUTO_INCREMENT=6'{partitions}",
    )

    assert " AUTO_INCREMENT=8" in found.statement
    assert found.compared == found.statement.replace(" AUTO_INCREMENT=8", "")
    assert {4, 5, 6} == {n for n in range(10) if f" AUTO_INCREMENT={n}" in found.compared}


def test_a_default_of_bytes_is_carried_or_named(database: DatabaseFixture) -> None:
    """MySQL shows it in hexadecimal, MariaDB as it is: then table, column and byte are named."""
    statement = "CREATE TABLE t (id INT PRIMARY KEY DEFAULT 1, b BINARY(3) DEFAULT 0xFF00AA)"
    if database.flavor is Flavor.MARIADB:
        with pytest.raises(UsageError, match=r"table \w+\.t .* 0xff after .*`b` binary"):
            defined(database, statement)
        return
    found = defined(database, statement)
    schema = database.new_database()
    with database.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute(found.compared)
        cursor.execute("INSERT INTO t () VALUES ()")
        cursor.execute("SELECT HEX(b) FROM t")
        assert cursor.fetchall() == (("FF00AA",),)
        cursor.execute(f"DROP DATABASE {schema}")


def test_a_view_whose_definition_is_no_text_is_named(database: DatabaseFixture) -> None:
    """SHOW CREATE has a literal with an introducer as it is: the view and the byte are named."""
    schema = database.new_database()
    with database.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE VIEW o AS SELECT _latin1 0xE9 AS y")
        with (
            open_session(resharder_of(database, "-")) as session,
            pytest.raises(UsageError, match=rf"view {schema}\.o .* 0xe9 after"),
        ):
            read_objects(session, [schema])
        cursor.execute(f"DROP DATABASE {schema}")


def test_what_cannot_be_carried_is_refused_by_name() -> None:
    """B18: a table with a history of its own, and triggers that differ between sources."""
    history = SourceObject("SYSTEM VERSIONED", "shop", "prices")
    trigger = SourceObject("TRIGGER", "shop", "tr", "SET @x = 1")
    other = SourceObject("TRIGGER", "shop", "tr", "SET @x = 2")
    view = SourceObject("VIEW", "shop", "totals", "CREATE VIEW ...")

    problems = object_problems({"db-a": [history, trigger], "db-b": [other, view]})

    assert "db-a: shop.prices is a SYSTEM VERSIONED table" in problems[0]
    assert "db-b: trigger shop.tr is not defined as on db-a" in problems[1]
    assert len(problems) == 2
    assert len(object_problems({"db-a": [trigger], "db-b": []})) == 1
    assert len(object_problems({"db-a": [], "db-b": [trigger]})) == 1
    assert object_problems({"db-a": [trigger], "db-b": [trigger, view]}) == []
    assert merged_objects([[trigger], [other, view]]) == [trigger, view]
