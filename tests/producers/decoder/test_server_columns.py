"""Columns that the log leaves out: what the catalog says of them, and what rules and copies see."""

import re

import pytest

from producers.decoder import HiddenType, NoKeyspaceId, RuleBroken, UnsupportedColumn
from producers.filters.binding import TableFilters, sharding_columns
from producers.filters.rules import FilterRule, FilterSettings, TablePattern
from producers.servers.server_catalog import ServerCatalog, rule_problems
from producers.settings import ServerSettings, ShardProducerSettings
from producers.typed_columns import NOTHING_DECLARED
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import (
    ALL_ROWS,
    Sink,
    catalog_of,
    decode,
    new_decoder,
)
from tests.producers.session.producing import server_of
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import TableVindex
from topics.records.vevent import Row

TABLE = "CREATE TABLE t(id INT PRIMARY KEY, a TEXT NOT NULL UNIQUE)"
ROWS = "INSERT INTO t VALUES (1, 'x'), (2, 'y')"


def images(sink: Sink) -> list[Row | None]:
    """The rows after each change."""
    return [event.after for event in sink.events() if event.shape is not None]


def test_rules_do_not_see_them(mariadb_a: DatabaseFixture) -> None:
    """A rule filters a table with a hash as any other, and cannot name the hash."""
    name, before = mariadb_a.new_database(), executed_set(mariadb_a)
    run_statements(mariadb_a, name, (TABLE, ROWS))
    stream = capture(mariadb_a, before)

    def filtered(**rule: object) -> Sink:
        rules = (FilterRule(TablePattern(f"{name}.t"), **rule),)  # type: ignore[arg-type]
        filters = TableFilters(FilterSettings(rules=rules), {})
        catalog = catalog_of(mariadb_a)
        return decode(stream, mariadb_a.flavor, before, rules=filters, catalog=catalog)[0]

    assert images(filtered(where="id > 1")) == [{"id": 2, "a": "y"}]
    assert images(filtered(columns=("id",))) == [{"id": 1}, {"id": 2}]
    with pytest.raises(
        RuleBroken, match=r"no column DB_ROW_HASH_1; there are id, a; .*: DB_ROW_HASH_1$"
    ):
        filtered(columns=("id", "DB_ROW_HASH_1"))


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("SET @a = 1", ""),
        ("ALTER TABLE t ADD COLUMN b INT", "logged (none), and others are not (DB_ROW_HASH_1)"),
        ("DROP TABLE t", "logged (none), and others are not (DB_ROW_HASH_1)"),
        ("DROP TABLE t; CREATE TABLE t(DB_ROW_HASH_1 INT)", "logged (DB_ROW_HASH_1), and others"),
    ],
)
def test_what_the_catalog_does_not_have_is_said(
    mariadb_a: DatabaseFixture, then: str, said: str
) -> None:
    """A table that was changed or dropped since is checked by names, and an operator reads so."""
    name, before = mariadb_a.new_database(), executed_set(mariadb_a)
    run_statements(mariadb_a, name, (TABLE, ROWS, *then.split("; ")))
    notices: list[str] = []
    catalog = catalog_of(mariadb_a, on_notice=notices.append)
    sink, _ = decode(capture(mariadb_a, before), mariadb_a.flavor, before, catalog=catalog)

    assert [{"id": row["id"], "a": row["a"]} for row in images(sink) if row] == [
        {"id": 1, "a": "x"},
        {"id": 2, "a": "y"},
    ]
    assert [said in notice for notice in notices] == [True] * bool(said)


def test_a_column_of_the_name_of_a_user_takes_its_place(mariadb_a: DatabaseFixture) -> None:
    """The table map stays the same, byte for byte: the server is asked again after each DDL."""
    name, before = mariadb_a.new_database(), executed_set(mariadb_a)
    sink = Sink()
    decoder = new_decoder(sink, mariadb_a.flavor, before, catalog=catalog_of(mariadb_a))
    own = "DB_ROW_HASH_1 BIGINT UNSIGNED NOT NULL"
    steps = (
        (f"CREATE TABLE t(a TEXT NOT NULL, {own})", "INSERT INTO t VALUES ('x', 5)"),
        ("ALTER TABLE t DROP COLUMN DB_ROW_HASH_1, ADD UNIQUE (a)", "INSERT INTO t VALUES ('y')"),
        (f"ALTER TABLE t DROP INDEX a, ADD COLUMN {own}", "INSERT INTO t VALUES ('z', 7)"),
    )
    for statements in steps:
        run_statements(mariadb_a, name, statements)
        stream = capture(mariadb_a, before)
        decoder.feed(stream, 0, len(stream), ALL_ROWS)
        decoder.take_batch()
        before = executed_set(mariadb_a)

    assert images(sink) == [
        {"a": "x", "DB_ROW_HASH_1": 5},
        {"a": "y"},
        {"a": "z", "DB_ROW_HASH_1": 7},
    ]


