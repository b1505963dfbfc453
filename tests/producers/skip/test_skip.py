"""`shardstream skip --gtid` on real servers: one transaction stops the shard, then it goes on."""

import re

import pytest

from databases.internal_tables import JOURNAL, create_internal_tables
from databases.sql import rows
from event_token import Flavor, MariadbGtidSet, MysqlGtidSet, UsageError, parse_gtid_set
from producers.decoder.errors import RecordTooLarge, StatementInRowStream, UnsupportedEvent
from producers.settings import ProducerState, ShardProducerSettings
from producers.skip.one_transaction import skip_transaction
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import executed as executed_on
from tests.producers.session.producing import (
    SHARD,
    RunningProducer,
    limited,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
    wait_readable,
)
from tests.producers.skip.skipping import checked_log, ids, named_gtid, run
from tests.topics.shard_writer import provision
from tests.waiting import wait_for
from topics.kafka.errors import Fenced
from topics.keyspace.audit import operator
from topics.records.skip_record import Skip, SkipKind
from topics.records.vevent import EventType
from topics.stream.subscriber import StreamSubscriber

REASON = "ticket 17: a statement by hand"


def after_stop(settings: ShardProducerSettings, kind: type[BaseException]) -> str:
    """Run a producer until it stops for good; return the GTID whose skip its message names."""
    error = RunningProducer(settings).wait_error()
    assert isinstance(error, kind), error
    return named_gtid(error, settings)


def write_what_stops(database: DatabaseFixture, name: str) -> list[type[BaseException]]:
    """Write rows 2 to 6, of which 3 and 5 can be logged; return how the others stop a shard."""
    run(
        database,
        name,
        "SET SESSION binlog_format = STATEMENT",
        "INSERT INTO t VALUES (2, '')",
        "SET SESSION binlog_format = ROW",
        "INSERT INTO t VALUES (3, '')",
        "INSERT INTO t VALUES (4, REPEAT('x', 20000))",
        "INSERT INTO t VALUES (5, '')",
    )
    if database.flavor is Flavor.MYSQL:
        return [StatementInRowStream, RecordTooLarge]
    xa = ("XA START 'x'", "INSERT INTO t VALUES (6, '')", "XA END 'x'")
    run(database, name, *xa, "XA PREPARE 'x'", "XA COMMIT 'x'")
    return [StatementInRowStream, RecordTooLarge, UnsupportedEvent, UnsupportedEvent]


