"""The time of a read: compared with changes across a reshard, and with the time that is wanted."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymysql.cursors import Cursor

from caching.errors import Stale, TooOld
from caching.reading.connections import Connect
from caching.reading.fresh_reader import FreshReader
from caching.reading.own_writes import ReadYourWrites
from caching.reading.snapshots import ReadTransaction, ShardTime, TimeBound
from databases.internal_tables import HEARTBEAT, JOURNAL, ROLE
from databases.server_facts import START_SNAPSHOT
from databases.sql import rows
from event_token import ClockUncertainty, UsageError
from producers.clock import now_us
from producers.session.heads import NO_INTERVAL, write_heartbeat
from shardstream.local.kafka_cluster import KafkaCluster
from tests.caching.reading.marks import HOP_US, SOURCE, TARGET, beat, mark, prepare
from tests.caching.reading.reading import (
    BEAT_US,
    WRITTEN,
    WRITTEN_US,
    allow_reads,
    by_pymysql,
    run,
    written,
)
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import SettableBound, producing, settings_alone, settings_of
from tests.resharding.accounts import grant_internal_tables
from tests.waiting import wait_for

YEAR_US = 365 * 86_400_000_000

MakeReader = Callable[..., FreshReader]


@pytest.fixture
def reader(keyspace: str) -> MakeReader:
    """Make a new reader, which knows nothing of the server's tables yet."""

    def make(database: DatabaseFixture, shard: str = SOURCE, off_us: int = 0) -> FreshReader:
        clock, flavor = ClockUncertainty(off_us), database.flavor
        return FreshReader(keyspace, shard, [by_pymysql(database)], flavor=flavor, clock=clock)

    return make


def time_of(reader: FreshReader) -> int | None:
    with reader:
        found = reader.execute("SELECT 1")
    assert found.token is not None
    return found.token.timestamp_us


def time_at(at_us: int) -> datetime:
    return WRITTEN + timedelta(microseconds=at_us - WRITTEN_US)


def test_without_our_tables_a_read_has_no_time(
    database: DatabaseFixture, keyspace: str, reader: MakeReader
) -> None:
    """Missing tables are no fault: only the comparison across a reshard needs them."""
    run(database, "DROP DATABASE IF EXISTS _shardstream")
    allow_reads(database, database.new_database())

    assert time_of(reader(database)) is None

    prepare(database)
    assert time_of(reader(database)) is None

    beat(database, keyspace, SOURCE, BEAT_US)
    assert time_of(reader(database)) == BEAT_US


def test_a_source_has_no_time_after_end(
    database: DatabaseFixture, keyspace: str, reader: MakeReader
) -> None:
    """Its heartbeat rows go on, so their times would pass the hop; CANCELLED gives it back.

    A shard of this name in another keyspace on the server has a role, a time and marks of its own.
    """
    prepare(database)
    beat(database, keyspace, SOURCE, BEAT_US)
    mark(database, keyspace, "END")

    assert time_of(reader(database)) is None

    run(database, f"UPDATE {JOURNAL} SET kind = 'CANCELLED' WHERE keyspace = '{keyspace}'")
    assert time_of(reader(database)) == BEAT_US

    other = f"{keyspace}_other"
    run(database, f"INSERT INTO {ROLE} VALUES ('{other[-8:]}', '{SOURCE}', 'target', '{other}')")
    beat(database, other, SOURCE, BEAT_US + 9)
    mark(database, other, "END")
    assert time_of(reader(database)) == BEAT_US


def test_a_target_has_no_time_before_begin(
    database: DatabaseFixture, keyspace: str, reader: MakeReader
) -> None:
    """From BEGIN on it holds everything from before the hop, and its time is the hop's at least."""
    prepare(database)
    run(
        database,
        f"INSERT INTO {ROLE} VALUES ('{keyspace[-8:]}', '{TARGET}', 'target', '{keyspace}')",
    )
    beat(database, keyspace, TARGET, BEAT_US)
    mark(database, f"{keyspace}_other", "BEGIN", str(HOP_US))

    assert time_of(reader(database, TARGET)) is None

    mark(database, keyspace, "BEGIN", str(HOP_US))
    assert time_of(reader(database, TARGET)) == HOP_US

    beat(database, keyspace, TARGET, HOP_US + 5)
    assert time_of(reader(database, TARGET)) == HOP_US + 5


