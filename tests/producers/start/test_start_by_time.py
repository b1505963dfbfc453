"""An empty log that starts at a time: found in real binlogs, or refused with the oldest one."""

import re
import time
from contextlib import closing

import pytest

from databases.connection import open_connection
from databases.server_facts import facts_of
from databases.sql import rows
from event_token import Flavor, MariadbGtidSet, UsageError
from event_token.gtid_set import parse_gtid_set
from producers.errors import BinlogPurged
from producers.replication.gtid_scan import BinlogTransaction, transactions
from producers.replication.stream import ReplicationStream
from producers.servers.server_list import UnlistedNumbers
from producers.start.position_at_time import find_position, iso
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.servers.replication import purge_to
from tests.producers.session.producing import (
    RunningProducer,
    producing,
    read_log,
    replay,
    server_of,
    settings_of,
    wait_caught_up,
)
from topics.kafka.lookups import Lookups
from topics.progress.history import ProgressHistory
from topics.progress.record import begins_us, cell_start_us
from topics.schemas import TopicSchemaIds
from topics.start.start_forms import parse_time

SECOND_US = 1_000_000


@pytest.fixture
def own_server(start_server: StartServer) -> DatabaseFixture:
    """A server of each family whose binlogs hold only the test's transactions."""
    return start_server()


def logged(database: DatabaseFixture) -> list[BinlogTransaction]:
    """All transactions of the server's binlogs."""
    flavor = Flavor(database.flavor.value)
    with database.connect() as connection:
        first = rows(connection, "SHOW BINARY LOGS")[0][0]
    server = server_of(database)
    with closing(ReplicationStream.open_file(server, facts_of(flavor), first)) as stream:
        return list(transactions(stream, flavor, first))


def insert(database: DatabaseFixture, name: str, ids: range, *, every_s: float) -> None:
    """One row a transaction, each in a binlog of its own, with a pause before each."""
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        for i in ids:
            time.sleep(every_s)  # commit times must differ by the family's granularity
            cursor.execute(f"INSERT INTO t VALUES ({i}, REPEAT('x', 10000))")
            cursor.execute("FLUSH BINARY LOGS")


def start_at(database: DatabaseFixture, time_us: int) -> str:
    """The position that a start at this time takes, as text."""
    server, family = server_of(database), facts_of(Flavor(database.flavor.value))
    with closing(open_connection(server)) as connection:
        history = UnlistedNumbers().added_to(family.history(connection), server, family, connection)
        return str(find_position(server, family, connection, time_us, history).position)


def executed(database: DatabaseFixture) -> str:
    """The server's executed set as text."""
    with closing(open_connection(server_of(database))) as connection:
        return str(facts_of(Flavor(database.flavor.value)).history(connection).executed)