@pytest.mark.full
def test_skipped_transactions_are_told_and_all_other_rows_arrive_once(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B3: each transaction that stops the shard for good is passed by the command that is named."""
    name = database.new_database()
    settings = limited(settings_of(database, kafka, keyspace), 10_000)
    provision(settings.kafka, keyspace, [SHARD])
    run(database, name, "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
    with producing(settings):
        run(database, name, "INSERT INTO t VALUES (1, '')")
        wait_caught_up(settings)
    stops = write_what_stops(database, name)

    skipped = []
    for kind in stops:
        skipped.append(after_stop(settings, kind))
        skip_transaction(settings, skipped[-1], REASON)
    expected = [1, "skip", 3, "skip", 5, *["skip"] * (len(stops) - 2), 7]
    with producing(settings) as producer:
        run(database, name, "INSERT INTO t VALUES (7, '')")
        wait_caught_up(settings)
        with StreamSubscriber(
            keyspace,
            start="earliest",
            config=settings.kafka,
            tables=[f"{name}.t"],
            idle_timeout_s=120,
        ) as events:
            found = (e for e in events if e.type in {EventType.ROW, EventType.SKIP})
            seen = [next(found) for _ in expected]

    log = checked_log(settings)
    told = log.progress[-1].skipped
    assert told is not None
    assert told.count == len(stops)
    assert producer.statuses[-1].skipped == told
    assert ids(log.events) == expected
    skips = [event for event in log.events if event.type is EventType.SKIP]
    assert [event.gtid for event in skips] == skipped
    told_of = [Skip(SkipKind.TRANSACTION, gtid, REASON, operator()) for gtid in skipped]
    assert [Skip.of(e) for e in skips] == told_of
    assert ids(seen) == expected
    for event in (e for e in seen if e.type is EventType.SKIP):
        assert event.token.position.contains_gtid(event.gtid)


def test_what_cannot_be_skipped_is_refused_before_anything_happens(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B3: a GTID of the log, one that was never executed, or one out of turn ends no producer."""
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    run(database, name, "CREATE TABLE t (id INT PRIMARY KEY)")
    with producing(settings):
        run(database, name, "INSERT INTO t VALUES (1)")
        wait_caught_up(settings)
        logged = read_log(settings).events[-1].gtid
        written = len(read_log(settings).events)
        head, separator, number = re.split(r"([:-])(?=\d+$)", logged)
        never = f"{head}{separator}{int(number) + 1_000_000}"
        for gtid, reason, says in (
            (logged, REASON, "is already past"),
            (never, REASON, "has not executed"),
            (never, " ", "--reason takes a text"),
            ("no gtid", REASON, "GTID"),
        ):
            with pytest.raises(UsageError, match=says):
                skip_transaction(settings, gtid, reason)
        run(database, name, "INSERT INTO t VALUES (2)")
        wait_caught_up(settings)
    assert len(read_log(settings).events) == written + 1


def test_mariadb_skips_only_the_next_transaction_of_a_domain(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B3: a later GTID is refused with the name of the next one, since positions have no holes."""
    name = mariadb_a.new_database()
    settings = settings_of(mariadb_a, kafka, keyspace)
    run(mariadb_a, name, "CREATE TABLE t (id INT PRIMARY KEY)")
    with producing(settings):
        wait_caught_up(settings)
    run(mariadb_a, name, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    with mariadb_a.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.gtid_binlog_pos")
        [(last,)] = cursor.fetchall()
    [gtid] = [part for part in last.split(",") if part.startswith("0-")]
    domain, server, number = gtid.split("-")

    with pytest.raises(UsageError, match=f"is {domain}-{server}-{int(number) - 1}, not {gtid}"):
        skip_transaction(settings, gtid, REASON)
    skip_transaction(settings, f"{domain}-{server}-{int(number) - 1}", REASON)
    with producing(settings):
        wait_caught_up(settings)

    assert ids(read_log(settings).events)[-2:] == ["skip", 2]


def test_skip_fences_the_producer_that_runs(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B3: the record is written under the producer's own fence, so that none writes beside it."""
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace)
    run(mysql_a, name, "CREATE TABLE t (id INT PRIMARY KEY)")
    producer = RunningProducer(settings)
    producer.wait_streaming()
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        for text in ("XA START 'f'", "INSERT INTO t VALUES (1)", "XA END 'f'", "XA PREPARE 'f'"):
            cursor.execute(text)
        run(mysql_a, name, "INSERT INTO t VALUES (2)")
        wait_for("the row behind it is logged", lambda: ids(read_log(settings).events) == [2])
        # A position leaves prepared transactions out, so this one can be skipped.
        [(executed,)] = rows(connection, "SELECT @@GLOBAL.gtid_executed")
        position = MysqlGtidSet.parse(read_log(settings).progress[-1].position)
        prepared = MysqlGtidSet.parse(executed.replace("\n", "")).subtract(position)
        told = len(producer.statuses)
        skip_transaction(settings, str(prepared), REASON)
        cursor.execute("XA ROLLBACK 'f'")

    def has_begun_again() -> bool:
        # A broker that is fencing it may answer its commit with an error of its own. Then it fences
        # in turn, behind the record.
        states = [status.state for status in producer.statuses[told:]]
        return ProducerState.RECONNECTING in states

    wait_for("the producer is fenced", lambda: not producer.runs or has_begun_again())
    if has_begun_again():
        producer.end()
    else:
        assert isinstance(producer.wait_error(), Fenced)
    wait_readable(settings)
    assert ids(read_log(settings).events) == [2, "skip"]


def test_marks_of_a_reshard_are_not_skipped(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B3: readers would wait for the mark for ever; one of another keyspace's reshard is none."""
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    run(database, name, "CREATE TABLE t (id INT PRIMARY KEY)")
    with database.connect() as connection:
        create_internal_tables(connection, (JOURNAL,))
    with producing(settings):
        wait_caught_up(settings)
    end = (
        "INSERT INTO _shardstream.journal VALUES "
        "('r1', 'END', '[\"-\"]', '[\"-80\", \"80-\"]', NULL, '{}')"
    )
    run(database, name, end.format("another"))
    skip_transaction(settings, last_gtid(database, settings), REASON)
    run(database, name, end.format(keyspace))

    with pytest.raises(UsageError, match="is END of reshard r1: without it no reader gets past"):
        skip_transaction(settings, last_gtid(database, settings), REASON)
    with producing(settings):
        wait_caught_up(settings)
    run(database, name, "DROP DATABASE _shardstream")

    types = [event.type for event in read_log(settings).events]
    assert types == [EventType.SKIP, EventType.JOURNAL]


def last_gtid(database: DatabaseFixture, settings: ShardProducerSettings) -> str:
    """The one transaction that the server has executed and the log does not have."""
    wait_readable(settings)
    executed = parse_gtid_set(executed_on(database), settings.flavor)
    position = parse_gtid_set(read_log(settings).progress[-1].position, settings.flavor)
    if isinstance(executed, MysqlGtidSet) and isinstance(position, MysqlGtidSet):
        return str(executed.subtract(position))
    assert isinstance(executed, MariadbGtidSet)
    assert isinstance(position, MariadbGtidSet)
    [last] = set(executed.domains) - set(position.domains)
    return "-".join(map(str, last))
