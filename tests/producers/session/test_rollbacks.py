"""Transactions that MariaDB logs with their ROLLBACK, through a producer on a real broker."""

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
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
    with mariadb_a.one_table() as (_name, cursor), producing(settings):
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
