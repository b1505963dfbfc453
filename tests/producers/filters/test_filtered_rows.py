"""Rows of tables with rules, decoded from real servers' streams."""

import secrets
from typing import Any

import pytest

from producers.decoder import RuleBroken, UnsupportedEvent
from producers.filters.binding import TableFilters, sharding_columns
from producers.filters.rules import FilterRule, FilterSettings, Mask, MaskKind, TablePattern
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import Sink, decode
from tests.topics.records.record_encoder import record_key
from topics.keyspace.topology import TableVindex
from topics.keyspace.vindexes import vindex_named
from topics.records.vevent import EventType, VEvent

KEY = b"0123456789abcdef0123456789abcdef"


def filtered(
    database: DatabaseFixture,
    statements: tuple[str, ...],
    *,
    left_out: int | None = None,
    vindex: tuple[str, str] | None = None,
    tables: dict[str, Any] | None = None,
    **rule: Any,
) -> Sink:
    """Return the events of statements on table `t` under a rule; `vindex`: (column, name)."""
    before = executed_set(database)
    name = database.new_database()
    run_statements(database, name, statements)
    entries = [] if vindex is None else [TableVindex(name, "t", (vindex[0],), vindex[1])]
    vindexes = sharding_columns(entries)
    rules = (FilterRule(TablePattern(f"{name}.t"), **rule),) if rule else ()
    patterns = {
        key: tuple(TablePattern(text.replace("{db}", name)) for text in texts)
        for key, texts in (tables or {}).items()
    }
    include, exclude = patterns.get("include", ()), patterns.get("exclude", ())
    settings = FilterSettings(include, exclude, rules, KEY)
    stream = capture(database, before)
    sink, summary = decode(
        stream,
        database.flavor,
        before,
        vindexes=vindexes,
        rules=TableFilters(settings, vindexes),
    )
    assert summary.position == executed_set(database)
    assert left_out is None or summary.rows_filtered == left_out
    seqs = [event.seq for event in sink.events()]
    assert seqs == list(range(1, len(seqs) + 1))
    assert all(seq <= len(seqs) for _, seq in summary.ticks)
    return sink


def rows_of(sink: Sink) -> list[VEvent]:
    return [event for event in sink.events() if event.type is EventType.ROW]


def shown(sink: Sink) -> list[tuple[str, Any, Any]]:
    return [(e.op.value, e.before, e.after) for e in rows_of(sink)]


def test_updates_across_the_border_come_and_go(database: DatabaseFixture) -> None:
    """An update out of the rule is a DELETE, into it an INSERT; `last` is on the last row kept."""
    sink = filtered(
        database,
        (
            "CREATE TABLE t(id INT PRIMARY KEY, n INT)",
            "INSERT INTO t VALUES (1, 5), (2, 50), (3, NULL)",
            "UPDATE t SET n = 60 WHERE id = 1",
            "UPDATE t SET n = 6 WHERE id = 2",
            "UPDATE t SET n = 7 WHERE id = 2",
            "UPDATE t SET n = 9 WHERE id = 3",
            "UPDATE t SET n = 99 WHERE id = 1",
            "BEGIN",
            "INSERT INTO t VALUES (4, 1)",
            "INSERT INTO t VALUES (5, 100)",
            "COMMIT",
            "DELETE FROM t",
        ),
        where="n < 10",
        left_out=6,
    )

    assert shown(sink) == [
        ("INSERT", None, {"id": 1, "n": 5}),
        ("DELETE", {"id": 1, "n": 5}, None),
        ("INSERT", None, {"id": 2, "n": 6}),
        ("UPDATE", {"id": 2, "n": 6}, {"id": 2, "n": 7}),
        ("INSERT", None, {"id": 3, "n": 9}),
        ("INSERT", None, {"id": 4, "n": 1}),
        ("DELETE", {"id": 2, "n": 7}, None),
        ("DELETE", {"id": 3, "n": 9}, None),
        ("DELETE", {"id": 4, "n": 1}, None),
    ]
    last = [event.last for event in rows_of(sink)]
    assert last == [True] * 6 + [False, False, True]
    assert [m.key for m in sink.messages] == [record_key(event) for event in sink.events()]


def test_columns_masks_and_keys(database: DatabaseFixture) -> None:
    """Columns are dropped and masked; NULLs, keys and invalid dates stay right."""
    sink = filtered(
        database,
        (
            "SET sql_mode = ''",
            "CREATE TABLE t(a CHAR(9), secret INT, b INT, day DATE, mail CHAR(40) CHARSET utf8mb4)",
            "ALTER TABLE t ADD raw VARBINARY(9), ADD note TEXT, ADD PRIMARY KEY(b, a)",
            "INSERT INTO t VALUES ('x', 1, 7, '0000-00-00', 'ä@b.c', x'010203', 'hello')",
            "INSERT INTO t VALUES ('y', NULL, 8, NULL, NULL, NULL, NULL)",
            "UPDATE t SET mail = 'ä@b.c', day = '2024-02-00' WHERE a = 'y'",
        ),
        columns=("a", "b", "day", "mail", "raw", "note"),
        masks={
            "mail": Mask(MaskKind.HMAC),
            "raw": Mask(MaskKind.TRUNCATE, 2),
            "note": Mask(MaskKind.NULL),
        },
    )

    first, second, update = rows_of(sink)
    assert first.after is not None
    assert second.after is not None
    assert update.after is not None
    digest = first.after["mail"]
    assert first.after == {
        "a": "x",
        "b": 7,
        "day": "0000-00-00",
        "mail": digest,
        "raw": b"\1\2",
        "note": None,
    }
    assert isinstance(digest, str)
    assert len(digest) == 64
    assert second.after == {"a": "y", "b": 8, **dict.fromkeys(("day", "mail", "raw", "note"))}
    assert update.before == second.after
    assert (update.after["mail"], update.after["day"]) == (digest, "2024-02-00")
    assert [m.key for m in sink.messages] == [record_key(event) for event in sink.events()]


