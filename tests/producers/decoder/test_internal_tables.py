"""Rows of `_shardstream`: marks, origins and heartbeats, and never a row on the log."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from event_token import EventToken, Flavor, parse_gtid_set
from producers.decoder import UnsupportedEvent, WriteAfterEnd
from producers.filters.binding import TableFilters
from producers.filters.rules import FilterSettings, TablePattern
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.decoding import ALL_ROWS, SHARD, Sink, decode, new_decoder
from topics.progress.record import MarkKind, cell_start_us
from topics.records.vevent import EventType, Op

TABLES = (
    "DROP DATABASE IF EXISTS _shardstream",
    "CREATE DATABASE _shardstream",
    (
        "CREATE TABLE _shardstream.journal(reshard_id VARCHAR(64), kind VARCHAR(16),"
        " sources TEXT, targets TEXT, hop_time_us BIGINT NULL, keyspace VARCHAR(128),"
        " PRIMARY KEY(keyspace, reshard_id))"
    ),
    (
        "CREATE TABLE _shardstream.role(reshard_id VARCHAR(64), shard VARCHAR(128),"
        " role VARCHAR(16), keyspace VARCHAR(128), PRIMARY KEY(keyspace, reshard_id, shard))"
    ),
    (
        "CREATE TABLE _shardstream.checkpoint(reshard_id VARCHAR(64), source_shard VARCHAR(128),"
        " seq BIGINT, position LONGTEXT, timestamp_us BIGINT, token TEXT,"
        " PRIMARY KEY(reshard_id, source_shard))"
    ),
    (
        "CREATE TABLE _shardstream.heartbeat(shard VARCHAR(128), at_us BIGINT,"
        " at_min_us BIGINT, at_max_us BIGINT, keyspace VARCHAR(128), PRIMARY KEY(keyspace, shard))"
    ),
    "CREATE TABLE t(id INT PRIMARY KEY)",
)
HOP_US = 4_000_000_000_000_000
# A clock in the year 2100: the hop time above is no time ahead of it.
LATE_US = 4_102_444_800_000_000
INSERT = "INSERT INTO _shardstream.journal VALUES "

Stream = Callable[..., tuple[Flavor, str, bytes]]


@pytest.fixture
def stream(database: DatabaseFixture) -> Iterator[Stream]:
    """Run statements, each a transaction, and give what the server sends of them."""

    def run(*statements: str) -> tuple[Flavor, str, bytes]:
        name = database.new_database()
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE {name}")
            for statement in TABLES:
                cursor.execute(statement)
            before = executed_set(database)
            for statement in statements:
                cursor.execute(statement)
        return database.flavor, before, capture(database, before)

    yield run
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE _shardstream")


def journal(kind: str, reshard_id: str = "r1", hop: str = "NULL") -> str:
    """END and CANCELLED on the source -80, BEGIN on it as a target."""
    sources, targets = ('["-80"]', '["-40", "40-80"]')
    if kind == "BEGIN":
        sources, targets = targets, sources
    return f"('{reshard_id}', '{kind}', '{sources}', '{targets}', {hop}, 'ks')"


def token(shard: str, number: int) -> EventToken:
    position = parse_gtid_set(f"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{number}", Flavor.MYSQL)
    return EventToken(1_700_000_000_000_000 + number, shard, position)


def checkpoint(number: int) -> str:
    return (
        f"REPLACE INTO _shardstream.checkpoint VALUES "
        f"('r1', '-', {number}, 'p', 1, '{token('-', number).to_string()}')"
    )


def test_a_mark_ends_the_batch(stream: Stream) -> None:
    """Feeding stops behind END; its JOURNAL record is in order, and the mark names its seq."""
    flavor, before, packets = stream(
        "INSERT INTO t VALUES (1)",
        INSERT + journal("END"),
        "CREATE TABLE u(id INT)",
    )
    sink = Sink()
    decoder = new_decoder(sink, flavor, before)

    taken = decoder.feed(packets, 0, len(packets), ALL_ROWS)
    assert taken < len(packets)
    assert decoder.has_mark
    assert decoder.feed(packets, taken, len(packets), ALL_ROWS) == taken
    mark = decoder.take_batch().mark
    assert decoder.feed(packets, taken, len(packets), ALL_ROWS) == len(packets)
    assert decoder.take_batch().mark is None

    row, end, ddl = sink.events()
    assert [e.type for e in (row, end, ddl)] == [EventType.ROW, EventType.JOURNAL, EventType.DDL]
    assert [e.seq for e in (row, end, ddl)] == [1, 2, 3]
    assert (end.op, end.last, end.database, end.table) == (Op.NONE, True, "_shardstream", "")
    assert end.token.position.contains_gtid(end.gtid)
    assert json.loads(end.statement or "") == {
        "reshard_id": "r1",
        "kind": "END",
        "sources": ["-80"],
        "targets": ["-40", "40-80"],
        "hop_time_us": None,
    }
    assert mark is not None
    assert (mark.kind, mark.offset, mark.reshard_id) == (MarkKind.END, 2, "r1")
    assert (mark.sources, mark.targets, mark.hop_time_us) == (("-80",), ("-40", "40-80"), None)


def test_nothing_is_older_than_the_hop_from_begin_on(stream: Stream) -> None:
    """BEGIN lifts the log's time to the hop time, though this server's clock is behind it."""
    flavor, before, packets = stream(
        "INSERT INTO t VALUES (1)", INSERT + journal("BEGIN", hop=str(HOP_US))
    )
    sink = Sink()
    decoder = new_decoder(sink, flavor, before, now_us=lambda: LATE_US)
    decoder.feed(packets, 0, len(packets), ALL_ROWS)
    summary = decoder.take_batch()

    row, begin = sink.events()
    assert row.timestamp_us < HOP_US <= begin.timestamp_us
    assert begin.commit_us < HOP_US
    assert summary.mark is not None
    assert (summary.mark.kind, summary.mark.hop_time_us) == (MarkKind.BEGIN, HOP_US)
    assert summary.ticks[-1] == (cell_start_us(HOP_US), begin.seq)


def test_a_row_behind_end_stops_the_shard(stream: Stream) -> None:
    """Also when END was logged by a predecessor; the error names reshard, table and fix."""
    flavor, before, packets = stream("INSERT INTO t VALUES (1)")

    with pytest.raises(WriteAfterEnd, match=r"row of db_\w+\.t .* END of reshard r7.* cancel"):
        decode(packets, flavor, before, ended_by=("r7",))

    flavor, before, packets = stream(INSERT + journal("END"), "INSERT INTO t VALUES (1)")
    decoder = new_decoder(Sink(), flavor, before)
    taken = decoder.feed(packets, 0, len(packets), ALL_ROWS)
    decoder.take_batch()
    with pytest.raises(WriteAfterEnd, match="r1"):
        decoder.feed(packets, taken, len(packets), ALL_ROWS)


def test_a_row_behind_the_end_of_a_cancelled_reshard_is_logged(stream: Stream) -> None:
    """B17: the topology is asked when such a row comes, and once if the reshard is cancelled."""
    flavor, before, packets = stream("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    asked = []

    def is_cancelled(reshard_id: str) -> bool:
        asked.append(reshard_id)
        return True

    sink, _ = decode(packets, flavor, before, ended_by=("r7",), is_cancelled=is_cancelled)

    assert [event.type for event in sink.events()] == [EventType.ROW] * 2
    assert asked == ["r7"]


def test_tables_left_out_write_nothing_behind_end(stream: Stream) -> None:
    """Filter rules leave out the server's own table: no record. The keyspace's still stops."""
    rules = TableFilters(FilterSettings(include=(TablePattern("other.t"),)), {})
    flavor, before, packets = stream(
        "CREATE TABLE mysql.beat (id INT PRIMARY KEY)",
        "INSERT INTO mysql.beat VALUES (1)",
        "DROP TABLE mysql.beat",
    )
    behind_end: dict[str, Any] = {"ended_by": ("r7",), "is_sharded": lambda name: name != "mysql"}
    sink, _ = decode(packets, flavor, before, rules=rules, **behind_end)
    assert list(sink.events()) == []

    flavor, before, packets = stream("INSERT INTO t VALUES (1)")
    with pytest.raises(WriteAfterEnd, match="END of reshard r7"):
        decode(packets, flavor, before, rules=rules, **behind_end)


def test_cancelled_lets_rows_through_again(stream: Stream) -> None:
    """END turned into CANCELLED is a CANCEL mark; another reshard's CANCELLED is none for it."""
    flavor, before, packets = stream(
        INSERT + journal("END"),
        INSERT + journal("CANCELLED", "r2"),
        "UPDATE _shardstream.journal SET kind = 'CANCELLED' WHERE reshard_id = 'r1'",
        "INSERT INTO t VALUES (1)",
    )
    sink = Sink()
    decoder = new_decoder(sink, flavor, before)
    marks = []
    pos = 0
    while pos < len(packets):
        pos = decoder.feed(packets, pos, len(packets), ALL_ROWS)
        marks.append(decoder.take_batch().mark)

    assert [m and (m.kind, m.reshard_id) for m in marks] == [
        (MarkKind.END, "r1"),
        (MarkKind.CANCEL, "r2"),
        (MarkKind.CANCEL, "r1"),
        None,
    ]
    assert [e.type for e in sink.events()] == [EventType.JOURNAL] * 3 + [EventType.ROW]


