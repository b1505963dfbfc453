"""Failover by GTID along a list of servers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from databases.sql import rows
from event_token import Flavor, Halt, parse_gtid_set
from producers.errors import ServerBehindLog, ServerDiverged
from producers.settings import ProducerState, ShardProducerSettings
from producers.skip.lost_transactions import skip_lost
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.servers.replication import (
    REPLICA,
    executed,
    follow,
    followed,
    promote,
    start_pair,
    start_pair_with_table,
    statements,
    wait_followed,
    wait_same,
)
from tests.producers.session.producing import (
    RunningProducer,
    check_log,
    check_progress,
    producing,
    read_log,
    replay,
    server_of,
    settings_of,
    table_rows,
    wait_caught_up,
)
from tests.producers.session.workload import Workload, check_all
from tests.waiting import wait_for

KILLS = 3


def has_received(replica: DatabaseFixture, gtid_set: str) -> bool:
    """Return whether the replica has received the transactions, applied or not."""
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
    """F11: The primary dies, its replica is behind the log: the producer waits for it."""
    primary, replica = start_pair(start_mysql)
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


def noted(producer: RunningProducer, text: str) -> bool:
    """Return whether the operator was told."""
    return any(text in status.note for status in list(producer.statuses))


@pytest.mark.full
def test_shard_moves_from_server_to_server_under_load(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A lagging replica is left, an errant one refused by name, a killed one replaced."""
    primary, first, second = start_mysql.together(3)
    follow(first, primary)
    follow(second, primary)
    name = primary.new_database()
    wait_same(first, primary)
    on_primary = settings_of(primary, kafka, keyspace)
    servers = (server_of(first), server_of(second), server_of(primary))
    listed = replace(on_primary, servers=servers, max_replica_lag_ms=500)
    with producing(listed) as producer, Workload(primary, name) as load:
        wait_followed(listed, first)
        statements(first, "STOP REPLICA SQL_THREAD")
        wait_for("the lag is noticed", lambda: noted(producer, "max_replica_lag_ms"))
        wait_followed(listed, second)
        statements(first, "CREATE DATABASE errant", "START REPLICA SQL_THREAD")
        wait_same(first, primary)
        second.server.kill()
        wait_followed(listed, primary)
        with first.connect() as connection:
            [(uuid,)] = rows(connection, "SELECT @@server_uuid")
        # On a busy machine the primary may have been followed already, before one was errant.
        errant = f"has executed {uuid}:1, which its primary"
        wait_for("the errant one is named", lambda: noted(producer, errant))
        seen = load.committed
        wait_for("the load goes on", lambda: load.committed > seen + 20)
    with producing(on_primary):
        wait_caught_up(on_primary)

    check_all(listed, primary, name)


