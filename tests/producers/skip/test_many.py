"""`skip --until`, `--table` and several GTIDs on real servers: each stop is passed by itself."""

import threading
from collections.abc import Sequence

import pytest

from databases.sql import rows
from event_token import Flavor, UsageError
from producers.decoder.errors import StatementInRowStream
from producers.session.supervisor import run_shard
from producers.settings import ShardProducerSettings
from producers.skip.record_writer import SkipReport
from producers.skip.skip_order import SkipOrder, given_order, parse_named
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.session.producing import (
    RunningProducer,
    limited,
    read_log,
)
from tests.producers.skip.skipping import begin_log, checked_log, ids, named_gtid, run
from topics.kafka.errors import Fenced
from topics.keyspace.audit import operator
from topics.records.skip_record import Skip, SkipKind
from topics.records.vevent import EventType

REASON = "ticket 18: partitions exchanged every hour"


def order_of(
    settings: ShardProducerSettings,
    gtids: Sequence[str] = (),
    until: str = "",
    tables: Sequence[str] = (),
) -> tuple[SkipOrder, list[SkipReport]]:
    """An order, and the list that its reports are added to."""
    reports: list[SkipReport] = []
    named = parse_named(gtids, settings.flavor)
    order = given_order(settings, named, until, tables, REASON, reports.append)
    assert order is not None
    return order, reports


def carry_out(settings: ShardProducerSettings, order: SkipOrder) -> None:
    """Run the order to its end, as the command does."""
    run_shard(settings, threading.Event(), lambda _status: None, skip_order=order)


def exchange(table: str = "t") -> str:
    """A statement whose rows are in no binlog."""
    return f"ALTER TABLE {table} EXCHANGE PARTITION p1 WITH TABLE {table}_aside"


def exchangeable(table: str = "t") -> tuple[str, str]:
    """The definitions of a table with a partition, and of one to exchange it with."""
    divided = "PARTITION p0 VALUES LESS THAN (1000), PARTITION p1 VALUES LESS THAN MAXVALUE"
    return (
        f"CREATE TABLE {table} (id INT PRIMARY KEY) PARTITION BY RANGE (id) ({divided})",
        f"CREATE TABLE {table}_aside (id INT PRIMARY KEY)",
    )


def gtid_of(database: DatabaseFixture, name: str, *texts: str) -> str:
    """Run statements, of which the last is one transaction, and return its GTID."""
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        for text in texts[:-1]:
            cursor.execute(text)
        if database.flavor is Flavor.MARIADB:
            cursor.execute(texts[-1])
            [(gtid,)] = rows(connection, "SELECT @@last_gtid")
            return str(gtid)
        [(before,)] = rows(connection, "SELECT @@GLOBAL.gtid_executed")
        cursor.execute(texts[-1])
        [(gtid,)] = rows(connection, f"SELECT GTID_SUBTRACT(@@GLOBAL.gtid_executed, '{before}')")
        return str(gtid)