def test_a_read_up_to_a_time(database: DatabaseFixture, keyspace: str, reader: MakeReader) -> None:
    """The newest heartbeat row proves it, as far as its own clock may be off; no row proves none.

    The clock of the reader's host has no part in it.
    """
    prepare(database)
    off_us, step = 1_000, timedelta(microseconds=1)
    with reader(database) as exact, reader(database, off_us=off_us) as unsure:
        with pytest.raises(TooOld, match=r"has no time: there is no heartbeat row"):
            exact.execute("SELECT 1", at_least=WRITTEN, wait_s=0)
        beat(database, keyspace, SOURCE, BEAT_US)
        for reading in (exact, unsure):
            found = reading.execute("SELECT 1", at_least=WRITTEN)
            assert (found.rows, found.complete_to) == ([(1,)], WRITTEN)
            with pytest.raises(TooOld, match=r"up to 2026-01-01T00:00:00\.000001Z, and no server"):
                reading.execute("SELECT 1", at_least=WRITTEN + step, wait_s=0)
        beat(database, keyspace, SOURCE, BEAT_US, off_us=off_us)
        unsure.execute("SELECT 1", at_least=WRITTEN - off_us * step)
        with pytest.raises(TooOld, match=r"ms behind \(2 ms of it because clocks may be off\)"):
            unsure.execute("SELECT 1", at_least=WRITTEN - (off_us - 1) * step, wait_s=0)
        with pytest.raises(UsageError, match="no time zone"):
            exact.execute("SELECT 1", at_least=WRITTEN.replace(tzinfo=None))


def test_the_bound_of_a_read_is_that_of_the_producers_clock(
    database: DatabaseFixture, keyspace: str, reader: MakeReader
) -> None:
    """A row's interval contains true time, reads go up to its begin, and without one to nowhere."""
    prepare(database)
    off_us = 3_600_000_000
    clock = SettableBound(off_us)
    settings = settings_alone(database, keyspace=keyspace, shard=SOURCE, host_clock=clock)
    select = f"SELECT at_us, at_min_us, at_max_us FROM {HEARTBEAT} WHERE shard = '{SOURCE}'"
    with database.connect(autocommit=True) as connection, reader(database) as reading:
        before_us = now_us()
        assert write_heartbeat(connection, settings) == ""
        after_us = now_us()
        [(at_us, at_min_us, at_max_us)] = rows(connection, select)
        assert at_min_us < before_us <= at_us <= after_us < at_max_us
        assert before_us <= at_min_us + off_us == at_max_us - off_us <= after_us

        age_ms = reading.execute("SELECT 1", at_least=time_at(at_min_us)).age_ms
        assert age_ms is not None
        assert age_ms >= off_us / 1_000
        with pytest.raises(TooOld, match=r"may be 3,6\d\d,\d\d\d ms behind"):
            reading.execute("SELECT 1", at_least=time_at(at_min_us + 1), wait_s=0)

        clock.us = None
        assert write_heartbeat(connection, settings) == f"{NO_INTERVAL}: nobody knows"
        [(later_us, *interval)] = rows(connection, select)
        assert interval == [None, None]
        found = reading.execute("SELECT 1")
        assert found.age_ms is None
        assert found.token is not None
        assert found.token.timestamp_us == later_us > at_us
        with pytest.raises(TooOld, match="has no heartbeat row with an interval"):
            reading.execute("SELECT 1", max_age_ms=YEAR_US, wait_s=0)


