"""TRANSACTION_PAYLOAD: transactions of any size in bounded memory, and damaged ones found."""

import tracemalloc

import pytest

from event_token import Flavor, UsageError
from producers.decoder import CorruptBinlog
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.binlog_events import kind_of
from tests.producers.decoder.capture import capture, executed_set, packets_of, run_statements
from tests.producers.decoder.decoding import (
    ALL_ROWS,
    CountingSink,
    Message,
    decode,
    feed_in_chunks,
    new_decoder,
)

PAYLOAD = 40
PACKET_FULL = 0xFFFFFF
MEGABYTE = 1024 * 1024
RANDOM_ROWS = 20  # of a megabyte that cannot be compressed: the event takes two packets
PLAIN_ROWS = 200  # of a megabyte of zeros
PEAK_BYTES_MAX = 100 * MEGABYTE


def compressed(database: DatabaseFixture, *statements: str) -> tuple[str, bytes]:
    """The stream of statements whose transactions are compressed."""
    before = executed_set(database)
    run_statements(
        database,
        database.new_database(),
        ("SET binlog_transaction_compression=ON", *statements),
    )
    return before, capture(database, before)


@pytest.fixture(scope="module")
def large(mysql_a: DatabaseFixture) -> tuple[str, bytes]:
    """One transaction of 220 MB in an event of 20 MB."""
    numbers = "WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < {})"
    random_megabyte = f"CONCAT({','.join(['RANDOM_BYTES(1024)'] * 64)})"
    return compressed(
        mysql_a,
        "CREATE TABLE t(id INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)",
        "SET max_execution_time=0",
        "BEGIN",
        *[
            f"INSERT INTO t(v) VALUES (CONCAT({','.join([random_megabyte] * 16)}))"
            for _ in range(RANDOM_ROWS)
        ],
        f"INSERT INTO t(v) {numbers.format(PLAIN_ROWS)} SELECT REPEAT(x'00', {MEGABYTE}) FROM n",
        "COMMIT",
    )


def test_transaction_larger_than_its_memory_streams_through(large: tuple[str, bytes]) -> None:
    """An event of several packets that holds 220 MB: all rows, and never half of them at once."""
    before, stream = large
    [first, *rest] = [p for p in packets_of(stream) if len(p) - 4 == PACKET_FULL]
    assert kind_of(first) == PAYLOAD
    sink = CountingSink()
    decoder = new_decoder(sink, Flavor.MYSQL, before)

    tracemalloc.start()
    feed_in_chunks(decoder, stream, [MEGABYTE] * (len(stream) // MEGABYTE + 1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    summary = decoder.take_batch()

    assert len(rest) == 0
    assert summary.transactions == 3
    assert summary.last_seq == 2 + RANDOM_ROWS + PLAIN_ROWS
    assert [size > MEGABYTE for size in sink.sizes[-RANDOM_ROWS - PLAIN_ROWS :]] == [True] * (
        RANDOM_ROWS + PLAIN_ROWS
    )
    assert peak < PEAK_BYTES_MAX, f"{peak} bytes"


def test_no_commit_inside_an_event_of_several_packets(large: tuple[str, bytes]) -> None:
    """Between its packets the transaction is open, whatever came out of it so far."""
    before, stream = large
    packets = packets_of(stream)
    at = next(i for i, p in enumerate(packets) if len(p) - 4 == PACKET_FULL)
    decoder = new_decoder(CountingSink(), Flavor.MYSQL, before)
    head = b"".join(packets[: at + 1])

    assert decoder.feed(head, 0, len(head), ALL_ROWS) == len(head)
    assert decoder.in_transaction
    assert not decoder.reached(before)
    with pytest.raises(UsageError):
        decoder.take_batch()


@pytest.mark.parametrize("damage", ["payload", "checksum", "cut"])
def test_damaged_large_event_is_found(large: tuple[str, bytes], damage: str) -> None:
    """A changed byte in either packet stops the shard, though rows were produced already."""
    before, stream = large
    packets = packets_of(stream)
    at = next(i for i, p in enumerate(packets) if len(p) - 4 == PACKET_FULL)
    bad = bytearray(packets[at + 1])
    if damage == "payload":
        bad[len(bad) // 2] ^= 1
    elif damage == "checksum":
        bad[-1] ^= 1
    else:
        del bad[-10:]
        bad[:3] = (len(bad) - 4).to_bytes(3, "little")
    decoder = new_decoder(CountingSink(), Flavor.MYSQL, before)
    damaged = b"".join(packets[: at + 1]) + bytes(bad) + b"".join(packets[at + 2 :])

    with pytest.raises(CorruptBinlog, match=r"shard -80, .*transaction"):
        decoder.feed(damaged, 0, len(damaged), 1_000_000)


def test_small_damaged_event_is_found(mysql_a: DatabaseFixture) -> None:
    """A changed byte in the head, the payload or the sum stops the shard."""
    before, stream = compressed(
        mysql_a, "CREATE TABLE t(id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)"
    )
    packets = packets_of(stream)
    at = next(i for i, p in enumerate(packets) if kind_of(p) == PAYLOAD)
    size = len(packets[at])
    for place in (30, size - 30, size - 2):
        bad = bytearray(packets[at])
        bad[place] ^= 0x40
        damaged = b"".join([*packets[:at], bytes(bad), *packets[at + 1 :]])
        with pytest.raises(CorruptBinlog):
            decode(damaged, Flavor.MYSQL, before)


def test_rows_are_those_of_the_plain_transaction(mysql_a: DatabaseFixture) -> None:
    """F20: Compressed or not, the same statements give the same rows, flags and positions."""
    statements = (
        "CREATE TABLE t(id INT PRIMARY KEY, v TEXT)",
        "BEGIN",
        "INSERT INTO t VALUES (1, REPEAT('x', 5000)), (2, 'y')",
        "UPDATE t SET v = 'z'",
        "COMMIT",
    )
    seen = []
    for mode in ("ON", "OFF"):
        before, stream = compressed(
            mysql_a, f"SET binlog_transaction_compression={mode}", *statements
        )
        sink, summary = decode(stream, Flavor.MYSQL, before)
        assert summary.position == executed_set(mysql_a)
        assert any(kind_of(p) == PAYLOAD for p in packets_of(stream)) == (mode == "ON")
        seen.append([(e.op, e.row_index, e.last, e.before, e.after) for e in sink.events()])

    assert seen[0] == seen[1]
    assert len(sink.messages) == len(seen[0])
    assert isinstance(sink.messages[0], Message)