def test_checkpoints_stamp_the_origin(stream: Stream) -> None:
    """From a checkpoint row to the next one or the end of the transaction, and no further."""
    flavor, before, packets = stream(
        "BEGIN",
        checkpoint(1),
        "INSERT INTO t VALUES (1), (2)",
        checkpoint(2),
        "INSERT INTO t VALUES (3)",
        "COMMIT",
        "INSERT INTO t VALUES (4)",
        checkpoint(3),
        "BEGIN",
        "INSERT INTO t VALUES (5)",
        checkpoint(4),
        "INSERT INTO t VALUES (6)",
        "COMMIT",
        "BEGIN",
        "REPLACE INTO _shardstream.checkpoint VALUES ('r1', '-', 0, 'p', 0, '')",
        "INSERT INTO t VALUES (7)",
        "COMMIT",
    )
    sink, _ = decode(packets, flavor, before)

    origins = {e.after["id"]: e.token.origin for e in sink.events() if e.after is not None}
    first, second, fourth = token("-", 1), token("-", 2), token("-", 4)
    assert origins == {1: first, 2: first, 3: second, 4: None, 5: None, 6: fourth, 7: None}
    assert [e.row_index for e in sink.events()] == [0, 1, 2, 0, 0, 1, 0]
    assert [e.last for e in sink.events()] == [False, False, True, True, False, True, True]


