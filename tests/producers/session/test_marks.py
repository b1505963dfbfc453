"""Marks of a reshard in the log and the progress of a real producer."""

from dataclasses import replace

import pytest

from databases.internal_tables import JOURNAL, create_internal_tables
from producers.decoder import WriteAfterEnd
from producers.settings import ShardProducerSettings
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
from topics.kafka.provisioning import provision_keyspace
from topics.keyspace.topology import (
    ReshardEntry,
    ReshardState,
    ShardEntry,
    TableVindex,
    Topology,
    update_topology,
)
from topics.progress.record import Mark, MarkKind
from topics.records.vevent import EventType, Op

COLUMNS = "(reshard_id, kind, sources, targets, hop_time_us, keyspace)"
END_VALUES = "('r1', 'END', '[\"-\"]', '[\"-80\",\"80-\"]', NULL, '{keyspace}')"
BEGIN_VALUES = "('r2', 'BEGIN', '[\"c0-\"]', '[\"c0-e0\",\"e0-\"]', 1, '{keyspace}')"


def insert_mark(values: str, keyspace: str) -> str:
    """The statement that writes a mark of a keyspace."""
    return f"INSERT INTO _shardstream.journal {COLUMNS} VALUES {values.format(keyspace=keyspace)}"


def declare(settings: ShardProducerSettings, schema: str) -> None:
    """Write the topology of a keyspace with one sharded table, `t`."""
    vindexes = (TableVindex(schema, "t", ("id",), "hash"),)
    wanted = Topology(settings.keyspace, 0, (ShardEntry(SHARD),), vindexes)
    provision_keyspace(settings.kafka, settings.keyspace)
    update_topology(settings.kafka, settings.keyspace, lambda _before: wanted)


def cancel(settings: ShardProducerSettings) -> None:
    """Write to the topology that r1 is cancelled."""
    entry = ReshardEntry("r1", (SHARD,), ("-80", "80-"), ReshardState.CANCELLED.value)

    def cancelled(before: Topology | None) -> Topology:
        assert before is not None
        return replace(before, reshards=(entry,))

    update_topology(settings.kafka, settings.keyspace, cancelled)


@pytest.mark.full
def test_a_log_with_end_stays_ended_until_it_is_cancelled(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B17, B19: rows of sharded databases are refused after END, until the topology cancels.

    CANCELLED on the server comes later, behind the row that stopped the producer. A heartbeat
    in a database without vindexes goes on, whatever the producer knew at its start.
    """
    name, other = mysql_a.new_database(), mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace)
    declare(settings, name)
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        create_internal_tables(connection, (JOURNAL,))
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        cursor.execute(f"CREATE TABLE {other}.heartbeat (id INT PRIMARY KEY)")
        with producing(settings):
            cursor.execute("INSERT INTO t VALUES (1)")
            cursor.execute(insert_mark(END_VALUES, keyspace))
            cursor.execute("CREATE TABLE u (id INT PRIMARY KEY)")
            cursor.execute(f"INSERT INTO {other}.heartbeat VALUES (1)")
            wait_caught_up(settings)
        with producing(settings):
            cursor.execute(f"UPDATE {other}.heartbeat SET id = 2")
            wait_caught_up(settings)
        cursor.execute("INSERT INTO t VALUES (2)")
        with pytest.raises(WriteAfterEnd, match="END of reshard r1"):
            raise RunningProducer(settings).wait_error()
        cancel(settings)
        with producing(settings):
            wait_caught_up(settings)
            cursor.execute(
                "UPDATE _shardstream.journal SET kind = 'CANCELLED' WHERE reshard_id = 'r1'"
            )
            wait_caught_up(settings)
        cursor.execute("DROP DATABASE _shardstream")
    log = read_log(settings)

    check_log(log)
    check_progress(log)
    assert [e.op for e in log.events if e.table == "heartbeat"] == [Op.INSERT, Op.UPDATE]
    events = [e for e in log.events if e.table != "heartbeat"]
    row, mark, ddl = EventType.ROW, EventType.JOURNAL, EventType.DDL
    assert [e.type for e in events] == [row, mark, ddl, row, mark]
    marked = [p for p in log.progress if p.mark is not None]
    end_offset, cancel_offset = events[1].offset, events[4].offset
    assert [p.mark for p in marked] == [
        Mark(MarkKind.END, end_offset, "r1", (SHARD,), ("-80", "80-"), None),
        Mark(MarkKind.CANCEL, cancel_offset, "r1", (SHARD,), ("-80", "80-"), None),
    ]
    assert [p.end_offset for p in marked] == [end_offset + 1, cancel_offset + 1]


def test_marks_of_other_keyspaces_are_passed(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A server holds shards of two keyspaces: the marks of the other one change nothing here.

    Neither does END of a reshard with the same id and the same names of shards.
    """
    name = mariadb_a.new_database()
    settings = settings_of(mariadb_a, kafka, keyspace)
    declare(settings, name)
    with mariadb_a.connect(database=name) as connection, connection.cursor() as cursor:
        create_internal_tables(connection, (JOURNAL,))
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        with producing(settings):
            cursor.execute("INSERT INTO t VALUES (1)")
            cursor.execute(insert_mark(BEGIN_VALUES, "another"))
            cursor.execute(insert_mark(END_VALUES, "another"))
            cursor.execute("INSERT INTO t VALUES (2)")
            wait_caught_up(settings)
            cursor.execute(insert_mark(END_VALUES, keyspace))
            wait_caught_up(settings)
        cursor.execute("DROP DATABASE _shardstream")
    log = read_log(settings)

    check_log(log)
    check_progress(log)
    assert [e.type for e in log.events] == [EventType.ROW, EventType.ROW, EventType.JOURNAL]
    assert [p.mark.kind for p in log.progress if p.mark is not None] == [MarkKind.END]
