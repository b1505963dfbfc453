import json
from dataclasses import replace

import pytest

from event_token import EventToken
from event_token.errors import UsageError
from sinks.errors import ValueDoesNotFit
from sinks.table_topics.envelope.table_encoder import TableEncoder, VersionRecords
from sinks.table_topics.options import (
    Decimals,
    EnvelopeOptions,
    Format,
    Times,
)
from tests.database_servers import DatabaseFixture
from tests.sinks.table_topics.envelope.topic_messages import messages_of, records_of
from topics.records.envelope import whole_envelope
from topics.records.table_shape import Column, TableShape, ValueKind

OPTIONS = EnvelopeOptions("shop", "p")


def test_source_names_family_shard_and_order(database: DatabaseFixture) -> None:
    """`source` tells the family, and by file and pos the merged order; a copied row is `r`."""
    [(shape, records)] = records_of(
        database, ("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    )
    records = replace(records, ops=("INSERT", "READ"))

    first, second = (json.loads(m.value or b"") for m in messages_of(shape, records, OPTIONS))

    assert (first["op"], second["op"]) == ("c", "r")
    assert [e["source"]["snapshot"] for e in (first, second)] == ["false", "incremental"]
    source, event = second["source"], whole_envelope(records.records[1], "t", None)
    assert source["connector"] == database.flavor.value
    assert (source["shard"], source["gtid"]) == (event.shard.decode(), event.gtid())
    assert EventToken.from_string(source["token"]) == event.token_text().token
    assert source["keyspace"] == "shop"
    assert (source["file"], source["pos"]) == (f"shardstream.{event.timestamp_us}", event.seq)
    assert json.loads(source["sequence"]) == [event.shard.decode(), str(event.seq)]
    assert source["ts_us"] == event.timestamp_us


def test_no_tombstones_without_the_option(database: DatabaseFixture) -> None:
    """Without tombstones a DELETE is `d` alone, and a changed key `d` and `c`."""
    [(shape, rows)] = records_of(
        database,
        (
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "INSERT INTO t VALUES (1), (2)",
            "DELETE FROM t WHERE id = 1",
            "UPDATE t SET id = 3 WHERE id = 2",
        ),
    )

    found = messages_of(shape, rows, EnvelopeOptions("shop", "p", tombstones=False))

    ops = [json.loads(m.value or b"")["op"] for m in found]
    assert ops == ["c", "c", "d", "d", "c"]


def test_a_number_beyond_signed_bits_stops_by_name(mysql_a: DatabaseFixture) -> None:
    """A BIGINT UNSIGNED beyond 64 signed bits stops with table, column and value."""
    [(shape, rows)] = records_of(
        mysql_a,
        (
            "CREATE TABLE t (id INT PRIMARY KEY, big BIGINT UNSIGNED)",
            "INSERT INTO t VALUES (1, 9223372036854775807), (2, NULL)",
            "INSERT INTO t VALUES (3, 9223372036854775808)",
        ),
    )

    assert len(messages_of(shape, part(rows, 0, 2), OPTIONS)) == 2
    with pytest.raises(ValueDoesNotFit, match=r"column big .*: 9223372036854775808 is beyond"):
        messages_of(shape, rows, OPTIONS)


def part(rows: VersionRecords, begin: int, end: int) -> VersionRecords:
    return replace(rows, records=rows.records[begin:end])


@pytest.mark.parametrize(
    ("sql_type", "options"),
    [
        ("DECIMAL(20,10)", EnvelopeOptions("shop", "p", decimal=Decimals.DOUBLE)),
        ("TIME(6)", EnvelopeOptions("shop", "p", time=Times.CONNECT)),
        ("DATETIME(6)", EnvelopeOptions("shop", "p", time=Times.CONNECT)),
    ],
)
def test_a_key_that_would_stand_for_two_rows_is_refused(
    mysql_a: DatabaseFixture, sql_type: str, options: EnvelopeOptions
) -> None:
    """A double and milliseconds do not keep all keys apart, but are good for other columns."""
    [(keyed, rows)] = records_of(
        mysql_a, (f"CREATE TABLE t (a {sql_type} PRIMARY KEY)", "INSERT INTO t VALUES (101)")
    )
    [(other, others)] = records_of(
        mysql_a,
        (f"CREATE TABLE t (id INT PRIMARY KEY, a {sql_type})", "INSERT INTO t VALUES (1, 101)"),
    )

    with pytest.raises(UsageError, match=r"column a .*: two keys may become one"):
        messages_of(keyed, rows, options)
    assert len(messages_of(other, others, options)) == 1


@pytest.mark.parametrize("time", [Times.CONNECT, Times.ISOSTRING])
def test_a_key_that_would_be_null_stops(mysql_a: DatabaseFixture, time: Times) -> None:
    """A TIME beyond a day has no value in these formats; outside of keys it is null."""
    [(shape, rows)] = records_of(
        mysql_a,
        (
            "CREATE TABLE t (a TIME PRIMARY KEY)",
            "INSERT INTO t VALUES ('23:59:59'), ('-00:00:01')",
            "DELETE FROM t WHERE a > 0",
        ),
    )
    options = EnvelopeOptions("shop", "p", time=time)

    assert len(messages_of(shape, part(rows, 0, 1), options)) == 1
    assert len(messages_of(shape, part(rows, 2, 3), options)) == 2
    with pytest.raises(ValueDoesNotFit, match=r"column a .* would be null in a key"):
        messages_of(shape, rows, options)


def test_tables_without_a_topic_are_refused() -> None:
    """No primary key, and a column with the name of a field of ours, are refused by name."""
    columns = (Column("id", ValueKind.INT, "int"), Column("_seq", ValueKind.INT, "int"))

    with pytest.raises(UsageError, match=r"shop\.t has no primary key"):
        TableEncoder(TableShape("shop", "t", columns), OPTIONS)
    with pytest.raises(UsageError, match=r"p\.shop\.t: column _seq"):
        TableEncoder(
            TableShape("shop", "t", columns, (0,)),
            EnvelopeOptions("shop", "p", format=Format.FLAT_JSON),
        )
