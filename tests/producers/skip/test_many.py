"""`skip --until`, `--table` and several GTIDs on real servers: each stop is passed by itself."""

import threading
from collections.abc import Sequence

from event_token import Flavor
from producers.decoder.errors import StatementInRowStream
from producers.session.supervisor import run_shard
from producers.settings import ShardProducerSettings
from producers.skip.given_order import given_order, parse_named
from producers.skip.record_writer import SkipReport
from producers.skip.skip_order import SkipOrder
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import (
    SHARD,
    RunningProducer,
    check_log,
    check_progress,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.producers.skip.test_skip import ids, named_gtid, run
from tests.topics.shard_writer import provision
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


def exchanging(database: DatabaseFixture, name: str, times: int, table: str = "t") -> None:
    """Write a row, then exchange a partition, again and again."""
    texts = []
    for number in range(times):
        texts.append(f"INSERT INTO {table} VALUES ({number + 1})")
        texts.append(f"ALTER TABLE {table} EXCHANGE PARTITION p1 WITH TABLE {table}_aside")
    run(database, name, *texts)


def create(database: DatabaseFixture, name: str, table: str = "t") -> None:
    """A table with a partition, and one to exchange it with."""
    run(
        database,
        name,
        f"CREATE TABLE {table} (id INT PRIMARY KEY) PARTITION BY RANGE (id) "
        "(PARTITION p0 VALUES LESS THAN (1000), PARTITION p1 VALUES LESS THAN MAXVALUE)",
        f"CREATE TABLE {table}_aside (id INT PRIMARY KEY)",
    )


def last_gtid(database: DatabaseFixture, name: str) -> str:
    """The GTID of a harmless transaction that is committed now."""
    run(database, name, "CREATE TABLE IF NOT EXISTS gtids (id INT PRIMARY KEY)")
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM gtids")
        [(count,)] = cursor.fetchall()
        if database.flavor is Flavor.MARIADB:
            cursor.execute(f"INSERT INTO gtids VALUES ({count})")
            cursor.execute("SELECT @@last_gtid")
            return str(cursor.fetchone()[0])
        before = executed(cursor)
        cursor.execute(f"INSERT INTO gtids VALUES ({count})")
        cursor.execute(f"SELECT GTID_SUBTRACT(@@GLOBAL.gtid_executed, '{before}')")
        return str(cursor.fetchone()[0])


def executed(cursor: object) -> str:
    """MySQL's executed set."""
    cursor.execute("SELECT @@GLOBAL.gtid_executed")  # type: ignore[attr-defined]
    return str(cursor.fetchone()[0]).replace("\n", "")  # type: ignore[attr-defined]


def test_a_hundred_stops_are_passed_at_once_and_rows_between_are_logged(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Each exchange is one SKIP record, each row is logged, and the order ends by itself."""
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    provision(settings.kafka, keyspace, [SHARD])
    create(database, name)
    with producing(settings):
        wait_caught_up(settings)
    exchanging(database, name, 100)
    end = last_gtid(database, name)
    exchanging(database, name, 101) if False else run(
        database, name, "ALTER TABLE t EXCHANGE PARTITION p1 WITH TABLE t_aside"
    )

    order, reports = order_of(settings, until=end)
    import time

    began = time.monotonic()
    carry_out(settings, order)
    print("TOOK", time.monotonic() - began)
    log = read_log(settings)
    check_log(log)
    check_progress(log)
    assert order.has_ended
    assert len(reports) == 100
    wanted = [each for number in range(1, 101) for each in (number, "skip")]
    assert [each for each in ids(log.events) if each != 0] == wanted
    skips = [event for event in log.events if event.type is EventType.SKIP]
    assert [Skip.of(e) for e in skips] == [
        Skip(SkipKind.TRANSACTION, report.gtids, REASON) for report in reports
    ]
    error = RunningProducer(settings).wait_error()
    assert isinstance(error, StatementInRowStream)
    named_gtid(error, settings)
