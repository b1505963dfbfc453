"""System-versioned tables of MariaDB: which column ends row versions, and who says so."""

import pytest

from databases.connection import open_connection
from producers.decoder import HiddenType, RuleBroken
from producers.filters.masks import Mask, MaskKind
from producers.filters.rules import FilterSettings, Rule, TablePattern
from producers.filters.table_filters import TableFilters
from producers.preflight.hidden_types import ServerTypes
from producers.preflight.typed_columns import NOTHING_DECLARED
from producers.settings import ServerSettings
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import ALL_ROWS, Sink, decode, new_decoder, types_of
from tests.spark_consumers.versioned_tables import changes_since, check_present_rows

EXPLICIT = (
    (
        "CREATE TABLE t(id INT PRIMARY KEY, s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, "
        "e TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME(s, e)) "
        "WITH SYSTEM VERSIONING"
    ),
    "INSERT INTO t(id) VALUES (1)",
)
IMPLICIT = (
    "CREATE TABLE t(id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
    "INSERT INTO t VALUES (1)",
)


def logged(server: DatabaseFixture, *statements: str, **rule: object) -> Sink:
    """The log of statements, read when all of them have been executed."""
    name, before = server.new_database(), executed_set(server)
    run_statements(server, name, statements)
    rules = (Rule(TablePattern(f"{name}.t"), **rule),) if rule else ()  # type: ignore[arg-type]
    filters = TableFilters(FilterSettings(rules=rules, hmac_key=b"k" * 32), {})
    notices: list[str] = []
    types = types_of(server, NOTHING_DECLARED, notices.append)
    stream = capture(server, before)
    sink, _ = decode(stream, server.flavor, before, rules=filters, hidden_types=types)
    sink.notices[:] = notices
    return sink


def key_and_end(sink: Sink) -> tuple[list[str], str | None]:
    """The primary key of the first table version, and the column that ends versions of its rows."""
    shape = next(event.shape for event in sink.events() if event.shape is not None)
    names = [column.name for column in shape.columns]
    end = None if shape.row_end is None else names[shape.row_end]
    return [names[i] for i in shape.primary_key], end


def test_the_present_rows_are_what_a_select_shows(mariadb_a: DatabaseFixture) -> None:
    """Of versioned tables, changed in every way, a replay of the log has no history."""
    check_present_rows(mariadb_a)


def test_the_server_tells_which_column_ends_versions(mariadb_a: DatabaseFixture) -> None:
    """The key is without it; a plain table of the same form has none."""
    plain = "CREATE TABLE t(id INT, s TIMESTAMP(6), e TIMESTAMP(6), PRIMARY KEY(id, e))"
    row = "INSERT INTO t VALUES (1, NOW(6), NOW(6))"

    assert key_and_end(logged(mariadb_a, *EXPLICIT)) == (["id"], "e")
    assert key_and_end(logged(mariadb_a, *IMPLICIT)) == (["id"], "row_end")
    assert key_and_end(logged(mariadb_a, plain, row)) == (["id", "e"], None)


def test_names_tell_of_a_table_that_is_gone(mariadb_a: DatabaseFixture) -> None:
    """Those that MariaDB gives are enough; of others nothing is guessed, and a notice says so."""
    implicit = logged(mariadb_a, *IMPLICIT, "DROP TABLE t")
    altered = logged(mariadb_a, *IMPLICIT, "ALTER TABLE t DROP SYSTEM VERSIONING")
    explicit = logged(mariadb_a, *EXPLICIT, "DROP TABLE t")

    assert key_and_end(implicit) == key_and_end(altered) == (["id"], "row_end")
    assert implicit.notices == altered.notices == []
    assert key_and_end(explicit) == (["id", "e"], None)
    assert "unknown whether it was system-versioned with e as its ROW END" in explicit.notices[0]


