"""Definitions that no binlog shows, and names that try to be statements."""

from dataclasses import replace

import pytest

from producers.decoder import RuleBroken
from producers.filters.rules import FilterRule, FilterSettings, Mask, MaskKind, TablePattern
from producers.settings import ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.copy import copying
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    RunningProducer,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from topics.progress.copy_topic import CopyState
from topics.records.vevent import EventType

UNLOGGED = "SET SESSION sql_log_bin = 0"
LOGGED = "SET SESSION sql_log_bin = 1"
HOSTILE = (
    "a`b; DROP TABLE canary; --x",
    "x' OR '1'='1",
    'y" OR "1"="1',
    "dots.and spaces",
    "%s %(name)s {0} $(id)",
    "select",
    "ключ 漢字",
    "n" * 64,
)


def test_definitions_that_were_not_logged(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F18: rows after an unlogged ALTER have its columns; one that breaks a rule stops by name."""
    name = database.new_database()
    statements(database, f"CREATE TABLE {name}.t (id INT PRIMARY KEY, a INT, b VARCHAR(9))")
    settings = settings_of(database, kafka, keyspace)
    with producing(settings):
        statements(
            database,
            f"INSERT INTO {name}.t VALUES (1, 10, 'x')",
            UNLOGGED,
            f"ALTER TABLE {name}.t ADD COLUMN c INT FIRST, DROP COLUMN b",
            LOGGED,
            f"INSERT INTO {name}.t VALUES (77, 2, 20)",
        )
        wait_caught_up(settings)
    rows = [e.after for e in read_log(settings).events if e.type is EventType.ROW]

    masked = replace(settings, filters=mask_of(name, "a"))
    producer = RunningProducer(masked)
    producer.wait_streaming()
    statements(
        database,
        UNLOGGED,
        f"ALTER TABLE {name}.t CHANGE COLUMN a secret INT",
        LOGGED,
        f"INSERT INTO {name}.t VALUES (88, 3, 30)",
    )
    error = producer.wait_error()

    assert rows == [{"id": 1, "a": 10, "b": "x"}, {"c": 77, "id": 2, "a": 20}]
    assert isinstance(error, RuleBroken)
    assert f"{name}.t" in str(error)
    assert [e.after for e in read_log(settings).events if e.type is EventType.ROW] == rows


def mask_of(name: str, column: str) -> FilterSettings:
    """A rule that leaves a column of `t` out."""
    rule = FilterRule(TablePattern(f"{name}.t"), masks={column: Mask(MaskKind.DROP)})
    return FilterSettings(rules=(rule,))


def quoted(name: str) -> str:
    """The identifier as SQL."""
    return "`" + name.replace("`", "``") + "`"


@pytest.fixture
def hostile_database(database: DatabaseFixture) -> str:
    """A database with tables whose names and columns are hostile, and one row in each."""
    unique = database.new_database()
    name = f"{unique}`; DROP DATABASE {unique}; --x"
    columns = ", ".join(f"{quoted(column)} VARCHAR(80)" for column in HOSTILE)
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {quoted(name)} CHARACTER SET utf8mb4")
        cursor.execute(f"CREATE TABLE {quoted(unique)}.canary (id INT PRIMARY KEY)")
        for table in HOSTILE:
            place = f"{quoted(name)}.{quoted(table)}"
            key = f"PRIMARY KEY ({quoted(HOSTILE[0])}, {quoted(HOSTILE[-1])})"
            cursor.execute(f"CREATE TABLE {place} ({columns}, {key})")
            marks = ", ".join(["%s"] * len(HOSTILE))
            cursor.execute(f"INSERT INTO {place.replace('%', '%%')} VALUES ({marks})", HOSTILE)
    return name


def test_names_and_values_are_never_statements(
    database: DatabaseFixture, hostile_database: str, kafka: KafkaCluster, keyspace: str
) -> None:
    """F37: names with quotes, dots and statements are copied, streamed and filtered as names."""
    name = hostile_database
    unique = name.partition("`")[0]
    excluded = TablePattern(f"{name}.{HOSTILE[1]}")
    settings: ShardProducerSettings = replace(
        settings_of(database, kafka, keyspace), filters=FilterSettings(exclude=(excluded,))
    )
    tables = [table for table in HOSTILE if table != HOSTILE[1]]
    with producing(settings):
        copying.start(settings, *(f"{name}.{table}" for table in tables if "." not in table))
        copying.wait_state(settings, CopyState.COMPLETED)
        for table in HOSTILE:
            statements(
                database,
                f"UPDATE {quoted(name)}.{quoted(table)} SET {quoted('select')} = 'changed'",
            )
        wait_caught_up(settings)
    events = [e for e in read_log(settings).events if e.type is EventType.ROW]
    row = dict(zip(HOSTILE, HOSTILE, strict=True))

    changes = {e.table: (e.before, e.after) for e in events if e.before is not None}
    assert changes == {table: (row, {**row, "select": "changed"}) for table in tables}
    assert {e.table: e.after for e in events if e.before is None} == {
        table: row for table in tables if "." not in table
    }
    assert {e.database for e in events} == {name}
    with database.connect(database=unique) as connection, connection.cursor() as cursor:
        assert cursor.execute("SHOW TABLES LIKE 'canary'") == 1
