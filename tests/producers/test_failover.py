"""From a primary to its replica and on, by GTID."""

from dataclasses import replace

from producers.flavor import rows
from producers.settings import ProducerState
from shardstream.local.kafka_cluster import KafkaCluster
from tests.conftest import DatabaseFixture, StartServer
from tests.producers.producing import (
    check_log,
    check_progress,
    producing,
    read_log,
    replay,
    server_of,
    settings_of,
    table_rows,
    wait_caught_up,
    wait_for,
)


def statements(database: DatabaseFixture, *texts: str) -> None:
    """Run statements as root."""
    with database.connect() as connection, connection.cursor() as cursor:
        for text in texts:
            cursor.execute(text)


def follow(replica: DatabaseFixture, primary: DatabaseFixture) -> None:
    """Make one server the replica of the other."""
    statements(
        replica,
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{primary.host}', "
        f"SOURCE_PORT = {primary.port}, SOURCE_USER = '{primary.user}', "
        f"SOURCE_PASSWORD = '{primary.password}', SOURCE_AUTO_POSITION = 1, "
        "GET_SOURCE_PUBLIC_KEY = 1",
        "START REPLICA",
    )


def has_received(replica: DatabaseFixture, gtid_set: str) -> bool:
    """Whether the replica has the transactions, applied or not."""
    with replica.connect() as connection:
        [(received,)] = rows(
            connection,
            "SELECT RECEIVED_TRANSACTION_SET FROM performance_schema.replication_connection_status",
        )
        [(subset,)] = rows(connection, "SELECT GTID_SUBSET(%s, %s)", (gtid_set, received))
    return bool(subset)


def test_replica_takes_over_once_it_has_what_the_log_holds(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """The primary dies while its replica is behind the log: waited for, then gone on with."""
    primary, replica = start_mysql(), start_mysql()
    follow(replica, primary)
    name = primary.new_database()
    on_primary = settings_of(primary, kafka, keyspace)
    both = replace(on_primary, servers=(server_of(primary), server_of(replica)))
    with producing(both) as producer:
        statements(primary, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
        statements(primary, f"INSERT INTO {name}.t VALUES (1)")
        wait_caught_up(settings_of(primary, kafka, keyspace))
        statements(replica, "STOP REPLICA SQL_THREAD")
        statements(primary, f"INSERT INTO {name}.t VALUES (2)")
        wait_caught_up(on_primary)
        with primary.connect() as connection:
            [(executed,)] = rows(connection, "SELECT @@GLOBAL.gtid_executed")
        wait_for("the replica has received all", lambda: has_received(replica, executed))
        primary.server.kill()
        wait_for(
            "the replica is found behind",
            lambda: any("has not yet applied" in s.note for s in list(producer.statuses)),
        )
        statements(replica, "START REPLICA SQL_THREAD")
        wait_for(
            "it streams", lambda: producer.statuses[-1].state is not ProducerState.RECONNECTING
        )
        wait_caught_up(settings_of(replica, kafka, keyspace))
        statements(replica, "STOP REPLICA", "RESET REPLICA ALL")
        statements(replica, f"INSERT INTO {name}.t VALUES (3)")
        wait_caught_up(settings_of(replica, kafka, keyspace))
    log = read_log(both)

    check_log(log)
    check_progress(log)
    assert replay(log, name, "t") == table_rows(replica, name, "t")
    assert sorted(table_rows(replica, name, "t")) == [1, 2, 3]