def test_a_read_of_an_age(database: DatabaseFixture, keyspace: str, reader: MakeReader) -> None:
    """The age counts from the newest heartbeat row to the read, and the reader's clock once.

    A row from the future, beyond what the clock may be off, shows that a clock is wrong.
    """
    prepare(database)
    off_us, year_ms = 3_600_000_000, YEAR_US // 1_000
    beat(database, keyspace, SOURCE, BEAT_US, now_us() - YEAR_US)
    with reader(database) as exact, reader(database, off_us=off_us) as unsure:
        age_ms = exact.execute("SELECT 1", max_age_ms=2 * year_ms).age_ms
        assert age_ms is not None
        assert year_ms <= age_ms < 2 * year_ms
        with pytest.raises(TooOld, match=r"rows may be 31,536,000,000 ms old, and no server"):
            exact.execute("SELECT 1", max_age_ms=year_ms, wait_s=0)
        wider_ms = unsure.execute("SELECT 1").age_ms
        assert wider_ms is not None
        assert off_us / 1_000 <= wider_ms - age_ms < 2 * off_us / 1_000
        beat(database, keyspace, SOURCE, BEAT_US, now_us() + off_us // 2)
        assert exact.execute("SELECT 1").age_ms is None
        with pytest.raises(TooOld, match="a heartbeat row from this host's future"):
            exact.execute("SELECT 1", max_age_ms=year_ms, wait_s=0)
        with pytest.raises(TooOld, match="a heartbeat row from this host's future"):
            exact.execute("SELECT 1", at_least=WRITTEN, wait_s=0)
        unsure.execute("SELECT 1", max_age_ms=2 * off_us // 1_000)
        with pytest.raises(UsageError, match="max_age_ms is -1"):
            exact.execute("SELECT 1", max_age_ms=-1)


def test_own_writes_hold_across_a_split(
    mysql_a: DatabaseFixture, mysql_b: DatabaseFixture, keyspace: str, reader: MakeReader
) -> None:
    """R24: a cookie from before the split is answered by the target once it has its BEGIN."""
    name, _ = prepare(mysql_a), prepare(mysql_b)
    source, target = reader(mysql_a), reader(mysql_b, TARGET)
    run(
        mysql_b,
        f"INSERT INTO {ROLE} VALUES ('{keyspace[-8:]}', '{TARGET}', 'target', '{keyspace}')",
    )
    session = ReadYourWrites()
    session.wrote(written(source, mysql_a, f"INSERT INTO {name}.t VALUES (1)"))
    cookie = session.to_cookie()
    session = ReadYourWrites.from_cookie(cookie)

    with pytest.raises(Stale, match="does not prove that it holds a change of shard 3a-3c"):
        target.execute("SELECT 1", at_least=session)
    mark(mysql_a, keyspace, "END")
    mark(mysql_b, keyspace, "BEGIN", str(HOP_US))
    assert target.execute("SELECT 1", at_least=session).rows == [(1,)]
    assert target.execute("SELECT 1", compare_event_token=session.tokens[0]).fresher is True
    # The hop lies in the year 2100, and clocks may be off by a century.
    with reader(mysql_b, TARGET, 100 * YEAR_US) as doubtful:
        assert doubtful.execute("SELECT 1", compare_event_token=session.tokens[0]).fresher is None
        with pytest.raises(Stale, match="does not prove that it holds a change of shard 3a-3c"):
            doubtful.execute("SELECT 1", at_least=session)

    new = written(target, mysql_b, "CREATE DATABASE IF NOT EXISTS after_split")
    assert new.timestamp_us == HOP_US
    beat(mysql_a, keyspace, SOURCE, HOP_US + 60_000_000)
    old = source.execute("SELECT 1", compare_event_token=new)
    assert (old.token is not None, old.fresher) == (True, None)
    with pytest.raises(Stale, match="of shard 3a-3b") as raised:
        source.execute("SELECT 1", at_least=new)
    assert not raised.value.is_lost
    source.close()
    target.close()


def test_a_producer_that_writes_always_gives_reads_a_time(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """On a primary alone: the producer creates the tables, and the time of reads goes on."""
    name = database.new_database()
    allow_reads(database, name)
    run(database, "DROP DATABASE IF EXISTS _shardstream")
    grant_internal_tables(database)
    clock = SettableBound(None)
    settings = settings_of(
        database, kafka, keyspace, heartbeat_ms=50, heartbeat_rows="always", host_clock=clock
    )
    connect: Connect = by_pymysql(database)
    with producing(settings) as producer:
        times: list[int] = []

        def has_moved() -> bool:
            times.append(
                time_of(FreshReader(keyspace, settings.shard, [connect], flavor=database.flavor))
                or 0
            )
            return len({each for each in times if each}) > 2

        wait_for("the time of reads moves", has_moved)
        last_us = times[-1]
        wait_for(
            "a note says what the rows lack",
            lambda: f"{NO_INTERVAL}: nobody knows" in {each.note for each in producer.statuses},
        )
        wait_for("the head follows the rows", lambda: producer.statuses[-1].head_us >= last_us)

    assert times == sorted(times)


def test_our_tables_change_while_a_read_begins(mariadb_a: DatabaseFixture, keyspace: str) -> None:
    """A heartbeat table that is newer than the snapshot does not end the read: it begins again."""
    prepare(mariadb_a)
    beat(mariadb_a, keyspace, SOURCE, BEAT_US)
    rebuilds = [f"ALTER TABLE {HEARTBEAT} FORCE"]

    class Rebuilding(Cursor):  # type: ignore[misc]  # PyMySQL is untyped
        def execute(self, query: str, args: object = None) -> Any:
            found = super().execute(query, args)
            if query.startswith(START_SNAPSHOT) and rebuilds:
                run(mariadb_a, rebuilds.pop())
            return found

    connect: Connect = by_pymysql(mariadb_a, cursorclass=Rebuilding)
    found = FreshReader(keyspace, SOURCE, [connect], flavor=mariadb_a.flavor)

    assert time_of(found) == BEAT_US
    assert rebuilds == []


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (ShardTime(5, 3, 4, 0, has_ended=False), 5),
        (ShardTime(0, 0, 0, 0, has_ended=False), None),
        (ShardTime(5, 3, 4, 9, has_ended=False), 9),
        (ShardTime(9, 3, 4, 5, has_ended=False), 9),
        (ShardTime(5, 3, 4, None, has_ended=False), None),
        (ShardTime(5, 3, 4, 9, has_ended=True), None),
    ],
)
def test_the_time_is_that_of_the_newest_row(shown: ShardTime, expected: int | None) -> None:
    """Heartbeat or BEGIN, whichever is later; none where it would prove nothing."""
    assert shown.timestamp_us(keeps_order=True) == expected
    assert shown.timestamp_us(keeps_order=False) is None


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (ShardTime(50, 30, 40, 0, has_ended=False), TimeBound(30, 77, 12)),
        (ShardTime(50, 30, 40, 90, has_ended=False), TimeBound(30, 77, 12)),
        (ShardTime(50, 103, 107, 0, has_ended=False), TimeBound(103, 4, 9)),
        (ShardTime(50, 108, 108, 0, has_ended=False), TimeBound(108, 0, 7)),
        (ShardTime(50, 109, 109, 0, has_ended=False), None),
        (ShardTime(50, 0, 0, 0, has_ended=False), None),
        (ShardTime(0, 0, 0, 90, has_ended=False), None),
        (ShardTime(50, 30, 40, None, has_ended=False), None),
        (ShardTime(50, 30, 40, 0, has_ended=True), None),
    ],
)
def test_a_read_holds_what_its_heartbeat_row_says(
    shown: ShardTime, expected: TimeBound | None
) -> None:
    """Up to the begin of the interval, by the reader's latest time; a row of the future is none.

    The hop time of a BEGIN is none either: the target takes writes before it.
    """
    opening = ReadTransaction("db-a:3306", True, None, shown.timestamp_us(keeps_order=True), shown)
    assert opening.bound(100, 101, 7) == expected