@pytest.mark.full
def test_all_stops_up_to_a_gtid_are_passed_and_rows_between_are_logged(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Each exchange is one SKIP record, each row is logged, and the order ends right at its end."""
    name, settings = begin_log(database, kafka, keyspace, *exchangeable())
    texts = [each for i in range(1, 5) for each in (f"INSERT INTO t VALUES ({i})", exchange())]
    run(database, name, *texts, exchange())
    end = gtid_of(database, name, "INSERT INTO t VALUES (5)")
    behind = gtid_of(database, name, exchange())

    order, reports = order_of(settings, until=end)
    carry_out(settings, order)
    with pytest.raises(UsageError, match="is already past"):
        order_of(settings, until=end)

    log = checked_log(settings)
    assert order.has_ended
    assert ids(log.events) == [*[e for i in range(1, 5) for e in (i, "skip")], "skip", 5]
    skips = [event for event in log.events if event.type is EventType.SKIP]
    assert [Skip.of(event) for event in skips] == [
        Skip(SkipKind.TRANSACTION, report.gtids, REASON, operator()) for report in reports
    ]
    skipped = log.progress[-1].skipped
    assert skipped is not None
    assert skipped.count == len(reports) == 5
    error = RunningProducer(settings).wait_error()
    assert isinstance(error, StatementInRowStream)
    assert named_gtid(error, settings) == behind


@pytest.mark.full
def test_a_stop_below_numbers_of_another_writer_is_passed_by_the_command_that_it_names(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A server that was demoted and promoted again knows only the last number of each writer."""
    mariadb = start_mariadb()
    name, settings = begin_log(mariadb, kafka, keyspace, *exchangeable())
    stop = gtid_of(mariadb, name, exchange())
    run(mariadb, name, "SET server_id = 999", "INSERT INTO t VALUES (1)")
    run(mariadb, name, "INSERT INTO t VALUES (2)", exchange())
    end = gtid_of(mariadb, name, "INSERT INTO t VALUES (3)")
    error = RunningProducer(settings).wait_error()
    assert named_gtid(error, settings) == stop

    order, _ = order_of(settings, [stop])
    carry_out(settings, order)
    until, _ = order_of(settings, until=end)
    carry_out(settings, until)

    assert order.has_ended
    log = checked_log(settings)
    assert ids(log.events) == ["skip", 1, 2, "skip", 3]


@pytest.mark.full
def test_only_stops_because_of_the_named_tables_are_passed(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """All tables that a stop names must be given, for the rows of all of them are missing."""
    name, settings = begin_log(mysql_a, kafka, keyspace, *exchangeable(), *exchangeable("other"))
    first = gtid_of(mysql_a, name, exchange())
    run(mysql_a, name, "INSERT INTO t VALUES (1)")
    other = gtid_of(mysql_a, name, exchange("other"))
    by_hand = gtid_of(
        mysql_a, name, "SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (2)"
    )

    named = [f"{name}.t", f"{name}.t_aside"]
    order, reports = order_of(settings, tables=named[:1])
    with pytest.raises(StatementInRowStream) as stopped:
        carry_out(settings, order)
    assert named_gtid(stopped.value, settings) == first
    assert reports == []
    order, reports = order_of(settings, tables=named)
    with pytest.raises(StatementInRowStream) as stopped:
        carry_out(settings, order)
    assert named_gtid(stopped.value, settings) == other
    assert [report.gtids for report in reports] == [first]
    both = [*named, f"{name}.other", f"{name}.other_aside"]
    order, reports = order_of(settings, tables=both)
    with pytest.raises(StatementInRowStream) as stopped:  # a statement names no table
        carry_out(settings, order)
    assert named_gtid(stopped.value, settings) == by_hand
    assert [report.gtids for report in reports] == [other]

    log = checked_log(settings)
    assert ids(log.events) == ["skip", 1, "skip"]


def test_several_gtids_are_passed_one_by_one_and_what_does_not_stop_is_logged(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Each named stop has its own record; a stop that is not named ends the run."""
    name, settings = begin_log(
        mariadb_a, kafka, keyspace, "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)"
    )
    settings = limited(settings, 10_000)
    large = "INSERT INTO t VALUES ({}, REPEAT('x', 20000))"
    first, second = (gtid_of(mariadb_a, name, large.format(i)) for i in (1, 2))
    logged = gtid_of(mariadb_a, name, "INSERT INTO t VALUES (3, '')")
    third = gtid_of(mariadb_a, name, large.format(4))
    fourth = gtid_of(mariadb_a, name, large.format(5))

    order, reports = order_of(settings, [first, f"{second},{third}", logged])
    carry_out(settings, order)
    assert [report.gtids for report in reports] == [first, second, third]
    order, reports = order_of(settings, tables=[f"{name}.t"])  # up to what is executed by now
    carry_out(settings, order)

    assert [report.gtids for report in reports] == [fourth]
    log = checked_log(settings)
    assert ids(log.events) == ["skip", "skip", 3, "skip", "skip"]


def test_a_stop_that_is_not_named_is_not_passed(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """--gtid B does not get past A: the run ends at A and names it, with nothing skipped."""
    name, settings = begin_log(database, kafka, keyspace, *exchangeable())
    first = gtid_of(database, name, exchange())
    second = gtid_of(database, name, exchange())
    other = Flavor.MYSQL if database.flavor is Flavor.MARIADB else Flavor.MARIADB

    order, reports = order_of(settings, [second])
    with pytest.raises(StatementInRowStream) as stopped:
        carry_out(settings, order)
    with pytest.raises(UsageError, match="the shard's GTIDs have the form"):
        parse_named([first], other)

    assert named_gtid(stopped.value, settings) == first
    assert reports == []
    assert ids(read_log(settings).events) == []


def test_rows_that_were_logged_without_names_are_passed_and_later_ones_are_logged(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """While binlog_row_metadata was MINIMAL each row stopped the shard: one order passes all."""
    name, settings = begin_log(mysql_a, kafka, keyspace, "CREATE TABLE t (id INT PRIMARY KEY)")
    nameless = [f"INSERT INTO t VALUES ({number})" for number in range(1, 6)]
    try:
        run(mysql_a, name, "SET GLOBAL binlog_row_metadata = MINIMAL", *nameless)
    finally:
        run(mysql_a, name, "SET GLOBAL binlog_row_metadata = FULL")
    run(mysql_a, name, "INSERT INTO t VALUES (6)")

    order, reports = order_of(settings, tables=[f"{name}.t"])
    carry_out(settings, order)

    log = checked_log(settings)
    assert ids(log.events) == ["skip"] * 5 + [6]
    assert len(reports) == 5


@pytest.mark.full
def test_a_producer_that_starts_meanwhile_takes_over_and_the_order_goes_on_later(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A supervisor's producer fences the order, stops at the next stop, and nothing is doubled."""
    name, settings = begin_log(mariadb_a, kafka, keyspace, *exchangeable())
    texts = [each for i in range(4) for each in (f"INSERT INTO t VALUES ({i})", exchange())]
    end = gtid_of(mariadb_a, name, *texts, "INSERT INTO t VALUES (4)")
    errors: list[BaseException] = []

    def take_over(_report: SkipReport) -> None:
        errors.append(RunningProducer(settings).wait_error())

    interrupted = given_order(settings, [], end, [], REASON, take_over)
    assert interrupted is not None
    with pytest.raises(Fenced):
        carry_out(settings, interrupted)
    order, reports = order_of(settings, until=end)
    carry_out(settings, order)

    assert [type(error) for error in errors] == [StatementInRowStream]
    assert len(reports) == 3
    log = checked_log(settings)
    assert ids(log.events) == [*[e for i in range(4) for e in (i, "skip")], 4]
