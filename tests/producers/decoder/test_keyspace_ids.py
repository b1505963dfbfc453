"""Keyspace ids in the envelope: those of each image's sharding column, in every kind of row."""

import pytest

from event_token.errors import UsageError
from producers.decoder import NoKeyspaceId
from producers.filters.binding import sharding_columns
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import Sink, decode
from tests.topics.records.record_encoder import record_key
from topics.keyspace.topology import TableVindex
from topics.keyspace.vindexes import vindex_named


def decoded(database: DatabaseFixture, vindex: str, *statements: str) -> Sink:
    """What statements on a table `t(c, ...)` give, `c` being its sharding column."""
    before = executed_set(database)
    name = database.new_database()
    run_statements(database, name, statements)
    vindexes = sharding_columns([TableVindex(name, "t", ("C",), vindex)])
    sink, _ = decode(capture(database, before), database.flavor, before, vindexes=vindexes)
    return sink


@pytest.mark.parametrize(
    ("vindex", "columns", "values"),
    [
        ("hash", "id INT PRIMARY KEY, c BIGINT", ("1, -7", "2, 9223372036854775807")),
        ("hash", "c BIGINT UNSIGNED PRIMARY KEY, v INT", ("18446744073709551615, 1", "5, 2")),
        (
            "xxhash",
            "d DATE, c VARCHAR(200), k INT, PRIMARY KEY(c, k)",
            ("0, 'ä', 1", "'2020-02-00', '', 2"),
        ),
        ("xxhash", "d DATETIME, c INT", ("0, NULL", "'2020-02-00', 70000")),
        ("numeric", "c MEDIUMINT UNSIGNED", ("0", "16777215")),
        ("binary", "v JSON, c VARBINARY(200)", ("'{}', x'00ff'", "NULL, REPEAT('z', 150)")),
        ("unicode_loose_md5", "c CHAR(20) CHARSET latin1", ("'Ünïcode'", "'x '")),
    ],
)
def test_ids_are_those_of_the_sharding_column(
    database: DatabaseFixture, vindex: str, columns: str, values: tuple[str, ...]
) -> None:
    """Each image has the id of its own value, and values, dates and keys stay what they are."""
    rows = ", ".join(f"({row})" for row in values)
    sink = decoded(
        database,
        vindex,
        "SET sql_mode = ''",
        f"CREATE TABLE t({columns})",
        f"INSERT INTO t VALUES {rows}",
        f"CREATE TABLE plain({columns})",
        f"INSERT INTO plain VALUES {rows}",
        "UPDATE t SET c = '7' WHERE c IS NOT NULL LIMIT 1",
        "DELETE FROM t",
    )

    keyspace_id = vindex_named(vindex).keyspace_id
    events = sink.events()
    changes = [event for event in events if event.table == "t"]
    assert len(changes) == 2 * len(values) + 1
    for event in changes:
        for row, found in (
            (event.before, event.keyspace_id_before),
            (event.after, event.keyspace_id_after),
        ):
            assert found == (None if row is None else keyspace_id(row["c"]))
    assert [m.key for m in sink.messages] == [record_key(event) for event in events]
    plain = [event for event in events if event.table == "plain"]
    assert [e.after for e in plain] == [e.after for e in changes[: len(values)]]
    assert {(e.keyspace_id_before, e.keyspace_id_after) for e in plain} == {(None, None)}


def test_an_image_without_the_column_has_no_id(database: DatabaseFixture) -> None:
    """A MINIMAL image that lacks the sharding column has no id; one that has it, has one."""
    sink = decoded(
        database,
        "hash",
        "CREATE TABLE t(id INT PRIMARY KEY, c INT, v INT)",
        "INSERT INTO t VALUES (1, 1, 1)",
        "SET binlog_row_image = 'MINIMAL'",
        "UPDATE t SET v = 2",
        "UPDATE t SET c = 2",
    )

    rows = [event for event in sink.events() if event.table == "t"]
    two = vindex_named("hash").keyspace_id(2)
    assert [(e.keyspace_id_before, e.keyspace_id_after) for e in rows[1:]] == [
        (None, None),
        (None, two),
    ]


@pytest.mark.parametrize(
    ("vindex", "columns", "row", "said"),
    [
        ("hash", "id INT", "1", "has no column C, over which its vindex hash is declared"),
        ("hash", "c DATE", "'2020-01-01'", "cannot take column c of type date"),
        ("hash", "c INT", "NULL", "column c: vindex hash cannot take NULL"),
        ("numeric", "c INT", "-1", "column c: vindex numeric cannot take this int"),
    ],
)
def test_what_has_no_id_stops_by_name(
    mysql_a: DatabaseFixture, vindex: str, columns: str, row: str, said: str
) -> None:
    """A column or value that the vindex cannot take names table, GTID and binlog position."""
    with pytest.raises(NoKeyspaceId, match=rf"in transaction .*:\d+, binlog .*\.t.*{said}"):
        decoded(mysql_a, vindex, f"CREATE TABLE t({columns})", f"INSERT INTO t VALUES ({row})")


@pytest.mark.parametrize(
    ("vindexes", "said"),
    [
        ([TableVindex("a", "t", ("x",), "md5")], "vindex 'md5' is not known"),
        ([TableVindex("a", "t", ("x", "y"), "hash")], "takes one column, .* x, y"),
        ([TableVindex("a", "t", ("x",), "hash")] * 2, "a.t: two vindexes"),
    ],
)
def test_wrong_declarations_are_refused(vindexes: list[TableVindex], said: str) -> None:
    """An unknown vindex, several columns, and two vindexes for a table are each one error."""
    with pytest.raises(UsageError, match=said):
        sharding_columns(vindexes)
