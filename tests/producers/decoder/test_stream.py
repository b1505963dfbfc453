"""The stream in pieces, its framing, its order, and what is made of bytes that are not right."""

import contextlib
import random
import struct
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import pairwise, repeat

import pytest

from event_token import UsageError
from producers.decoder import (
    CorruptBinlog,
    DecoderHalt,
    QueueStayedFull,
    ServerError,
    StatementInRowStream,
    StreamEnded,
    UnsupportedEvent,
)
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, packets_of
from tests.producers.decoder.decoding import (
    ALL_ROWS,
    Sink,
    decode,
    feed_in_chunks,
    new_decoder,
    nothing,
)
from topics.progress.record import GRID_US, cell_start_us

MIXED_STATEMENTS = (
    "CREATE TABLE t(id INT PRIMARY KEY, name VARCHAR(40), at DATE)",
    "SET sql_mode=''",
    "INSERT INTO t VALUES (1, 'one', '0000-00-00'), (2, 'two', '2024-01-01'), (3, NULL, NULL)",
    "UPDATE t SET name = CONCAT(name, name), at = '2024-00-01'",
    "CREATE TABLE u(a INT, b TEXT)",
    "INSERT INTO u SELECT id, REPEAT(name, 100) FROM t",
    "DELETE FROM t WHERE id > 1",
)


class Stream:
    """A captured stream and where it began."""

    def __init__(self, database: DatabaseFixture, statements: tuple[str, ...]) -> None:
        self.flavor = database.flavor
        self.before = executed_set(database)
        name = database.new_database()
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE {name}")
            for statement in statements:
                cursor.execute(statement)
        self.bytes = capture(database, self.before)


@pytest.fixture
def mixed(database: DatabaseFixture) -> Stream:
    return Stream(database, MIXED_STATEMENTS)


def with_checksum(event: bytes) -> bytes:
    """The event, without its old checksum, with a length and a checksum that fit."""
    event = event[:9] + struct.pack("<I", len(event) + 4) + event[13:]
    return event + struct.pack("<I", zlib.crc32(event))


def packet(payload: bytes) -> bytes:
    """Frame a payload of less than 16 MB."""
    return struct.pack("<I", len(payload))[:3] + b"\0" + payload


def test_chunks_of_any_size_give_the_same_bytes(mixed: Stream) -> None:
    """Whole, byte by byte and in random pieces: the messages are identical."""
    whole, summary = decode(mixed.bytes, mixed.flavor, mixed.before)
    rng = random.Random(7)
    splits: list[Iterator[int]] = [repeat(1)]
    splits += [iter(partial(rng.randint, 1, most), 0) for most in (3, 20, 500, 5000)]

    for sizes in splits:
        sink = Sink()
        decoder = new_decoder(sink, mixed.flavor, mixed.before)
        feed_in_chunks(decoder, mixed.bytes, sizes)

        assert decoder.take_batch() == summary
        assert sink.messages == whole.messages


def test_rows_are_numbered_and_the_last_of_a_transaction_is_marked(mixed: Stream) -> None:
    """Seq has no gap, row_index restarts with each transaction, `last` is true at its end."""
    sink, _ = decode(mixed.bytes, mixed.flavor, mixed.before, next_seq=1000)
    events = sink.events()

    assert [e.seq for e in events] == list(range(1000, 1000 + len(events)))
    by_gtid: dict[str, list[tuple[int, bool]]] = {}
    for event in events:
        by_gtid.setdefault(event.gtid, []).append((event.row_index, event.last))
    for rows in by_gtid.values():
        assert rows == [(i, i == len(rows) - 1) for i in range(len(rows))]


def test_tokens_include_their_own_transaction(mixed: Stream) -> None:
    """A token's position holds the transaction's GTID, and grows by one transaction at a time."""
    sink, summary = decode(mixed.bytes, mixed.flavor, mixed.before)
    events = sink.events()

    for event in events:
        assert event.token.position.contains_gtid(event.gtid)
    for earlier, later in pairwise(events):
        assert later.token.position.includes(earlier.token.position)
    assert summary.position == str(events[-1].token.position)


