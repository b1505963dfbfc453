"""The time of a read, which is compared only across a reshard."""

from collections.abc import Callable
from typing import Any

import pytest
from pymysql.cursors import Cursor

from caching.errors import Stale
from caching.reading.connections import Connect
from caching.reading.fresh_reader import FreshReader
from caching.reading.own_writes import ReadYourWrites
from caching.reading.shard_time import ShardTime
from databases.internal_tables import HEARTBEAT, JOURNAL, ROLE, create_internal_tables
from databases.mariadb_snapshot import START_SNAPSHOT
from shardstream.local.kafka_cluster import KafkaCluster
from tests.caching.reading.reading import allow_reads, by_pymysql, run, written
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import producing, settings_of, wait_for
from tests.resharding.accounts import grant_internal_tables

# Shards of a reshard: no other test has rows of them in `_shardstream`.
SOURCE, TARGET = "3a-3c", "3a-3b"
# Times in the future, as no clock of the test reaches them.
BEAT_US = 4_102_444_800_000_000
HOP_US = BEAT_US + 60_000_000

MakeReader = Callable[..., FreshReader]


@pytest.fixture
def reader(keyspace: str) -> MakeReader:
    """Make a new reader, which knows nothing of the server's tables yet."""

    def make(database: DatabaseFixture, shard: str = SOURCE) -> FreshReader:
        return FreshReader(keyspace, shard, [by_pymysql(database)], flavor=database.flavor)

    return make


def time_of(reader: FreshReader) -> int | None:
    with reader:
        found = reader.execute("SELECT 1")
    assert found.token is not None
    return found.token.timestamp_us


def prepare(database: DatabaseFixture) -> str:
    """Create our own tables without rows of these shards, and return a schema with the table t."""
    with database.connect() as connection:
        create_internal_tables(connection)
    run(
        database,
        f"DELETE FROM {HEARTBEAT} WHERE shard IN ('{SOURCE}', '{TARGET}')",
        f"DELETE FROM {ROLE} WHERE shard IN ('{SOURCE}', '{TARGET}')",
    )
    with database.one_table() as (name, _):
        allow_reads(database, name)
    return name


def beat(database: DatabaseFixture, shard: str, at_us: int) -> None:
    run(database, f"REPLACE INTO {HEARTBEAT} VALUES ('{shard}', {at_us})")


def mark(database: DatabaseFixture, keyspace: str, kind: str, hop: str = "NULL") -> None:
    """Write a row of the journal, as a switch does."""
    run(
        database,
        f"INSERT INTO {JOURNAL} (reshard_id, kind, sources, targets, hop_time_us, keyspace) "
        f"VALUES ('r1', '{kind}', '[\"{SOURCE}\"]', '[\"{TARGET}\", \"3b-3c\"]', {hop}, "
        f"'{keyspace}')",
    )


def test_without_our_tables_a_read_has_no_time(
    database: DatabaseFixture, keyspace: str, reader: MakeReader
) -> None:
    """Missing tables are no fault: only the comparison across a reshard needs them."""
    run(database, "DROP DATABASE IF EXISTS _shardstream")
    allow_reads(database, database.new_database())

    assert time_of(reader(database)) is None

    prepare(database)
    assert time_of(reader(database)) is None

    beat(database, SOURCE, BEAT_US)
    assert time_of(reader(database)) == BEAT_US


def test_a_source_has_no_time_after_end(
    database: DatabaseFixture, keyspace: str, reader: MakeReader
) -> None:
    """Its heartbeat rows go on, so their times would pass the hop; CANCELLED gives it back."""
    prepare(database)
    beat(database, SOURCE, BEAT_US)
    mark(database, keyspace, "END")

    assert time_of(reader(database)) is None

    run(database, f"UPDATE {JOURNAL} SET kind = 'CANCELLED' WHERE keyspace = '{keyspace}'")
    assert time_of(reader(database)) == BEAT_US


def test_a_target_has_no_time_before_begin(
    database: DatabaseFixture, keyspace: str, reader: MakeReader
) -> None:
    """From BEGIN on it holds everything from before the hop, and its time is the hop's at least."""
    prepare(database)
    run(database, f"INSERT INTO {ROLE} VALUES ('{keyspace[-8:]}', '{TARGET}', 'target')")
    beat(database, TARGET, BEAT_US)
    mark(database, f"{keyspace}_other", "BEGIN", str(HOP_US))

    assert time_of(reader(database, TARGET)) is None

    mark(database, keyspace, "BEGIN", str(HOP_US))
    assert time_of(reader(database, TARGET)) == HOP_US

    beat(database, TARGET, HOP_US + 5)
    assert time_of(reader(database, TARGET)) == HOP_US + 5


def test_own_writes_hold_across_a_split(
    mysql_a: DatabaseFixture, mysql_b: DatabaseFixture, keyspace: str, reader: MakeReader
) -> None:
    """R24: a cookie from before the split is answered by the target once it has its BEGIN."""
    name, _ = prepare(mysql_a), prepare(mysql_b)
    source, target = reader(mysql_a), reader(mysql_b, TARGET)
    run(mysql_b, f"INSERT INTO {ROLE} VALUES ('{keyspace[-8:]}', '{TARGET}', 'target')")
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

    new = written(target, mysql_b, "CREATE DATABASE IF NOT EXISTS after_split")
    assert new.timestamp_us == HOP_US
    beat(mysql_a, SOURCE, HOP_US + 60_000_000)
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
    settings = settings_of(database, kafka, keyspace, heartbeat_ms=50, heartbeat_rows="always")
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
        wait_for("the head follows the rows", lambda: producer.statuses[-1].head_us >= last_us)

    assert times == sorted(times)


def test_our_tables_change_while_a_read_begins(mariadb_a: DatabaseFixture, keyspace: str) -> None:
    """A heartbeat table that is newer than the snapshot does not end the read: it begins again."""
    prepare(mariadb_a)
    beat(mariadb_a, SOURCE, BEAT_US)
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
        (ShardTime(5, 0, has_ended=False), 5),
        (ShardTime(0, 0, has_ended=False), None),
        (ShardTime(5, 9, has_ended=False), 9),
        (ShardTime(9, 5, has_ended=False), 9),
        (ShardTime(5, None, has_ended=False), None),
        (ShardTime(5, 9, has_ended=True), None),
    ],
)
def test_the_time_is_that_of_the_newest_row(shown: ShardTime, expected: int | None) -> None:
    """Heartbeat or BEGIN, whichever is later; none where it would prove nothing."""
    assert shown.timestamp_us(keeps_order=True) == expected
    assert shown.timestamp_us(keeps_order=False) is None