def test_versioning_that_comes_without_a_new_table_map_is_seen(mariadb_a: DatabaseFixture) -> None:
    """A key that had the column before the ALTER has the same table map after it."""
    name, before = mariadb_a.new_database(), executed_set(mariadb_a)
    sink = Sink()
    types = types_of(mariadb_a, NOTHING_DECLARED)
    decoder = new_decoder(sink, mariadb_a.flavor, before, hidden_types=types)
    table = (
        "CREATE TABLE t(id INT, s TIMESTAMP(6) NOT NULL DEFAULT NOW(6), "
        "e TIMESTAMP(6) NOT NULL DEFAULT NOW(6), PRIMARY KEY(id, e))"
    )
    versioned = (
        "ALTER TABLE t MODIFY s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, "
        "MODIFY e TIMESTAMP(6) GENERATED ALWAYS AS ROW END, "
        "ADD PERIOD FOR SYSTEM_TIME(s, e), ADD SYSTEM VERSIONING"
    )
    for statements in (
        (table, "INSERT INTO t(id) VALUES (1)"),
        ("DELETE FROM t", versioned),
        ("INSERT INTO t(id) VALUES (2)",),
    ):
        before = executed_set(mariadb_a)
        run_statements(mariadb_a, name, statements)
        stream = capture(mariadb_a, before)
        decoder.feed(stream, 0, len(stream), ALL_ROWS)
        decoder.take_batch()

    shapes = [event.shape for event in sink.events() if event.shape is not None]
    assert [(shape.primary_key, shape.row_end) for shape in shapes] == [
        ((0, 2), None),
        ((0, 2), None),
        ((0,), 2),
    ]


def test_minimal_images_tell_present_rows_too(mariadb_a: DatabaseFixture) -> None:
    """The key of the binlog has the column, so that each image before a change has it."""
    name, before = mariadb_a.new_database(), executed_set(mariadb_a)
    changes = ("UPDATE t SET id = 2", "DELETE FROM t", "DELETE HISTORY FROM t")
    run_statements(mariadb_a, name, ("SET binlog_row_image = MINIMAL", *IMPLICIT, *changes))

    found = [each for each in changes_since(mariadb_a, before) if each["type"] == "ROW"]

    assert [(each["op"], each["present_op"]) for each in found] == [
        ("INSERT", "INSERT"),
        ("UPDATE", "UPDATE"),
        ("INSERT", "NONE"),
        ("UPDATE", "DELETE"),
        ("DELETE", "NONE"),
        ("DELETE", "NONE"),
    ]


@pytest.mark.parametrize(
    "rule", [{"columns": ("id",)}, {"masks": {"row_end": Mask(MaskKind.NULL)}}], ids=str
)
def test_a_filter_rule_may_not_hide_the_column(
    mariadb_a: DatabaseFixture, rule: dict[str, object]
) -> None:
    """Without it nobody could tell present rows from history."""
    with pytest.raises(RuleBroken, match=r"column row_end is .*in the primary key"):
        logged(mariadb_a, *IMPLICIT, **rule)


def test_an_account_that_cannot_see_the_table_is_named_a_grant(mariadb_a: DatabaseFixture) -> None:
    """Nothing tells then whether the table is versioned, so its first row stops the shard."""
    name, before = mariadb_a.new_database(), executed_set(mariadb_a)
    run_statements(mariadb_a, name, EXPLICIT)
    with mariadb_a.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER blind_{name} IDENTIFIED BY 'x'")
        cursor.execute(f"GRANT REPLICATION SLAVE ON *.* TO blind_{name}")
    server = ServerSettings(mariadb_a.host, mariadb_a.port, f"blind_{name}", "x")
    types = ServerTypes(NOTHING_DECLARED, server, open_connection(server), lambda _: None)
    stream = capture(mariadb_a, before)

    with pytest.raises(HiddenType, match=f"GRANT SELECT ON {name}"):
        decode(stream, mariadb_a.flavor, before, hidden_types=types)
