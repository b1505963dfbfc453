"""Filter rules apply to copied rows, and a copy's condition loses no other row."""

from typing import Any

import pytest

from databases.table_cursor import TableCursor
from producers.copy.chunk import ChunkConnection, ChunkJob, is_one_condition
from producers.copy.chunk_reader import ChunkReader
from producers.filters.rules import FilterRule, FilterSettings, Mask, MaskKind, TablePattern
from producers.settings import CopySettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.copy.copying import check_copied_log, request, wait_state
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    check_progress,
    producing,
    read_log,
    server_of,
    settings_alone,
    settings_of,
    wait_caught_up,
)
from topics.progress.copy_topic import CopyAction, CopyState
from topics.records.vevent import Op, VEvent

TABLE = (
    "CREATE TABLE {name} (id INT, mail VARCHAR(40) CHARACTER SET latin1 NOT NULL, "
    "name VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, age TINYINT UNSIGNED, "
    "country CHAR(2) CHARACTER SET ascii COLLATE ascii_bin, born DATE NOT NULL, "
    "seen DATETIME(3), price DECIMAL(8, 3), kind ENUM('a', 'COMPRESSED'), raw VARBINARY(8), "
    "more JSON, PRIMARY KEY (born, mail, id))"
)
ROWS = ", ".join(
    f"({i}, 'm{i}@é', {name}, {age}, '{country}', '{born}', '2024-05-06 07:08:09.{i:03d}', "
    f"{i}.125, '{('a', 'COMPRESSED')[i % 2]}', X'00FF{i % 256:02X}', '[{i}]')"
    for i in range(60)
    for name in (("NULL", "'Ünï'", "'Zoë'")[i % 3],)
    for age in ((17, 18, 19, "NULL")[i % 4],)
    for country in (("DE", "FR", "US")[i % 3],)
    # One that no calendar has, in the key.
    for born in (("0000-00-00", "2001-02-03")[i % 2],)
)
WHERE = (
    "age >= 18 AND country IN ('DE', 'FR') AND raw <> X'00FF07' "
    "OR name = 'Zoë' AND seen < '2024-05-06 07:08:09.030' OR born < '1000-01-01' AND age IS NULL"
)


def events_of(events: list[VEvent], table: str, op: Op) -> dict[Any, VEvent]:
    """The events of a table by id."""
    return {
        event.after["id"]: event
        for event in events
        if event.table == table and event.op is op and event.after is not None
    }


def test_copied_rows_go_by_the_rules_of_the_stream(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A rule filters and masks existing rows exactly as it does inserted ones."""
    name = database.new_database()
    tables = {table: f"{name}.{table}" for table in ("copied", "streamed", "secret")}
    no_mode = "SET SESSION sql_mode = ''"
    statements(database, *(TABLE.format(name=table) for table in tables.values()))
    statements(database, no_mode, f"INSERT INTO {tables['copied']} VALUES {ROWS}")
    rule = FilterRule(
        TablePattern(f"/{name}[.](copied|streamed)/"),
        columns=("id", "mail", "name", "born", "seen", "price", "kind", "raw", "more"),
        where=WHERE,
        masks={
            "mail": Mask(MaskKind.HMAC),
            "name": Mask(MaskKind.TRUNCATE, 2),
            "price": Mask(MaskKind.NULL),
            "raw": Mask(MaskKind.DROP),
        },
    )
    filters = FilterSettings(
        exclude=(TablePattern(tables["secret"]),), rules=(rule,), hmac_key=b"k" * 32
    )
    settings = settings_of(
        database, kafka, keyspace, filters=filters, copy=CopySettings(chunk_rows_max=7)
    )
    with producing(settings):
        statements(database, no_mode, f"INSERT INTO {tables['streamed']} VALUES {ROWS}")
        refused = request(settings, CopyAction.START, tables["secret"])
        assert request(settings, CopyAction.START, tables["copied"]).problems == ()
        [copy] = wait_state(settings, CopyState.COMPLETED).values()
        wait_caught_up(settings)

    log = read_log(settings)
    check_copied_log(log)
    check_progress(log)
    reads = events_of(log.events, "copied", Op.READ)
    inserts = events_of(log.events, "streamed", Op.INSERT)
    assert 10 < len(reads) < 50
    assert {i: e.after for i, e in reads.items()} == {i: e.after for i, e in inserts.items()}
    for number, read in reads.items():
        inserted = inserts[number].shape
        assert read.shape is not None
        assert inserted is not None
        assert read.shape.columns == inserted.columns
        assert read.shape.primary_key == inserted.primary_key
    assert (copy.rows, copy.rows_read) == (len(reads), 60)
    [problem] = refused.problems
    assert f"table {tables['secret']} is excluded" in problem


def test_rows_that_come_between_the_selects_of_a_chunk_push_none_out(
    mysql_a: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition's chunk finds its last key first; rows inserted then join it (MyISAM)."""
    name = mysql_a.new_database()
    values = ", ".join(f"({i}, 1)" for i in range(10, 110, 10))
    statements(
        mysql_a,
        f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v INT) ENGINE = MyISAM",
        f"INSERT INTO {name}.t VALUES {values}",
    )
    reader = ChunkReader(settings_alone(mysql_a), server_of(mysql_a))
    read = ChunkConnection.read
    more: list[str] = []

    def read_and_insert(*arguments: Any) -> Any:
        found = read(*arguments)
        statements(mysql_a, *(f"INSERT INTO {name}.t VALUES {each}" for each in more))
        more.clear()
        return found

    monkeypatch.setattr(ChunkConnection, "read", read_and_insert)
    more.append("(1, 1), (2, 1), (3, 1), (4, 0)")
    first = reader.read(ChunkJob(name, "t", "v = 1", None, True, 3, ""))
    more.append("(91, 1), (92, 1), (93, 1)")
    after = TableCursor(("80",), first.part.definition.fingerprint)
    last = reader.read(ChunkJob(name, "t", "v = 1", after, False, 3, ""))
    reader.close()

    # 1, 2, 3, 10, 20, 30: all up to the key that was found.
    assert (first.part.rows.rows, first.part.is_last) == (6, False)
    assert first.part.rows.pieces[-1].last_key == ("30",)
    # 90, 91, 92: the copy goes on behind them.
    assert (last.part.rows.rows, last.part.is_last) == (3, False)
    assert last.part.rows.pieces[-1].last_key == ("92",)


@pytest.mark.parametrize(
    ("where", "is_one"),
    [
        ("v = 7 OR (v > 97)", True),
        ("v = ')' AND `a)` = \"it's (\"", True),
        ("", True),
        ("1) OR (1", False),
        ("(v = 1", False),
        ("v = 'a", False),
        ("v = 1 -- or not", False),
        ("/*!50000 1) OR (1 */", False),
        ("v = 1; DROP TABLE t", False),
    ],
)
def test_a_condition_stands_for_itself(where: str, *, is_one: bool) -> None:
    """A condition that would cancel the chunk's own bounds is refused."""
    assert is_one_condition(where) is is_one
