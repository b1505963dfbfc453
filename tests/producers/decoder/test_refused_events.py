"""Events that stop the shard by their name, rows of 100 MB, and rows in parts."""

import random
import re
import struct
from dataclasses import replace

import pytest

from event_token import Flavor, parse_gtid_set
from producers.decoder import RecordTooLarge, UnsupportedEvent
from producers.decoder.events.event_types import REFUSED
from producers.decoder.tables.column_types import (
    BLOB,
    ENUM,
    NEWDECIMAL,
    TIME2,
    VARCHAR,
    ColumnType,
    UnknownColumn,
    plan_column,
)
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.binlog_events import event
from tests.producers.decoder.capture import capture, executed_set, packets_of, run_statements
from tests.producers.decoder.decoding import ALL_ROWS, CountingSink, decode, new_decoder
from topics.kafka.record_parts import MESSAGE_OVERHEAD_BYTES, PartJoiner, part_of

ROW_BYTES = 100_000_000
# The server's limit for one statement's values, and of the dump's packets.
PACKET_BYTES_MAX = 1024 * 1024 * 1024


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_refused_by_name(mysql_a: DatabaseFixture, kind: int) -> None:
    """INCIDENT, START_ENCRYPTION: the message has the name and the fix."""
    before = executed_set(mysql_a)
    run_statements(mysql_a, mysql_a.new_database(), ("CREATE TABLE t(id INT PRIMARY KEY)",))
    start = b"".join(packets_of(capture(mysql_a, before)))
    name = REFUSED[kind].split(":")[0]

    with pytest.raises(UnsupportedEvent, match=name) as caught:
        decode(start + event(kind, struct.pack("<H", 1) + bytes(40)), Flavor.MYSQL, before)
    assert "shard -80" in str(caught.value)
    assert "binlog." in str(caught.value)


@pytest.mark.parametrize(
    ("type_code", "meta", "charset", "said"),
    [
        (6, (0, 0), "", "its type, number 6, is not decoded: upgrade.*exclude"),
        (7, (0, 0), "", "a TIMESTAMP in the format before MySQL 5.6.* rebuild the table"),
        (NEWDECIMAL, (66, 0), "", r"decimal\(66,0\) is beyond decimal\(65,38\).*exclude"),
        (NEWDECIMAL, (65, 39), "", r"decimal\(65,39\) is beyond decimal\(65,38\).*exclude"),
        (NEWDECIMAL, (30, 31), "", r"decimal\(30,31\) is beyond.*exclude"),
        (TIME2, (7, 0), "", r"time\(7\) has more than the 6 digits.*exclude"),
        (VARCHAR, (9, 0), "of tomorrow", "character set of tomorrow, .* utf8mb4.*exclude"),
        (BLOB, (5, 0), "binary", "a blob with a length of 5 bytes.*exclude"),
        (ENUM, (0, 3), "", "enum with 0 labels in 3 bytes.*exclude"),
    ],
)
def test_a_type_that_is_refused_says_how_to_go_on(
    type_code: int, meta: tuple[int, int], charset: str, said: str
) -> None:
    """No server has such a type, or none that is supported: the message explains, with a fix."""
    column = ColumnType(0, type_code)
    column.meta_0, column.meta_1 = meta
    column.charset = charset

    with pytest.raises(UnknownColumn, match=said):
        plan_column(column)


def test_a_change_beyond_a_kafka_record_is_named(database: DatabaseFixture) -> None:
    """Row and statement that fit go through; the update with both of its images does not."""
    name = database.new_database()
    before = executed_set(database)
    table = "CREATE TABLE t(id INT PRIMARY KEY, v LONGTEXT)"
    insert, update = (
        "INSERT INTO t VALUES (1, REPEAT('x', 600))",
        "UPDATE t SET v = REPEAT('y', 600)",
    )
    run_statements(database, name, (table, insert))
    decode(capture(database, before), database.flavor, before, record_bytes_max=1_000)
    run_statements(database, name, (update,))

    with pytest.raises(RecordTooLarge, match="at most 1000 are written") as caught:
        decode(capture(database, before), database.flavor, before, record_bytes_max=1_000)
    assert f"a change of {name}.t (id=1)" in str(caught.value)
    named = re.search(r"in transaction ([^,]+), binlog", str(caught.value))
    assert named is not None
    assert parse_gtid_set(executed_set(database), database.flavor).contains_gtid(named[1])
    assert not parse_gtid_set(before, database.flavor).contains_gtid(named[1])
    assert "by a filter rule" in str(caught.value)


def test_rows_of_100_megabytes(database: DatabaseFixture) -> None:
    """One row in an event of six packets, and small changes of it."""
    name = database.new_database()
    before = executed_set(database)
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL max_allowed_packet = {PACKET_BYTES_MAX}")
    run_statements(
        database,
        name,
        (
            "CREATE TABLE t(id INT PRIMARY KEY, v LONGTEXT CHARACTER SET latin1)",
            f"INSERT INTO t VALUES (1, REPEAT('x', {ROW_BYTES}))",
            "SET binlog_row_image = MINIMAL",
            "UPDATE t SET id = 2",
            "DELETE FROM t",
        ),
    )
    sink = CountingSink()
    decoder = new_decoder(sink, database.flavor, before)
    stream = capture(database, before)
    assert decoder.feed(stream, 0, len(stream), ALL_ROWS) == len(stream)
    summary = decoder.take_batch()

    assert summary.position == executed_set(database)
    assert [size // ROW_BYTES for size in sink.sizes] == [0, 1, 0, 0]


def test_records_that_do_not_fit_a_message_go_in_parts(database: DatabaseFixture) -> None:
    """Their parts have key and time of the record and say who they are; others go as ever."""
    name = database.new_database()
    before = executed_set(database)
    texts = ["", "x" * 3000, random.Random(1).randbytes(4000).hex(), "small"]
    table = "CREATE TABLE t(id INT PRIMARY KEY, v TEXT)"
    inserts = [f"INSERT INTO t VALUES ({i}, '{text}')" for i, text in enumerate(texts)]
    run_statements(database, name, (table, *inserts))
    stream = capture(database, before)
    whole, _ = decode(stream, database.flavor, before)
    cut, summary = decode(stream, database.flavor, before, message_bytes_max=2_000)

    joiner = PartJoiner("log", 1_000_000)
    joined = []
    for offset, message in enumerate(cut.messages):
        part = part_of(message.headers, "log")
        if part is None:
            joiner.check_closed(offset)
            joined.append(message)
            continue
        assert len(message.value) + len(message.key) + MESSAGE_OVERHEAD_BYTES <= 2_000
        value = joiner.add(part, offset, message.key, message.value)
        if value is not None:
            joined.append(replace(message, value=value))
    assert [(m.value, m.key, m.timestamp_ms) for m in joined] == [
        (m.value, m.key, m.timestamp_ms) for m in whole.messages
    ]
    assert [seq for seq, _ in summary.in_parts] == [3, 4]
    assert summary.last_seq + sum(n - 1 for _, n in summary.in_parts) == len(cut.messages)
