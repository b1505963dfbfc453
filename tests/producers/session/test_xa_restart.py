"""An XA transaction over the death of its producer, on a real broker."""

from event_token import parse_gtid_set
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import (
    ProducerProcess,
    check_log,
    check_progress,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.waiting import wait_for
from topics.records.vevent import Op


def test_prepared_rows_survive_the_death_of_the_producer(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F16: PREPARE, a killed producer, COMMIT: the rows are in the log once, with COMMIT's GTID.

    While the transaction is prepared, the head goes on and the saved position leaves it out.
    """
    settings = settings_of(mysql_a, kafka, keyspace)
    name = mysql_a.new_database()
    process = ProducerProcess(settings)
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        try:
            process.wait_line("streaming")
            cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
            cursor.execute("XA START 'far'")
            cursor.execute("INSERT INTO t VALUES (1), (2)")
            cursor.execute("XA END 'far'")
            cursor.execute("XA PREPARE 'far'")
            cursor.execute("INSERT INTO t VALUES (3)")
            wait_for("the row behind it is logged", lambda: len(read_log(settings).events) == 2)
            head_us = read_log(settings).progress[-1].head_us
            wait_for("the head moves", lambda: read_log(settings).progress[-1].head_us > head_us)
        finally:
            process.kill()
        cursor.execute("SELECT @@GLOBAL.gtid_executed")
        [(executed,)] = cursor.fetchall()
        left_out = parse_gtid_set(executed.replace("\n", ""), settings.flavor).subtract(
            parse_gtid_set(read_log(settings).progress[-1].position, settings.flavor)
        )
        with producing(settings):
            cursor.execute("XA COMMIT 'far'")
            cursor.execute("INSERT INTO t VALUES (4)")
            wait_caught_up(settings)
    log = read_log(settings)

    assert str(left_out).rpartition(":")[2].isdigit()
    check_log(log)
    check_progress(log)
    rows = [event for event in log.events if event.op is Op.INSERT]
    assert [event.after for event in rows] == [{"id": 3}, {"id": 1}, {"id": 2}, {"id": 4}]
    assert rows[1].gtid == rows[2].gtid != str(left_out)