def test_other_rows_of_the_database_are_not_logged(stream: Stream) -> None:
    """Roles, heartbeats, deletes: no record, but position and heartbeat time move."""
    flavor, before, packets = stream(
        "INSERT INTO _shardstream.role VALUES ('r1', '-80', 'source', 'ks')",
        f"INSERT INTO _shardstream.heartbeat VALUES ('{SHARD}', 5, 3, 7, 'ks'), "
        f"('80-', 900, 1, 999, 'ks'), ('{SHARD}', 900, 1, 999, 'another')",
        f"UPDATE _shardstream.heartbeat SET at_us = 7, at_min_us = NULL "
        f"WHERE shard = '{SHARD}' AND keyspace = 'ks'",
        "DELETE FROM _shardstream.heartbeat",
    )
    sink = Sink()
    decoder = new_decoder(sink, flavor, before)
    decoder.feed(packets, 0, len(packets), ALL_ROWS)

    assert decoder.heartbeat_us == 7
    summary = decoder.take_batch()
    assert sink.messages == []
    assert summary.last_seq < summary.first_seq
    assert summary.position != before


def test_rows_that_are_not_read_need_no_names(stream: Stream) -> None:
    """Each reshard writes a role, also on servers whose table maps have no names of columns."""
    flavor, before, packets = stream(
        "SET GLOBAL binlog_row_metadata = MINIMAL",
        "INSERT INTO _shardstream.role VALUES ('r1', '-80', 'source', 'ks')",
        "SET GLOBAL binlog_row_metadata = FULL",
    )
    sink = Sink()
    decoder = new_decoder(sink, flavor, before)
    decoder.feed(packets, 0, len(packets), ALL_ROWS)

    assert sink.messages == []
    assert decoder.take_batch().position != before


def test_what_follows_a_heartbeat_row_is_no_earlier(stream: Stream) -> None:
    """END and rows right behind the row are not older than it, on a primary as on a replica."""
    late_us = time.time_ns() // 1000 + 30_000_000
    flavor, before, packets = stream(
        "INSERT INTO t VALUES (1)",
        f"INSERT INTO _shardstream.heartbeat VALUES ('{SHARD}', {late_us}, NULL, NULL, 'ks')",
        INSERT + journal("END"),
    )

    sink, _ = decode(packets, flavor, before)

    row, mark = sink.events()

    assert row.timestamp_us < late_us
    assert (mark.type, mark.timestamp_us) == (EventType.JOURNAL, late_us)


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (("BEGIN", "INSERT INTO t VALUES (1)", INSERT + journal("END"), "COMMIT"), "its own"),
        (("BEGIN", INSERT + journal("CANCELLED"), "INSERT INTO t VALUES (1)", "COMMIT"), "its own"),
        ((INSERT + journal("END") + ", " + journal("END", "r2"),), "its own"),
        ((INSERT + journal("BEGIN"),), "hop time"),
        (
            (INSERT + "('r1', 'END', '[\"80-\"]', '[\"80-c0\", \"c0-\"]', NULL, 'ks')",),
            "not for this",
        ),
        ((INSERT + journal("OPEN"),), "of the kind 'OPEN'"),
        ((INSERT + "('r1', 'END', '\"-80\"', '[]', NULL, 'ks')",), "not a list"),
        (("REPLACE INTO _shardstream.checkpoint VALUES ('r', '-', 1, 'p', 1, 'x')",), "token"),
    ],
)
def test_impossible_rows_stop_the_shard(
    stream: Stream, statements: tuple[str, ...], says: str
) -> None:
    """A mark among other changes, of another shard, without its hop time, of an unknown kind."""
    flavor, before, packets = stream(*statements)

    with pytest.raises(UnsupportedEvent, match=says):
        decode(packets, flavor, before)


def test_partial_images_are_enough_or_an_error(stream: Stream) -> None:
    """A MINIMAL image of a journal row that leaves out the shards is an error that says so."""
    flavor, before, packets = stream(
        INSERT + journal("END"),
        "SET SESSION binlog_row_image = 'MINIMAL'",
        "UPDATE _shardstream.journal SET kind = 'CANCELLED'",
    )
    decoder = new_decoder(Sink(), flavor, before)
    taken = decoder.feed(packets, 0, len(packets), ALL_ROWS)
    decoder.take_batch()

    with pytest.raises(UnsupportedEvent, match="binlog_row_image FULL"):
        decoder.feed(packets, taken, len(packets), ALL_ROWS)
