import json
from typing import Any

import pyarrow as pa
import pytest

from event_token.errors import UsageError
from spark_consumers.table_topics.envelope import table_encoder
from spark_consumers.table_topics.envelope.options import (
    Decimals,
    EnvelopeOptions,
    Format,
    Times,
)
from spark_consumers.table_topics.envelope.table_encoder import TableEncoder
from spark_consumers.table_topics.errors import PartialRow, ValueDoesNotFit
from tests.database_servers import DatabaseFixture
from tests.spark_consumers.table_topics.envelope.decoded import decoded_rows
from topics.records.table_shape import Column, TableShape, ValueKind

OPTIONS = EnvelopeOptions("p", "shop")


def encode(
    shape: TableShape, rows: pa.RecordBatch, options: EnvelopeOptions = OPTIONS
) -> list[dict[str, Any]]:
    pieces = TableEncoder(shape, options).encode(rows, 1)
    return [message for piece in pieces for message in piece.to_pylist()]


def with_column(rows: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    return rows.set_column(rows.schema.names.index(name), name, values)


def test_source_names_family_shard_and_order(database: DatabaseFixture) -> None:
    """`source` tells the family, and by file and pos the merged order; a copied row is `r`."""
    [(shape, rows)] = decoded_rows(
        database, ("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    )
    rows = with_column(rows, "op", pa.array(["INSERT", "READ"]))

    first, second = (json.loads(m["value"]) for m in encode(shape, rows))

    assert (first["op"], second["op"]) == ("c", "r")
    assert [e["source"]["snapshot"] for e in (first, second)] == ["false", "incremental"]
    source, row = second["source"], rows.to_pylist()[1]
    assert source["connector"] == database.flavor.value
    assert (source["shard"], source["token"], source["gtid"]) == (
        row["shard"],
        row["token"],
        row["gtid"],
    )
    assert source["keyspace"] == "shop"
    assert (source["file"], source["pos"]) == (f"shardstream.{row['timestamp_us']}", row["seq"])
    assert json.loads(source["sequence"]) == [row["shard"], str(row["seq"])]
    assert source["ts_us"] == row["timestamp_us"]


def test_pieces_keep_the_order_of_rows(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large batch is encoded in pieces whose rows count on."""
    [(shape, rows)] = decoded_rows(
        database,
        (
            "CREATE TABLE t (id INT PRIMARY KEY, b BIT(9), s SET('x','y'), d DECIMAL(40,2))",
            "INSERT INTO t VALUES (1, 257, 'x,y', 1.5), (2, NULL, NULL, NULL), (3, 1, '', -0.01)",
            "DELETE FROM t WHERE id = 2",
            "UPDATE t SET id = 4 WHERE id = 3",
        ),
    )
    whole = encode(shape, rows)
    monkeypatch.setattr(table_encoder, "PIECE_ROWS_MAX", 2)

    assert encode(shape, rows) == whole
    assert [m["row"] for m in whole] == [0, 1, 2, 3, 3, 4, 4, 4]


def test_no_tombstones_without_the_option(database: DatabaseFixture) -> None:
    """Without tombstones a DELETE is `d` alone, and a changed key `d` and `c`."""
    [(shape, rows)] = decoded_rows(
        database,
        (
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "INSERT INTO t VALUES (1), (2)",
            "DELETE FROM t WHERE id = 1",
            "UPDATE t SET id = 3 WHERE id = 2",
        ),
    )

    found = encode(shape, rows, EnvelopeOptions("p", "shop", tombstones=False))

    ops = [json.loads(m["value"])["op"] for m in found]
    assert ops == ["c", "c", "d", "d", "c"]


def test_what_has_no_message_stops_by_name(mysql_a: DatabaseFixture) -> None:
    """A partial row and a BIGINT UNSIGNED beyond 64 signed bits stop with table and column."""
    [(shape, rows)] = decoded_rows(
        mysql_a,
        (
            "CREATE TABLE t (id INT PRIMARY KEY, big BIGINT UNSIGNED)",
            "INSERT INTO t VALUES (1, 9223372036854775807), (2, NULL)",
            "INSERT INTO t VALUES (3, 9223372036854775808)",
        ),
    )
    partial = with_column(rows, "absent", pa.array([None, '{"after": ["big"]}', None]))

    assert len(encode(shape, rows.slice(0, 2))) == 2
    with pytest.raises(ValueDoesNotFit, match=r"column big .*: 9223372036854775808 is beyond"):
        encode(shape, rows)
    told = rf"seq {rows['seq'][1]} .* row of {shape.database}\.t.*another --prefix"
    with pytest.raises(PartialRow, match=told):
        encode(shape, partial)


@pytest.mark.parametrize(
    ("sql_type", "options"),
    [
        ("DECIMAL(20,10)", EnvelopeOptions("p", "shop", decimal=Decimals.DOUBLE)),
        ("TIME(6)", EnvelopeOptions("p", "shop", time=Times.CONNECT)),
        ("DATETIME(6)", EnvelopeOptions("p", "shop", time=Times.CONNECT)),
    ],
)
def test_a_key_that_would_stand_for_two_rows_is_refused(
    mysql_a: DatabaseFixture, sql_type: str, options: EnvelopeOptions
) -> None:
    """A double and milliseconds do not keep all keys apart, but are good for other columns."""
    [(keyed, rows)] = decoded_rows(
        mysql_a, (f"CREATE TABLE t (a {sql_type} PRIMARY KEY)", "INSERT INTO t VALUES (101)")
    )
    [(other, others)] = decoded_rows(
        mysql_a,
        (f"CREATE TABLE t (id INT PRIMARY KEY, a {sql_type})", "INSERT INTO t VALUES (1, 101)"),
    )

    with pytest.raises(UsageError, match=r"column a .*: two keys may become one"):
        encode(keyed, rows, options)
    assert len(encode(other, others, options)) == 1


@pytest.mark.parametrize("time", [Times.CONNECT, Times.ISOSTRING])
def test_a_key_that_would_be_null_stops(mysql_a: DatabaseFixture, time: Times) -> None:
    """A TIME beyond a day has no value in these formats; outside of keys it is null."""
    [(shape, rows)] = decoded_rows(
        mysql_a,
        (
            "CREATE TABLE t (a TIME PRIMARY KEY)",
            "INSERT INTO t VALUES ('23:59:59'), ('-00:00:01')",
            "DELETE FROM t WHERE a > 0",
        ),
    )
    options = EnvelopeOptions("p", "shop", time=time)

    assert len(encode(shape, rows.slice(0, 1), options)) == 1
    assert len(encode(shape, rows.slice(2), options)) == 2
    with pytest.raises(ValueDoesNotFit, match=r"column a .* would be null in a key"):
        encode(shape, rows, options)


def test_tables_without_a_topic_are_refused() -> None:
    """No primary key, and a column with the name of a field of ours, are refused by name."""
    columns = (Column("id", ValueKind.INT, "int"), Column("_seq", ValueKind.INT, "int"))

    with pytest.raises(UsageError, match=r"shop\.t has no primary key"):
        TableEncoder(TableShape("shop", "t", columns), OPTIONS)
    with pytest.raises(UsageError, match=r"p\.shop\.t: column _seq"):
        TableEncoder(
            TableShape("shop", "t", columns, (0,)),
            EnvelopeOptions("p", "shop", format=Format.FLAT_JSON),
        )
