"""A server that lost the end of its binlog is told from one that still has what the log read."""

from pathlib import Path

import pytest

from databases.sql import rows
from producers.errors import HistoryRewritten
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import StartServer
from tests.producers.servers.power_cut import clock_s, losing_what_follows, produce_and_stop
from tests.producers.servers.replication import executed, purge_to, statements
from tests.producers.session.producing import RunningProducer, read_log, replay, settings_of
from tests.waiting import wait_for

pytestmark = pytest.mark.full


def test_reused_gtids_after_a_power_cut_stop_the_shard(
    start_server: StartServer, kafka: KafkaCluster, keyspace: str, tmp_path: Path
) -> None:
    """A1: transactions under the GTIDs of lost ones stop the producer by name."""
    database = start_server()
    name = database.new_database()
    statements(database, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    settings = settings_of(database, kafka, keyspace)
    produce_and_stop(settings)
    with losing_what_follows(database, tmp_path / "kept"):
        statements(database, *(f"INSERT INTO {name}.t VALUES ({i})" for i in (1, 2, 3)))
        notes = produce_and_stop(settings)
        had, lost_s = executed(database), clock_s(database)
    wait_for("another second begins", lambda: clock_s(database) > lost_s)
    statements(database, *(f"INSERT INTO {name}.t VALUES ({i})" for i in (4, 5, 6)))
    has = executed(database)

    error = RunningProducer(settings).wait_error()

    assert "unverified" not in notes
    assert has == had
    assert isinstance(error, HistoryRewritten)
    last = read_log(settings).events[-1].gtid
    assert f"ends with transaction {last}, committed at" in str(error)
    assert "has another one under this GTID" in str(error)
    assert f"shardstream skip {keyspace} - --lost {last} --reason TEXT" in str(error)
    assert sorted(replay(read_log(settings), name, "t")) == [1, 2, 3]


def test_purged_place_is_said_to_be_unverified(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A1: once the log's last transaction is purged, the status says that it is unverified."""
    database = start_mysql()
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    statements(database, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    produce_and_stop(settings)
    statements(database, f"INSERT INTO {name}.t VALUES (1)")
    produce_and_stop(settings)
    verified = produce_and_stop(settings)
    statements(database, "FLUSH BINARY LOGS")
    with database.connect() as connection:
        newest = rows(connection, "SHOW BINARY LOGS")[-1][0]
    purge_to(database, newest)

    unverified = produce_and_stop(settings)

    assert "unverified" not in verified
    assert "unverified: the binlogs of" in unverified
    last = read_log(settings).events[-1].gtid
    assert f"no longer contain {last}" in unverified