@pytest.mark.full
def test_primary_and_replica_killed_in_turn_lose_and_repeat_nothing(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """F11: The server that is followed is killed repeatedly under load, and comes back."""
    primary, replica = start_pair(start_mysql)
    name = primary.new_database()
    wait_same(replica, primary)
    on_primary = settings_of(primary, kafka, keyspace)
    listed = replace(
        on_primary, servers=(server_of(replica), server_of(primary)), max_replica_lag_ms=500
    )
    servers = {server_of(each).name: each for each in (primary, replica)}
    with producing(listed) as producer:
        with Workload(primary, name):
            wait_followed(listed, replica)
            for _ in range(KILLS):
                wait_for("rows went through", rows_beyond(producer, 30))
                victim = followed(listed)
                is_restarted = restarts_beyond(producer)
                servers[victim].server.kill()
                wait_for("the loss is noticed", is_noticed(listed, victim, is_restarted))
                servers[victim].server.start()
            wait_for("rows went through", rows_beyond(producer, 30))
        wait_caught_up(on_primary)

    check_all(listed, primary, name)


def is_noticed(
    settings: ShardProducerSettings, victim: str, is_restarted: Callable[[], bool]
) -> Callable[[], bool]:
    """Return a check whether a server is followed no more: it may have been left before it died."""
    return lambda: is_restarted() or followed(settings) != victim


def rows_beyond(producer: RunningProducer, count: int) -> Callable[[], bool]:
    """Return a check whether `count` more rows have been committed since this call."""
    seen = producer.rows
    return lambda: producer.rows > seen + count


def restarts_beyond(producer: RunningProducer) -> Callable[[], bool]:
    """Return a check whether the producer has ended another session since this call."""

    def count() -> int:
        return sum(s.state is ProducerState.RECONNECTING for s in list(producer.statuses))

    seen = count()
    return lambda: count() > seen


def test_server_that_purged_what_is_needed_is_passed_over(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """The replica has purged: the primary is followed although it is second in the list."""
    primary, replica = start_pair(start_mysql)
    on_primary = settings_of(primary, kafka, keyspace)
    with producing(on_primary):
        wait_caught_up(on_primary)
    name = primary.new_database()
    statements(primary, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    statements(primary, f"INSERT INTO {name}.t VALUES (1)")
    wait_same(replica, primary)
    statements(replica, "FLUSH BINARY LOGS", "PURGE BINARY LOGS BEFORE NOW() + INTERVAL 1 DAY")
    both = replace(on_primary, servers=(server_of(replica), server_of(primary)))
    with producing(both) as producer:
        wait_caught_up(on_primary)
        assert noted(producer, "has purged")
        assert followed(both) == server_of(primary).name
    log = read_log(both)

    check_log(log)
    assert sorted(replay(log, name, "t")) == [1]


def test_failover_that_lost_transactions_stops_and_names_them(
    start_server: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """F12: A promoted replica that lacks logged rows stops the shard, as do two primaries."""
    primary, replica, name = start_pair_with_table(start_server)
    on_primary = settings_of(primary, kafka, keyspace)
    both = replace(on_primary, servers=(server_of(primary), server_of(replica)))
    producer = RunningProducer(both)
    producer.wait_streaming()
    wait_same(replica, primary)  # a replica without the shard's identity is no server of the shard
    statements(replica, f"STOP {REPLICA[replica.flavor]}")
    statements(primary, f"INSERT INTO {name}.t VALUES (1)")
    lost = executed(primary).rpartition(":")[0] or executed(primary)
    wait_caught_up(on_primary)
    promote(replica)
    statements(replica, *(f"INSERT INTO {name}.t VALUES ({i})" for i in (2, 3, 4)))
    primary.server.kill()

    error = producer.wait_error()
    primary.server.start()
    back = RunningProducer(both).wait_error()

    assert isinstance(error, ServerBehindLog)
    assert lost in str(error)
    # Both have new writes: which of the two is right is not for a producer to decide.
    assert isinstance(back, ServerBehindLog | ServerDiverged)
    assert isinstance(back, Halt)
    log = read_log(both)
    check_log(log)
    assert sorted(replay(log, name, "t")) == [1]


@pytest.mark.full
def test_mariadb_replica_serves_until_somebody_writes_on_it(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A MariaDB replica is followed, waited for while behind, and left when errant."""
    primary, replica, name = start_pair_with_table(start_mariadb)
    on_primary = settings_of(primary, kafka, keyspace)
    both = replace(
        on_primary, servers=(server_of(replica), server_of(primary)), max_replica_lag_ms=500
    )
    with producing(both) as producer:
        statements(primary, f"INSERT INTO {name}.t VALUES (1)")
        wait_followed(both, replica)
        statements(replica, "STOP SLAVE SQL_THREAD")
        statements(primary, f"INSERT INTO {name}.t VALUES (2)")
        wait_followed(both, primary)
        wait_caught_up(on_primary)
    on_replica = replace(on_primary, servers=both.servers[:1])
    with producing_from_behind(on_replica) as waiting:
        statements(replica, "START SLAVE SQL_THREAD")
        waiting.wait_streaming()
        wait_caught_up(on_primary)
    statements(replica, "STOP SLAVE", "CREATE DATABASE errant")
    with producing(both) as producer:
        statements(primary, f"INSERT INTO {name}.t VALUES (3)")
        wait_caught_up(on_primary)
        assert noted(producer, "errant GTIDs")
    log = read_log(both)

    check_log(log)
    check_progress(log)
    assert replay(log, name, "t") == table_rows(primary, name, "t")


@contextmanager
def producing_from_behind(settings: ShardProducerSettings) -> Iterator[RunningProducer]:
    """Yield a producer that waits for a replica which lacks what the log holds."""
    producer = RunningProducer(settings)
    wait_for("it is behind", lambda: noted(producer, "has not yet applied"))
    yield producer
    producer.end()


@pytest.mark.parametrize("start", ["latest", "gtid:{}"])
def test_mariadb_a_new_log_knows_who_wrote_before(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str, start: str
) -> None:
    """Its positions include what the promoted server has of its former primary, and no more."""
    first, second, name = start_pair_with_table(start_mariadb)
    statements(first, f"INSERT INTO {name}.t VALUES (0)")
    wait_same(second, first)
    kept = executed(first)
    promote(second)
    statements(first, f"INSERT INTO {name}.t VALUES (1)")
    statements(second, *(f"INSERT INTO {name}.t VALUES ({i})" for i in (2, 3)))
    settings = settings_of(second, kafka, keyspace, start=start.format(executed(second)))
    with producing(settings):
        statements(second, f"INSERT INTO {name}.t VALUES (4)")
        wait_caught_up(settings)
    position = read_log(settings).events[-1].token.position

    assert position.includes(parse_gtid_set(kept, Flavor.MARIADB))
    assert not position.includes(parse_gtid_set(executed(first), Flavor.MARIADB))


@pytest.mark.full
def test_mariadb_a_lost_number_is_not_taken_for_a_later_one_of_the_same_server(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """F12: The demoted primary is rebuilt, promoted again and numbers above the lost ones."""
    first, second, name = start_pair_with_table(start_mariadb)
    on_first = settings_of(first, kafka, keyspace)
    with producing(on_first):
        statements(first, f"INSERT INTO {name}.t VALUES (0)")
        wait_same(second, first)
        statements(second, "STOP SLAVE")
        common = executed(second)
        statements(first, f"INSERT INTO {name}.t VALUES (1)")
        lost = executed(first)
        wait_caught_up(on_first)
    promote(second)
    statements(second, *(f"INSERT INTO {name}.t VALUES ({i})" for i in (2, 3, 4)))
    statements(first, f"DELETE FROM {name}.t WHERE id = 1", "RESET MASTER")
    state = (f"SET GLOBAL {each} = '{common}'" for each in ("gtid_binlog_state", "gtid_slave_pos"))
    statements(first, *state)
    follow(first, second)
    wait_same(first, second)
    promote(first)
    statements(first, f"INSERT INTO {name}.t VALUES (5)")

    error = RunningProducer(on_first).wait_error()

    assert isinstance(error, ServerBehindLog)
    assert f"--lost {lost} " in str(error)
    skip_lost(on_first, lost, "the failover")
    with producing(on_first):
        wait_caught_up(on_first)
    logged = replay(read_log(on_first), name, "t")
    assert sorted(logged) == [0, 1, 2, 3, 4, 5]
    del logged[1]
    assert logged == table_rows(first, name, "t")