@pytest.mark.full
def test_start_by_time_leaves_out_what_is_older(
    own_server: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """The log begins at the time; others are refused, and the oldest named works."""
    name = own_server.new_database()
    pause_s = 1.1 if own_server.flavor is Flavor.MARIADB else 0.0
    with own_server.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
    insert(own_server, name, range(4), every_s=pause_s)
    third, fourth = logged(own_server)[-2:]
    settings = settings_of(own_server, kafka, keyspace, start=iso(third.commit_us))
    with producing(settings):
        wait_caught_up(settings)
    assert sorted(replay(read_log(settings), name, "t")) == [2, 3]
    schema_ids = TopicSchemaIds(settings.kafka)
    with Lookups(settings.kafka) as lookups:
        first = lookups.result(ProgressHistory(keyspace, settings.shard, schema_ids).first())
    assert first is not None
    assert begins_us(first.progress) == cell_start_us(third.commit_us)

    assert start_at(own_server, fourth.commit_us) != start_at(own_server, third.commit_us)
    with own_server.connect() as connection:
        *_, second_last, _last = rows(connection, "SHOW BINARY LOGS")
    purge_to(own_server, second_last[0])
    late = settings_of(own_server, kafka, f"{keyspace}b", start="2020-01-01T00:00:00Z")
    error = RunningProducer(late).wait_error()
    assert isinstance(error, UsageError)
    oldest = re.search(r"oldest possible on \S+ is (\S+);", str(error))
    assert oldest is not None
    oldest_us = parse_time(oldest[1], "the oldest time")
    assert oldest_us > third.commit_us
    start = parse_gtid_set(start_at(own_server, oldest_us), own_server.flavor)
    for transaction in logged(own_server):
        before = parse_gtid_set(str(transaction), own_server.flavor)
        assert start.includes(before) == (transaction.commit_us < oldest_us), transaction
    with pytest.raises(UsageError, match="future"):
        start_at(own_server, time.time_ns() // 1000 + 60 * SECOND_US)


def test_start_behind_the_last_transaction_is_the_end(start_mysql: StartServer) -> None:
    """Nothing was committed since: the log begins with what comes."""
    server = start_mysql()
    server.new_database()
    last = logged(server)[-1]

    assert start_at(server, last.commit_us + 1) == executed(server)


def test_clock_that_was_set_back_leaves_nothing_out(start_mariadb: StartServer) -> None:
    """Of several binlogs that begin late enough the first one counts."""
    mariadb = start_mariadb()
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET timestamp = 1700000000")
        cursor.execute("CREATE DATABASE set_back")
        cursor.execute("CREATE TABLE set_back.t (id INT PRIMARY KEY)")
        for i, second in enumerate([1_000, 2_000, 3_000, 1_500, 2_500]):
            cursor.execute("FLUSH BINARY LOGS")
            cursor.execute(f"SET timestamp = {1_700_000_000 + second}")
            cursor.execute(f"INSERT INTO set_back.t VALUES ({i})")
    before = f"0-{mariadb.server.server_id}-3"

    assert start_at(mariadb, 1_700_002_000 * SECOND_US) == before


def test_a_binlog_that_begins_with_a_slow_statement_hides_nothing(
    start_mariadb: StartServer,
) -> None:
    """Commits bear the second in which their statement began: the file before may have later ones.

    The second file begins too early, the third one late enough.
    """
    mariadb = start_mariadb()
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET timestamp = 1700000000")
        cursor.execute("CREATE DATABASE slow")
        cursor.execute("CREATE TABLE slow.t (id INT PRIMARY KEY)")
        for i, (second, ends_file) in enumerate([(1, False), (5, True), (2, True), (9, False)]):
            cursor.execute(f"SET timestamp = {1_700_000_000 + second}")
            cursor.execute(f"INSERT INTO slow.t VALUES ({i})")
            if ends_file:
                cursor.execute("FLUSH BINARY LOGS")

    found = start_at(mariadb, 1_700_000_003 * SECOND_US)

    assert found == f"0-{mariadb.server.server_id}-3"  # before the insert of second 5


def test_mariadb_from_a_backup_does_not_pass_for_complete(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """Binlogs that begin in the middle of a domain without saying so: the hole is named."""
    mariadb = start_mariadb()
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET gtid_seq_no = 101")
        cursor.execute("CREATE DATABASE from_backup")
    source = mariadb.server.server_id
    behind = settings_of(mariadb, kafka, keyspace, start=f"gtid:0-{source}-50")

    error = RunningProducer(behind).wait_error()
    with pytest.raises(UsageError, match="too old"):
        start_at(mariadb, SECOND_US)

    assert isinstance(error, BinlogPurged)
    server, family = server_of(mariadb), facts_of(Flavor.MARIADB)
    with closing(open_connection(server)) as connection:
        history = UnlistedNumbers().added_to(family.history(connection), server, family, connection)
    assert MariadbGtidSet.parse("0-7-100").reaches(history.purged)
    assert not MariadbGtidSet.parse("0-7-99").reaches(history.purged)


def test_times_are_read_as_they_are_written() -> None:
    """A time in a message can be passed to `--from`."""
    for time_us in (1_700_000_000_123_456, 1_700_000_000_000_000):
        assert parse_time(iso(time_us), "start") == time_us
