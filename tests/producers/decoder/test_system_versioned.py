"""System-versioned tables of MariaDB: which column ends row versions, and who says so."""

import pytest

from producers.decoder import RuleBroken
from producers.filters.binding import TableFilters
from producers.filters.rules import FilterRule, FilterSettings, Mask, MaskKind, TablePattern
from producers.typed_columns import NOTHING_DECLARED
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import ALL_ROWS, Sink, catalog_of, decode, new_decoder
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
    rules = (FilterRule(TablePattern(f"{name}.t"), **rule),) if rule else ()  # type: ignore[arg-type]
    filters = TableFilters(FilterSettings(rules=rules, hmac_key=b"k" * 32), {})
    notices: list[str] = []
    catalog = catalog_of(server, NOTHING_DECLARED, notices.append)
    stream = capture(server, before)
    sink, _ = decode(stream, server.flavor, before, rules=filters, catalog=catalog)
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
    catalog = catalog_of(mariadb_a, NOTHING_DECLARED)
    decoder = new_decoder(sink, mariadb_a.flavor, before, catalog=catalog)
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
