"""Timestamps of the log: clamped to what was promised, and clamped to the producer's clock."""

import pytest

from event_token import Flavor
from producers.decoder.stream.transaction import StreamClock
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.decoding import ALL_ROWS, Sink, decode, new_decoder

HOUR_US = 3_600_000_000


def stream_of(database: DatabaseFixture, *statements: str) -> tuple[str, bytes]:
    before = executed_set(database)
    name = database.new_database()
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"USE {name}")
        cursor.execute("CREATE TABLE t(id INT PRIMARY KEY)")
        for statement in statements:
            cursor.execute(statement)
    return before, capture(database, before)


def test_commit_times_have_microseconds_on_mysql(mysql_a: DatabaseFixture) -> None:
    """MySQL's token time is the commit's own, not the statement's second."""
    before, stream = stream_of(mysql_a, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    sink, _ = decode(stream, Flavor.MYSQL, before)
    times = [event.commit_us for event in sink.events()]

    assert times == sorted(set(times))
    assert any(time_us % 1_000_000 for time_us in times)


def test_commit_times_are_whole_seconds_on_mariadb(mariadb_a: DatabaseFixture) -> None:
    """MariaDB's token time is the header's second."""
    before, stream = stream_of(mariadb_a, "SET timestamp=1700000000", "INSERT INTO t VALUES (1)")
    sink, _ = decode(stream, Flavor.MARIADB, before)
    last = sink.events()[-1]

    assert last.commit_us == 1_700_000_000_000_000


def test_time_never_runs_back(mariadb_a: DatabaseFixture) -> None:
    """A commit time before the last one, or before a promised head, is clamped; raw it is kept."""
    before, stream = stream_of(mariadb_a, "SET timestamp=1700000000", "INSERT INTO t VALUES (1)")
    sink, _ = decode(stream, Flavor.MARIADB, before)
    *_, earlier, last = sink.events()
    assert last.commit_us < earlier.commit_us
    assert last.timestamp_us == earlier.timestamp_us

    promised_us = earlier.timestamp_us + HOUR_US
    sink, summary = decode(stream, Flavor.MARIADB, before, last_timestamp_us=promised_us)
    assert {event.timestamp_us for event in sink.events()} == {promised_us}
    assert summary.head_us <= promised_us


def test_advance_head_holds_for_later_records(mysql_a: DatabaseFixture) -> None:
    """What a heartbeat promised is kept by every record after it."""
    before, stream = stream_of(mysql_a, "INSERT INTO t VALUES (1)")
    plain, _ = decode(stream, Flavor.MYSQL, before)
    head_us = plain.events()[-1].timestamp_us + 123_456
    sink = Sink()
    decoder = new_decoder(sink, Flavor.MYSQL, before)
    decoder.advance_head(head_us)
    decoder.feed(stream, 0, len(stream), ALL_ROWS)

    assert {event.timestamp_us for event in sink.events()} == {head_us}
    assert decoder.take_batch().head_us == head_us


def test_a_commit_far_in_the_future_is_clamped_and_never_promised(
    mariadb_a: DatabaseFixture,
) -> None:
    """SET timestamp beyond the bound: clamped to the bound, reported once, and not the head."""
    before, stream = stream_of(
        mariadb_a,
        "INSERT INTO t VALUES (1)",
        "SET timestamp=2147483647",
        "INSERT INTO t VALUES (2)",
        "INSERT INTO t VALUES (3)",
        "SET timestamp=DEFAULT",
        "INSERT INTO t VALUES (4)",
    )
    normal, _ = decode(stream, Flavor.MARIADB, before)
    now_us = normal.events()[1].commit_us + 5_000_000
    sink, summary = decode(
        stream, Flavor.MARIADB, before, now_us=lambda: now_us, max_clock_ahead_us=10_000_000
    )
    by_id = {event.after["id"]: event for event in sink.events() if event.after is not None}
    bound_us = now_us + 10_000_000

    assert by_id[2].timestamp_us == by_id[3].timestamp_us == by_id[4].timestamp_us == bound_us
    assert by_id[2].commit_us == 2_147_483_647_000_000
    assert summary.head_us == by_id[4].commit_us
    assert summary.head_us < bound_us
    assert len(sink.notices) == 1
    assert "clamped" in sink.notices[0]


@pytest.mark.parametrize("ahead_us", [0, 10 * HOUR_US])
def test_a_floor_ahead_of_the_clock_is_not_promised_again(
    mysql_a: DatabaseFixture, ahead_us: int
) -> None:
    """After a restart on a log whose last record was clamped, the head begins at the clock."""
    before, stream = stream_of(mysql_a)
    decoder = new_decoder(
        Sink(),
        Flavor.MYSQL,
        before,
        now_us=lambda: 2_000_000_000_000_000,
        last_timestamp_us=2_000_000_000_000_000 + ahead_us,
    )

    assert decoder.take_batch().head_us == 2_000_000_000_000_000
    assert stream


def test_the_bound_moves_with_the_clock() -> None:
    """D9: long after the start, commit times are still compared with the clock as it is now."""
    now_us = 2_000_000_000_000_000
    notices: list[str] = []
    clock = StreamClock(0, 10_000_000, lambda: now_us, notices.append)
    for _ in range(3):
        now_us += HOUR_US
        clock.take(now_us)
        clock.commit()
        assert (clock.timestamp_us, clock.head_us) == (now_us, now_us)
        clock.take(now_us + 9_000_000)
        assert clock.timestamp_us == now_us + 9_000_000
    assert notices == []

    clock.take(now_us + HOUR_US)
    assert clock.timestamp_us == now_us + 10_000_000
    assert len(notices) == 1
