"""Filter rules in a running producer: refused at start, applied to rows, broken by DDL."""

from dataclasses import replace

import pytest

from databases.errors import ServerRefused
from producers.decoder import RuleBroken
from producers.filters.rules import FilterRule, FilterSettings, Mask, MaskKind, TablePattern
from producers.settings import ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import (
    RunningProducer,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from topics.records.vevent import EventType

TABLE = (
    "CREATE TABLE {db}.people(id INT PRIMARY KEY, mail VARCHAR(40), age INT, u BINARY(16), "
    "country CHAR(2) CHARACTER SET ascii COLLATE ascii_bin)"
)


def run(database: DatabaseFixture, *statements: str) -> None:
    with database.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def filters_of(name: str, **changes: object) -> FilterSettings:
    """Rules of `people`: adults of two countries, without their mail."""
    rule = {
        "where": "age >= 18 AND country IN ('DE', 'FR')",
        "masks": {"mail": Mask(MaskKind.DROP)},
        **changes,
    }
    return FilterSettings(rules=(FilterRule(TablePattern(f"{name}.people"), **rule),))  # type: ignore[arg-type]


def refusal(settings: ShardProducerSettings) -> str:
    """Return the error of a producer that refuses to start."""
    error = RunningProducer(settings).wait_error()
    assert isinstance(error, ServerRefused)
    return str(error)


@pytest.mark.full
def test_rules_hold_until_a_ddl_breaks_them(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F33: Rows are filtered and masked; DDL that drops a rule's column stops the shard."""
    name = database.new_database()
    run(database, TABLE.format(db=name))
    settings = settings_of(database, kafka, keyspace, filters=filters_of(name))
    with producing(settings):
        run(
            database,
            f"INSERT INTO {name}.people VALUES (1, 'a@b', 30, '', 'DE'), (2, 'c@d', 7, '', 'DE')",
            f"UPDATE {name}.people SET age = 18 WHERE id = 2",
            f"ALTER TABLE {name}.people ADD COLUMN more INT",
            f"UPDATE {name}.people SET country = 'US' WHERE id = 1",
        )
        wait_caught_up(settings)
    producer = RunningProducer(settings)
    producer.wait_streaming()
    run(database, f"ALTER TABLE {name}.people DROP COLUMN country")
    error = producer.wait_error()

    assert isinstance(error, RuleBroken)
    for said in ("in transaction", "binlog", f"{name}.people", "there is no column country"):
        assert said in str(error)
    events = read_log(settings).events
    rows = [e for e in events if e.type is EventType.ROW]
    assert [e.op.value for e in rows] == ["INSERT", "INSERT", "DELETE"]
    assert [(e.after or e.before or {})["id"] for e in rows] == [1, 2, 1]
    assert all("mail" not in (e.after or e.before or {}) for e in rows)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))


def test_tables_of_rules_may_be_created_again(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B5: DROP and CREATE of tables that a filter names, also in `exclude`, stop nothing."""
    name = database.new_database()
    secret = f"CREATE TABLE {name}.secret(id INT PRIMARY KEY)"
    run(database, TABLE.format(db=name), secret)
    filters = replace(filters_of(name), exclude=(TablePattern(f"{name}.secret"),))
    settings = settings_of(database, kafka, keyspace, filters=filters)
    with producing(settings):
        run(database, f"DROP TABLE {name}.people", f"DROP TABLE {name}.secret")
        wait_caught_up(settings)
        run(
            database,
            TABLE.format(db=name),
            f"INSERT INTO {name}.people VALUES (1, 'a@b', 30, '', 'DE'), (2, 'c@d', 7, '', 'DE')",
            secret,
            f"INSERT INTO {name}.secret VALUES (1)",
        )
        wait_caught_up(settings)

    rows = [e for e in read_log(settings).events if e.type is EventType.ROW]
    assert [(e.table, (e.after or {})["id"]) for e in rows] == [("people", 1)]


def test_rules_that_do_not_fit_are_refused_at_start(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Missing tables and columns, and comparisons by unknown collations, are reported at once."""
    name = database.new_database()
    run(database, TABLE.format(db=name))
    rules = filters_of(name, where="nope = 1").rules
    wrong = FilterSettings(
        include=(TablePattern(f"{name}.people"), TablePattern(f"{name}.gone")), rules=rules
    )
    said = refusal(settings_of(database, kafka, keyspace, filters=wrong))
    assert f"table {name}.gone, which does not exist" in said
    assert f"rule of {name}.people: there is no column nope" in said

    for where, said in (
        (
            "mail = 'x'",
            "cannot be evaluated exactly as the server does, so it is refused: name a coll",
        ),
        ("country = 'é'", "text that ascii cannot hold"),
    ):
        settings = settings_of(database, kafka, keyspace, filters=filters_of(name, where=where))
        assert said in refusal(settings)
    assert read_log(settings).progress == []


@pytest.mark.parametrize(("sql_type", "where"), [("INET6", "u = x'00'"), ("FLOAT(7,2)", "u = 0.1")])
def test_types_that_the_binlog_hides_are_refused(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str, sql_type: str, where: str
) -> None:
    """Comparisons with UUID (BINARY in a binlog) and FLOAT (rounded) columns are refused."""
    name = mariadb_a.new_database()
    run(mariadb_a, f"CREATE TABLE {name}.people(id INT PRIMARY KEY, u {sql_type})")
    filters = filters_of(name, where=where, masks={})

    said = refusal(settings_of(mariadb_a, kafka, keyspace, filters=filters))
    assert f"a comparison of the type {sql_type.lower()}" in said


def test_rules_of_system_versioned_tables_are_checked_at_start(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """They exist, and have the columns that no catalog lists; `row_end` may not be left out."""
    name = mariadb_a.new_database()
    run(mariadb_a, f"CREATE TABLE {name}.t(id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING")

    def filters(*columns: str) -> FilterSettings:
        table = TablePattern(f"{name}.t")
        return FilterSettings(include=(table,), rules=(FilterRule(table, columns=columns),))

    whole = settings_of(mariadb_a, kafka, keyspace, filters=filters("id", "row_start", "row_end"))
    cut = settings_of(mariadb_a, kafka, keyspace, filters=filters("id", "v"))
    with producing(whole):
        run(mariadb_a, f"INSERT INTO {name}.t VALUES (1, 1)")
        wait_caught_up(whole)

    [row] = [e for e in read_log(whole).events if e.type is EventType.ROW]
    assert list(row.after or {}) == ["id", "row_start", "row_end"]
    assert "column row_end is left out, but it is in the primary key" in refusal(cut)