def test_keyspace_ids_need_no_written_column(database: DatabaseFixture) -> None:
    """Keyspace ids exist although their column is dropped, and in_keyrange uses them."""
    sink = filtered(
        database,
        (
            "CREATE TABLE t(id INT PRIMARY KEY, customer INT, n INT)",
            "INSERT INTO t VALUES (1, 1, 0), (2, 4, 0), (3, 3, 0)",
            "UPDATE t SET customer = 4 WHERE id = 1",
            "UPDATE t SET customer = 2 WHERE id = 1",
        ),
        vindex=("customer", "hash"),
        columns=("id",),
        where="in_keyrange('-80')",
    )

    ids = {n: vindex_named("hash").keyspace_id(n) for n in (1, 2, 3)}
    found = [(e.op.value, e.keyspace_id_before, e.keyspace_id_after) for e in rows_of(sink)]
    assert found == [
        ("INSERT", None, ids[1]),
        ("INSERT", None, ids[3]),
        ("DELETE", ids[1], None),
        ("INSERT", None, ids[2]),
    ]
    assert {tuple(e.after or e.before or {}) for e in rows_of(sink)} == {("id",)}


def test_tables_left_out_need_not_be_decodable(database: DatabaseFixture) -> None:
    """A18: rows of excluded tables are skipped without decoding, and so is their DDL."""
    sink = filtered(
        database,
        (
            "CREATE TABLE t(id INT PRIMARY KEY)",
            "CREATE TABLE other(id INT PRIMARY KEY)",
            "CREATE TABLE tmp_1(id INT PRIMARY KEY)",
            "BEGIN",
            "INSERT INTO t VALUES (1)",
            "INSERT INTO other VALUES (1)",
            "INSERT INTO tmp_1 VALUES (1)",
            "COMMIT",
            "INSERT INTO tmp_1 VALUES (2)",
        ),
        tables={"include": ["/{db}\\..*/"], "exclude": ["{db}.other", "/.*\\.tmp_\\d/"]},
    )

    assert [(e.table, e.last) for e in rows_of(sink)] == [("t", True)]
    assert [e.type for e in sink.events()].count(EventType.DDL) == 2


def test_ddl_of_a_database_that_is_left_out_is_not_logged(database: DatabaseFixture) -> None:
    """A18: what is surely about another database stays out, what may not be is logged."""
    hr = f"hr_{secrets.token_hex(4)}"
    own = ("CREATE TABLE t(id INT PRIMARY KEY)", "ALTER TABLE t ADD hr INT")
    unclear = f"/*!50000 CREATE TABLE {hr}.x(id INT) */"
    both = f"RENAME TABLE {hr}.x TO y"
    sink = filtered(
        database,
        (
            own[0],
            f"CREATE DATABASE {hr}",
            f"CREATE TABLE {hr}.staff(id INT PRIMARY KEY, pay INT) COMMENT 'not `t`'",
            f"ALTER TABLE `{hr}` . `staff` ADD n INT, RENAME COLUMN pay TO wage",
            f"CREATE INDEX by_wage ON {hr}.staff(wage)",
            f"DROP INDEX by_wage ON {hr}.staff",
            f"CREATE OR REPLACE ALGORITHM=MERGE VIEW {hr}.v AS SELECT * FROM t",
            f"CREATE TRIGGER {hr}.g BEFORE INSERT ON {hr}.staff FOR EACH ROW SET NEW.wage = 1",
            unclear,
            own[1],
            both,
            f"USE {hr}",
            "TRUNCATE staff",
            "RENAME TABLE staff TO people",
            "CREATE TABLE other LIKE people",
            "DROP TABLE people, other",
            f"DROP DATABASE {hr}",
        ),
        tables={"include": ["/{db}\\..*/"]},
    )

    said = [e.statement or "" for e in sink.events()]
    assert len(said) == 5
    assert said[0].startswith("CREATE DATABASE")
    assert [said[i] for i in (1, 3, 4)] == [own[0], own[1], both]
    assert f"{hr}.x" in said[2]


def test_partial_images(database: DatabaseFixture) -> None:
    """Absent columns stay absent; a WHERE on an absent column stops the shard by name."""
    statements = (
        "CREATE TABLE t(id INT PRIMARY KEY, a INT, b INT)",
        "INSERT INTO t VALUES (1, 1, 1)",
        "SET binlog_row_image = 'MINIMAL'",
        "UPDATE t SET b = 2",
    )
    sink = filtered(database, statements, columns=("id", "b"))

    assert shown(sink)[1:] == [("UPDATE", {"id": 1}, {"b": 2})]
    with pytest.raises(UnsupportedEvent, match=r"\.t lacks column a.*binlog_row_image=FULL"):
        filtered(database, statements, where="a = 1")


def test_a_version_that_breaks_its_rule_stops(database: DatabaseFixture) -> None:
    """The first row of a table that lost a column of its rule stops with rule, GTID, position."""
    with pytest.raises(RuleBroken, match=r"in transaction .*binlog .*\.t does not .* no column n"):
        filtered(
            database,
            (
                "CREATE TABLE t(id INT PRIMARY KEY, n INT)",
                "INSERT INTO t VALUES (1, 1)",
                "ALTER TABLE t DROP COLUMN n",
                "INSERT INTO t VALUES (2)",
            ),
            where="n = 1",
        )
