"""Transactions that MariaDB logs with their ROLLBACK, through a producer on a real broker."""

import pymysql
import pytest

from producers.settings import ProducerState
from producers.skip.one_transaction import skip_transaction
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import executed_set
from tests.producers.session.producing import (
    check_log,
    check_progress,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from topics.records.vevent import Op


def test_rolled_back_rows_never_reach_readers(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B1, F16: rows beside a temporary table, then ROLLBACK: the producer goes on without them."""
    settings = settings_of(mariadb_a, kafka, keyspace)
    with mariadb_a.one_table() as (_name, cursor), producing(settings) as producer:
        for number in range(3):
            cursor.execute("BEGIN")
            cursor.execute(f"INSERT INTO t VALUES ({10 + number}), ({20 + number})")
            cursor.execute(f"CREATE TEMPORARY TABLE x{number} (a INT)")
            cursor.execute("ROLLBACK")
            cursor.execute(f"INSERT INTO t VALUES ({number})")
        wait_caught_up(settings)
    log = read_log(settings)

    check_log(log)
    check_progress(log)
    rows = [event.after for event in log.events if event.op is Op.INSERT]
    assert rows == [{"id": 0}, {"id": 1}, {"id": 2}]
    restarts = [s.note for s in producer.statuses if s.state is ProducerState.RECONNECTING]
    assert len(restarts) == 3
    assert all("was rolled back" in note for note in restarts)


REPLACED = "CREATE OR REPLACE TABLE r (a INT PRIMARY KEY) SELECT 1 AS a UNION ALL SELECT 1"


@pytest.mark.full
def test_failed_replacement_of_a_table_is_logged_as_its_drop(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B1: MariaDB logs the DROP of a failed CREATE OR REPLACE before a ROLLBACK; it has happened.

    A temporary table that was created among rows is logged likewise, and its rows are dropped.
    """
    settings = settings_of(mariadb_a, kafka, keyspace)
    with mariadb_a.one_table() as (_name, cursor), producing(settings) as producer:
        cursor.execute("CREATE TABLE r (a INT)")
        cursor.execute("INSERT INTO r VALUES (5)")
        with pytest.raises(pymysql.err.IntegrityError):
            cursor.execute(REPLACED)
        cursor.execute("INSERT INTO t VALUES (1)")
        wait_caught_up(settings)
        restarts = [s for s in producer.statuses if s.state is ProducerState.RECONNECTING]
        cursor.execute("SET binlog_format = MIXED")
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO t SELECT 2 + 0 * UUID_SHORT()")
        cursor.execute("CREATE TEMPORARY TABLE x (a INT)")
        cursor.execute("ROLLBACK")
        cursor.execute("SET binlog_format = ROW")
        cursor.execute("INSERT INTO t VALUES (3)")
        wait_caught_up(settings)
    log = read_log(settings)

    check_log(log)
    check_progress(log)
    found = [
        event.after if event.statement is None else " ".join(event.statement.split()[:3])
        for event in log.events
    ]
    assert found[-5:] == [
        {"a": 5},
        "DROP TABLE IF",
        {"id": 1},
        "CREATE TEMPORARY TABLE",
        {"id": 3},
    ]
    assert restarts == []


def test_rolled_back_transaction_can_be_skipped(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B1: `skip` passes a transaction that MariaDB logged with its ROLLBACK."""
    settings = settings_of(mariadb_a, kafka, keyspace)
    with mariadb_a.one_table() as (_name, cursor):
        with producing(settings):
            cursor.execute("INSERT INTO t VALUES (1)")
            wait_caught_up(settings)
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO t VALUES (2)")
        cursor.execute("CREATE TEMPORARY TABLE x (a INT)")
        cursor.execute("ROLLBACK")
        gtid = executed_set(mariadb_a)
        report = skip_transaction(settings, gtid, "a test")

    assert report.gtids == gtid