def test_what_may_not_be_seen_stops(mariadb_a: DatabaseFixture) -> None:
    """Without SELECT the server shows no column, and none is left out on a guess."""
    name, before = mariadb_a.new_database(), executed_set(mariadb_a)
    run_statements(mariadb_a, name, (TABLE, ROWS))
    stream = capture(mariadb_a, before)
    run_statements(mariadb_a, name, ("CREATE OR REPLACE USER unseeing@'127.0.0.1'",))
    account = ServerSettings(mariadb_a.host, mariadb_a.port, "unseeing", "")
    with mariadb_a.connect(user="unseeing") as asking:
        catalog = ServerCatalog(mariadb_a.flavor, NOTHING_DECLARED, account, asking, lambda _: None)
        with pytest.raises(HiddenType, match=rf"{name}\.t .* SELECT .* on {name}"):
            decode(stream, mariadb_a.flavor, before, catalog=catalog)


GENERATED = "CREATE TABLE t(id INT PRIMARY KEY, a INT, g INT AS (a + 1) VIRTUAL)"


def test_rules_and_vindexes_over_generated_columns_are_refused(mariadb_a: DatabaseFixture) -> None:
    """The message says why there is no such column, at the start and at the first row."""
    name, before = mariadb_a.new_database(), executed_set(mariadb_a)
    run_statements(mariadb_a, name, (GENERATED, "INSERT INTO t(id, a) VALUES (1, 2)"))
    stream = capture(mariadb_a, before)
    filters = FilterSettings(rules=(FilterRule(TablePattern(f"{name}.t"), where="g = 3"),))
    settings = ShardProducerSettings(
        keyspace="commerce",
        shard="-",
        flavor=mariadb_a.flavor,
        servers=(server_of(mariadb_a),),
        kafka=ClientConfig({"bootstrap.servers": "nowhere:9092"}),
        filters=filters,
    )
    with mariadb_a.connect() as connection:
        (at_start,) = rule_problems(connection, "db", settings, at_start=True)
    with pytest.raises(RuleBroken) as at_row:
        decode(
            *(stream, mariadb_a.flavor, before),
            rules=TableFilters(filters, {}),
            catalog=catalog_of(mariadb_a),
        )
    sharded = sharding_columns([TableVindex(name, "t", ("g",), "hash")])
    with pytest.raises(NoKeyspaceId) as unsharded:
        decode(
            *(stream, mariadb_a.flavor, before),
            vindexes=sharded,
            catalog=catalog_of(mariadb_a),
        )

    for said in (at_start.what, str(at_row.value), str(unsharded.value)):
        assert re.search(r" no column g.* id, a; .* MariaDB generates, .* image: g$", said), said


def test_a_table_of_generated_columns_alone_stops(mariadb_a: DatabaseFixture) -> None:
    """Its rows would have no columns; the message says what to do."""
    name, before = mariadb_a.new_database(), executed_set(mariadb_a)
    run_statements(
        mariadb_a, name, ("CREATE TABLE t(g INT AS (1) VIRTUAL)", "INSERT INTO t VALUES ()")
    )
    stream, catalog = capture(mariadb_a, before), catalog_of(mariadb_a)

    with pytest.raises(UnsupportedColumn, match=rf"{name}\.t has no columns but .* exclude it"):
        decode(stream, mariadb_a.flavor, before, catalog=catalog)


def test_one_that_becomes_ordinary_is_logged_from_there_on(mariadb_a: DatabaseFixture) -> None:
    """The table map stays the same, so the server is asked after statements that name the table."""
    name, before = mariadb_a.new_database(), executed_set(mariadb_a)
    sink = Sink()
    decoder = new_decoder(sink, mariadb_a.flavor, before, catalog=catalog_of(mariadb_a))
    for statements in (
        (GENERATED, "INSERT INTO t(id, a) VALUES (1, 2)", "UPDATE t SET a = 3"),
        ("ALTER TABLE t DROP g, ADD g INT", "UPDATE t SET g = 7"),
        ("ALTER TABLE t DROP g, ADD g INT AS (a + 2) STORED", "UPDATE t SET a = 4"),
    ):
        run_statements(mariadb_a, name, statements)
        stream = capture(mariadb_a, before)
        decoder.feed(stream, 0, len(stream), ALL_ROWS)
        decoder.take_batch()
        before = executed_set(mariadb_a)

    assert images(sink) == [
        {"id": 1, "a": 2},
        {"id": 1, "a": 3},
        {"id": 1, "a": 3, "g": 7},
        {"id": 1, "a": 4},
    ]