def test_kafka_times_and_ticks_come_from_the_token(mixed: Stream) -> None:
    """Record times are the token's milliseconds; a cell's tick is the first record in it."""
    sink, summary = decode(mixed.bytes, mixed.flavor, mixed.before)
    events = sink.events()

    assert [m.timestamp_ms for m in sink.messages] == [e.timestamp_us // 1000 for e in events]
    first_in_cell: dict[int, int] = {}
    for event in events:
        first_in_cell.setdefault(cell_start_us(event.timestamp_us), event.seq)
    assert summary.ticks == list(first_in_cell.items())
    assert summary.head_us == max(e.commit_us for e in events)


def test_no_tick_for_a_cell_that_the_log_has_already(mixed: Stream) -> None:
    """A restart in the middle of a cell does not announce that cell a second time."""
    sink, _ = decode(mixed.bytes, mixed.flavor, mixed.before)
    first_us = sink.events()[0].timestamp_us

    _, summary = decode(
        mixed.bytes, mixed.flavor, mixed.before, last_cell_us=cell_start_us(first_us)
    )

    assert all(cell > cell_start_us(first_us) for cell, _ in summary.ticks)


def test_feed_stops_between_transactions(mixed: Stream) -> None:
    """With enough rows gathered, feed returns at a transaction's end, and goes on from there."""
    whole, _ = decode(mixed.bytes, mixed.flavor, mixed.before)
    sink = Sink()
    decoder = new_decoder(sink, mixed.flavor, mixed.before)
    pos = 0
    last_seq = 0
    while pos < len(mixed.bytes):
        pos = decoder.feed(mixed.bytes, pos, len(mixed.bytes), 1)
        assert not decoder.in_transaction
        summary = decoder.take_batch()
        assert summary.first_seq == last_seq + 1
        last_seq = summary.last_seq
        assert last_seq == len(sink.messages)

    assert [m.value for m in sink.messages] == [m.value for m in whole.messages]


def test_delivery_callback_goes_with_the_first_and_the_last(mixed: Stream) -> None:
    """on_delivery is passed for a batch's first record and for its last, no other."""
    sink = Sink()
    decoder = new_decoder(sink, mixed.flavor, mixed.before, on_delivery="report")
    decoder.feed(mixed.bytes, 0, len(mixed.bytes), ALL_ROWS)
    count = decoder.messages
    size = decoder.bytes_produced
    decoder.take_batch()

    wanted = [i in (0, count - 1) for i in range(count)]
    assert [m.on_delivery == "report" for m in sink.messages] == wanted
    assert size == sum(len(m.value) + len(m.key) for m in sink.messages)


def test_a_full_queue_is_waited_for(mixed: Stream) -> None:
    """BufferError calls on_full and tries again: nothing is lost, nothing comes twice."""
    whole, _ = decode(mixed.bytes, mixed.flavor, mixed.before)
    sink = Sink()
    waits: list[int] = []

    def produce_every_third(*arguments: object) -> None:
        if len(waits) % 3 != 2:
            raise BufferError
        waits.append(0)
        sink.produce(*arguments)

    decoder = new_decoder(
        sink,
        mixed.flavor,
        mixed.before,
        produce=produce_every_third,
        on_full=lambda: waits.append(0),
    )
    decoder.feed(mixed.bytes, 0, len(mixed.bytes), ALL_ROWS)
    decoder.take_batch()

    assert sink.messages == whole.messages


def test_a_queue_that_stays_full_ends_the_decoder(mixed: Stream) -> None:
    """A queue that never takes anything is given up on, and the decoder is spent."""

    def produce_never(*_: object) -> None:
        raise BufferError

    decoder = new_decoder(
        Sink(), mixed.flavor, mixed.before, produce=produce_never, on_full=nothing
    )
    with pytest.raises(QueueStayedFull):
        decoder.feed(mixed.bytes, 0, len(mixed.bytes), ALL_ROWS)
    with pytest.raises(UsageError, match="make a new one"):
        decoder.feed(mixed.bytes, 0, len(mixed.bytes), ALL_ROWS)


def test_any_flipped_bit_is_found(mixed: Stream) -> None:
    """F21: With checksums a changed byte in any event stops the decoder, whichever byte it is."""
    packets = packets_of(mixed.bytes)
    rng = random.Random(1)
    for number, original in enumerate(packets):
        at = rng.randrange(5, len(original))
        broken = bytearray(original)
        broken[at] ^= 1 << rng.randrange(8)
        stream = b"".join([*packets[:number], bytes(broken), *packets[number + 1 :]])
        if number == 0:
            continue  # before the format description nobody knows whether there are checksums
        with pytest.raises(DecoderHalt) as caught:
            decode(stream, mixed.flavor, mixed.before)
        # Of the format description itself any bit may make another event.
        found = CorruptBinlog | UnsupportedEvent | StatementInRowStream
        assert isinstance(caught.value, found)
        assert "binlog" in str(caught.value)


def test_events_cut_short_never_end_the_interpreter(mixed: Stream) -> None:
    """Every event, cut to any length and with a fitting checksum, is an error or a short event."""
    packets = packets_of(mixed.bytes)
    rng = random.Random(2)
    for number, original in enumerate(packets[2:], start=2):
        event = original[5:-4]
        for length in {19, len(event) - 1, *(rng.randrange(19, len(event)) for _ in range(6))}:
            cut = packet(b"\0" + with_checksum(event[:length]))
            stream = b"".join([*packets[:number], cut, *packets[number + 1 :]])
            sink = Sink()
            decoder = new_decoder(sink, mixed.flavor, mixed.before)
            with contextlib.suppress(DecoderHalt):
                decoder.feed(stream, 0, len(stream), ALL_ROWS)
            sink.events()


def test_random_bytes_in_an_event_never_end_the_interpreter(mixed: Stream) -> None:
    """Noise behind a fitting checksum is decoded or refused, never worse."""
    packets = packets_of(mixed.bytes)
    rng = random.Random(3)
    for _ in range(400):
        number = rng.randrange(2, len(packets))
        event = bytearray(packets[number][5:-4])
        for _ in range(rng.randint(1, 4)):
            event[rng.randrange(19, len(event))] = rng.randrange(256)
        noisy = packet(b"\0" + with_checksum(bytes(event)))
        stream = b"".join([*packets[:number], noisy, *packets[number + 1 :]])
        with contextlib.suppress(DecoderHalt):
            decoder = new_decoder(Sink(), mixed.flavor, mixed.before)
            decoder.feed(stream, 0, len(stream), ALL_ROWS)


def test_checksums_are_believed_from_the_format_event(database: DatabaseFixture) -> None:
    """A replica that asked for no checksums gets what the format event says, right either way."""
    stream = Stream(database, MIXED_STATEMENTS)
    without = capture(database, stream.before, checksum="NONE")

    with_sums, _ = decode(stream.bytes, stream.flavor, stream.before)
    asked_without, _ = decode(without, stream.flavor, stream.before)

    assert [m.value for m in asked_without.messages] == [m.value for m in with_sums.messages]


def test_checksums_can_be_left_unverified(mixed: Stream) -> None:
    """Without verification the same records come out."""
    verified, _ = decode(mixed.bytes, mixed.flavor, mixed.before)
    unverified, _ = decode(mixed.bytes, mixed.flavor, mixed.before, verify_checksum=False)

    assert unverified.messages == verified.messages


def test_an_event_of_several_packets(mysql_a: DatabaseFixture) -> None:
    """Events above 16 MB come in several packets; the pieces are put together again."""
    with mysql_a.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        row = cursor.fetchone()
    assert row is not None
    assert int(row[0]) > 40_000_000
    sizes = (16_777_215 - 60, 16_777_215, 34_000_000)
    stream = Stream(
        mysql_a,
        (
            "CREATE TABLE t(id INT PRIMARY KEY, v LONGBLOB)",
            *(f"INSERT INTO t VALUES ({i}, REPEAT('x', {size}))" for i, size in enumerate(sizes)),
        ),
    )
    sink = Sink()
    decoder = new_decoder(sink, stream.flavor, stream.before)
    feed_in_chunks(decoder, stream.bytes, repeat(3_000_000))
    decoder.take_batch()

    values = [event.after["v"] for event in sink.events() if event.after is not None]
    assert values == [b"x" * size for size in sizes]


def test_packets_that_are_no_events(mixed: Stream) -> None:
    """An error packet, an EOF and an unknown packet each have their own error."""
    error = packet(b"\xff" + struct.pack("<H", 1236) + b"#HY000could not find first log file")
    with pytest.raises(ServerError, match="could not find") as caught:
        decode(error, mixed.flavor, "")
    assert caught.value.code == 1236

    with pytest.raises(StreamEnded):
        decode(packet(b"\xfe\0\0\2\0"), mixed.flavor, "")
    with pytest.raises(CorruptBinlog, match="begins with 7b"):
        decode(packet(b"{}"), mixed.flavor, "")
    with pytest.raises(CorruptBinlog, match="begins with nothing"):
        decode(packet(b""), mixed.flavor, "")


def test_every_unknown_event_type_stops_the_shard(mixed: Stream) -> None:
    """F20: All 256 types of events are either handled or refused by a clear error."""
    packets = packets_of(mixed.bytes)
    start = b"".join(packets[:2])
    carry_no_change = {3, 5, 9, 11, 13, 14, 17, 27, 28, 29, 35, 36, 37, 41, 160, 161, 163}
    accepted = set()
    for event_type in range(256):
        if event_type in (4, 15):
            continue
        event = with_checksum(struct.pack("<IBIIIH", 0, event_type, 1, 0, 4, 0x80) + bytes(40))
        try:
            decode(start + packet(b"\0" + event), mixed.flavor, "")
        except DecoderHalt:
            continue
        accepted.add(event_type)

    assert accepted == carry_no_change


def test_a_transaction_seen_before_is_refused(mixed: Stream) -> None:
    """A server that sends a transaction again would duplicate it: the decoder stops."""
    _, summary = decode(mixed.bytes, mixed.flavor, mixed.before)

    with pytest.raises(CorruptBinlog):
        decode(mixed.bytes, mixed.flavor, summary.position)


def test_reached_counts_whole_transactions_only(mixed: Stream) -> None:
    """`reached` holds for what is complete, and never inside a transaction."""
    sink, summary = decode(mixed.bytes, mixed.flavor, mixed.before)
    decoder = new_decoder(Sink(), mixed.flavor, mixed.before)
    assert decoder.reached(mixed.before)
    assert not decoder.reached(summary.position)
    taken = 0
    packets = packets_of(mixed.bytes)
    for each in packets:
        decoder.feed(each, 0, len(each), ALL_ROWS)
        taken += len(each)
        if decoder.in_transaction:
            assert not decoder.reached(mixed.before)
            with pytest.raises(UsageError):
                decoder.take_batch()
            with pytest.raises(UsageError):
                decoder.advance_head(1)

    assert decoder.reached(summary.position)
    decoder.take_batch()
    assert len(sink.messages) == summary.last_seq


def test_grid_is_the_progress_records() -> None:
    """The decoder's cells are those of the progress record."""
    assert GRID_US == 10_000
