"""Marks of a reshard in the log and the progress of a real producer."""

import pytest

from producers.decoder import WriteAfterEnd
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
from topics.progress.record import Mark, MarkKind
from topics.records.vevent import EventType

END = "INSERT INTO _shardstream.journal VALUES ('r1', 'END', '[\"-\"]', '[\"-80\",\"80-\"]', NULL)"


def test_a_log_with_end_stays_ended_until_it_is_cancelled(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A restarted producer refuses rows after END; CANCELLED on the server lets them through."""
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS _shardstream")
        cursor.execute("DROP TABLE IF EXISTS _shardstream.journal")
        cursor.execute(
            "CREATE TABLE _shardstream.journal(reshard_id VARCHAR(64) PRIMARY KEY, "
            "kind VARCHAR(16), sources TEXT, targets TEXT, hop_time_us BIGINT NULL)"
        )
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        with producing(settings):
            cursor.execute("INSERT INTO t VALUES (1)")
            cursor.execute(END)
            cursor.execute("CREATE TABLE u (id INT PRIMARY KEY)")
            wait_caught_up(settings)
        with producing(settings):
            wait_caught_up(settings)
        cursor.execute("INSERT INTO t VALUES (2)")
        with pytest.raises(WriteAfterEnd, match="END of reshard r1"):
            raise RunningProducer(settings).wait_error()
        cursor.execute("UPDATE _shardstream.journal SET kind = 'CANCELLED'")
        with producing(settings):
            wait_caught_up(settings)
        cursor.execute("DROP DATABASE _shardstream")
    log = read_log(settings)

    check_log(log)
    check_progress(log)
    kinds = [e.type for e in log.events]
    assert kinds == [
        EventType.ROW,
        EventType.JOURNAL,
        EventType.DDL,
        EventType.ROW,
        EventType.JOURNAL,
    ]
    marked = [p for p in log.progress if p.mark is not None]
    end_offset, cancel_offset = log.events[1].offset, log.events[4].offset
    assert [p.mark for p in marked] == [
        Mark(MarkKind.END, end_offset, "r1", (SHARD,), ("-80", "80-"), None),
        Mark(MarkKind.CANCEL, cancel_offset, "r1", (SHARD,), ("-80", "80-"), None),
    ]
    assert [p.end_offset for p in marked] == [end_offset + 1, cancel_offset + 1]
