"""A producer copies tables while it streams: existing rows join its log."""

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.copy.copying import (
    check_copied_log,
    replay_upserts,
    server_rows,
    start,
    wait_state,
)
from tests.producers.session.producing import check_progress, producing, read_log, settings_of
from topics.progress.copy_topic import CopyState
from topics.records.vevent import EventType, Op

ROWS = 8_000


def test_filled_table_joins_the_log(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """All rows arrive as READ in key order; LAST_PK ends each chunk, COPY_COMPLETED the copy."""
    name = database.new_database()
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT, pad VARCHAR(40))")
        for first in range(0, ROWS, 4000):
            values = ", ".join(f"({i}, {i * 7}, 'row {i}')" for i in range(first, first + 4000))
            cursor.execute(f"INSERT INTO t VALUES {values}")
    settings = settings_of(database, kafka, keyspace)
    with producing(settings):
        start(settings, f"{name}.t")
        copies = wait_state(settings, CopyState.COMPLETED)

    log = read_log(settings)
    check_copied_log(log)
    check_progress(log)
    reads = [e.after["id"] for e in log.events if e.op is Op.READ and e.after is not None]
    assert reads == list(range(ROWS))
    assert replay_upserts(log, name, "t") == server_rows(database, name, "t", ["id"])
    assert log.events[-1].type is EventType.COPY_COMPLETED
    assert sum(e.type is EventType.LAST_PK for e in log.events) == copies[f"{name}.t"].pieces
    assert copies[f"{name}.t"].rows == ROWS
    assert copies[f"{name}.t"].last_key == (str(ROWS - 1),)
