"""A shard's producer from a real server to real topics, on both families."""

from dataclasses import replace

import pytest

from databases.errors import ServerRefused
from event_token import Halt, UsageError
from producers.errors import BinlogPurged, SameServerId, ServerBehindLog
from producers.settings import ProducerState, ServerSettings, ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.servers.replication import purge_to
from tests.producers.session.producing import (
    RunningProducer,
    check_log,
    check_progress,
    producing,
    read_log,
    replay,
    settings_of,
    table_rows,
    wait_caught_up,
    wait_readable,
)
from tests.waiting import WAIT_S, wait_for
from topics.kafka.client import open_producer
from topics.kafka.errors import Fenced
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.records.vevent import Op
from topics.schemas import open_schema_ids


def check_reason(settings: ShardProducerSettings, error: BaseException) -> None:
    """The last progress says why the producer has stopped, and nothing new beside that."""
    wait_readable(settings)
    *_, before, last = read_log(settings).progress
    schema_ids = open_schema_ids(settings.kafka, None)
    told = last_progress(settings.kafka, ShardTopics(settings.keyspace, settings.shard), schema_ids)
    assert told is not None
    assert told.stopped is not None
    assert told.stopped.error == type(error).__name__
    assert str(error).startswith(told.stopped.text[:50])
    assert last == replace(
        before, first_seq=before.last_seq + 1, last_seq=before.last_seq, ticks=()
    )
    check_progress(read_log(settings))


def test_changes_reach_the_log_once_and_in_order(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Inserts, updates and deletes replay to the table; seqs, offsets, ticks, heads are right."""
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    with producing(settings):
        with database.connect(database=name) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
            for i in range(50):
                cursor.execute(f"INSERT INTO t VALUES ({2 * i}, 'a'), ({2 * i + 1}, NULL)")
            cursor.execute("UPDATE t SET v = 'b' WHERE id < 30")
            cursor.execute("DELETE FROM t WHERE id % 3 = 0")
        wait_caught_up(settings)
    log = read_log(settings)

    check_log(log)
    check_progress(log)
    assert replay(log, name, "t") == table_rows(database, name, "t")
    assert sum(e.op is Op.INSERT for e in log.events) == 100


def test_progress_has_the_true_offsets_after_an_aborted_foreign_record(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Another producer's aborted record moves the log's offsets; progress records follow them."""
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace)
    log_topic = ShardTopics(keyspace, settings.shard).log
    stranger = open_producer(settings.kafka, transactional_id=f"{keyspace}.stranger")
    with producing(settings):
        with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
            for i in range(3):
                cursor.execute(f"INSERT INTO t VALUES ({i})")
                wait_caught_up(settings)
            stranger.init_transactions(WAIT_S)
            stranger.begin_transaction()
            stranger.produce(log_topic, b"never seen", partition=0)
            stranger.flush(WAIT_S)
            stranger.abort_transaction(WAIT_S)
            cursor.execute("INSERT INTO t VALUES (3)")
        wait_caught_up(settings)
    log = read_log(settings)

    check_log(log)
    check_progress(log)
    assert sorted(replay(log, name, "t")) == [0, 1, 2, 3]


def test_head_moves_while_nothing_is_written(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F23: An idle shard's head follows the server's clock without any row."""
    settings = settings_of(database, kafka, keyspace, heartbeat_ms=50)
    with producing(settings) as producer:
        wait_for(
            "five heartbeats",
            lambda: sum(s.state is ProducerState.IDLE for s in list(producer.statuses)) >= 5,
        )
    wait_readable(settings)
    log = read_log(settings)

    check_progress(log)
    heads = [p.head_us for p in log.progress]
    assert len(set(heads)) >= 5
    assert heads == sorted(heads)
    assert all(p.lag_ms == 0 and p.ticks == () for p in log.progress)


@pytest.mark.full
def test_second_life_goes_on_where_the_first_ended(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """After a restart the log has what happened meanwhile, once; `start` is ignored."""
    settings = settings_of(database, kafka, keyspace)
    with database.one_table() as (name, cursor):
        with producing(settings):
            cursor.execute("INSERT INTO t VALUES (1)")
            wait_caught_up(settings)
        cursor.execute("INSERT INTO t VALUES (2)")
        with producing(replace(settings, start="earliest")) as second:
            cursor.execute("INSERT INTO t VALUES (3)")
            wait_caught_up(settings)
        with producing(settings) as third:
            wait_caught_up(settings)
    log = read_log(settings)

    check_log(log)
    check_progress(log)
    assert replay(log, name, "t") == table_rows(database, name, "t")
    assert any("is ignored" in status.note for status in second.statuses)
    # The default start asks for nothing that could be ignored.
    assert not any("is ignored" in status.note for status in third.statuses)


def test_empty_log_starts_at_a_gtid_or_at_the_earliest(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """`gtid:` skips what the set holds; `earliest` starts with the oldest binlog."""
    mysql = start_mysql()  # its own: the shared server's binlogs hold what a producer refuses
    with mysql.one_table() as (name, cursor):
        cursor.execute("INSERT INTO t VALUES (1)")
        cursor.execute("SELECT @@GLOBAL.gtid_executed")
        [(executed,)] = cursor.fetchall()
        cursor.execute("INSERT INTO t VALUES (2)")
    by_gtid = settings_of(mysql, kafka, keyspace, start=f"gtid:{executed}")
    earliest = settings_of(mysql, kafka, f"{keyspace}e", start="earliest")
    with producing(by_gtid):
        wait_caught_up(by_gtid)
    with producing(earliest):
        wait_caught_up(earliest)

    assert sorted(replay(read_log(by_gtid), name, "t")) == [2]
    assert sorted(replay(read_log(earliest), name, "t")) == [1, 2]


def test_empty_log_without_a_start_is_refused(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """An empty log without a start is refused with the choices, and nothing is written."""
    settings = settings_of(mysql_a, kafka, keyspace, start=None)

    error = RunningProducer(settings).wait_error()

    assert isinstance(error, UsageError)
    assert "earliest" in str(error)
    assert read_log(settings).progress == []


def test_newer_producer_fences_the_older(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F03: Of two producers the first ends with Fenced, the second goes on, no row twice."""
    settings = settings_of(mysql_a, kafka, keyspace)
    with mysql_a.one_table() as (name, cursor):
        first = RunningProducer(settings)
        first.wait_streaming()
        with producing(settings):
            for i in range(20):
                cursor.execute(f"INSERT INTO t VALUES ({i})")
            error = first.wait_error()
            wait_caught_up(settings)
    log = read_log(settings)

    assert isinstance(error, Fenced)
    check_log(log)
    check_progress(log)
    assert len(replay(log, name, "t")) == 20


def test_misled_producer_does_not_fence_a_healthy_one(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A producer whose server refuses it ends before it takes over the shard."""
    settings = settings_of(mysql_a, kafka, keyspace)
    refused = ServerSettings(mysql_a.host, mysql_a.port, "nobody", "s3cret-marker")
    with producing(settings) as healthy:
        error = RunningProducer(replace(settings, servers=(refused,))).wait_error()
        seen = len(healthy.statuses)
        wait_for("the healthy one goes on", lambda: len(healthy.statuses) > seen + 2)

    assert isinstance(error, ServerRefused)
    assert "s3cret-marker" not in str(error)


def test_next_server_takes_over_when_the_first_is_away(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Servers are tried in order; one that does not answer is skipped."""
    settings = settings_of(mysql_a, kafka, keyspace)
    away = ServerSettings("127.0.0.1", 1, mysql_a.user, mysql_a.password)
    both = replace(settings, servers=(away, *settings.servers))

    with producing(both):
        wait_caught_up(settings)


def test_the_last_ddl_is_told_over_restarts(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """Progress tells kind, table and time of the last DDL, also in a life that has seen none.

    Statements on the product's own tables are not told.
    """
    settings = settings_of(mariadb_a, kafka, keyspace)
    topics, told = ShardTopics(keyspace, settings.shard), []
    with mariadb_a.one_table() as (name, cursor):
        alter = "ALTER TABLE t ADD secret INT DEFAULT 42 COMMENT 'pin'"
        for statement in (alter, "CREATE DATABASE IF NOT EXISTS _shardstream"):
            with producing(settings) as producer:
                cursor.execute(statement)
                wait_caught_up(settings)
                heartbeats = producer.statuses[-1].head_us
                wait_for("a heartbeat", lambda: producer.statuses[-1].head_us > heartbeats)  # noqa: B023 - used at once
            progress = last_progress(settings.kafka, topics, open_schema_ids(settings.kafka, None))
            assert progress is not None
            told.append(progress.ddl)
    first, second = told

    assert first is not None
    assert (str(first), second) == (f"ALTER TABLE {name}.t", first)
    assert first.at_us in {e.commit_us for e in read_log(settings).events}


def test_purged_binlogs_stop_the_shard(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """F14: Purged transactions that the log needs are named, and nothing is skipped."""
    server = start_mysql()
    settings = settings_of(server, kafka, keyspace)
    with producing(settings):
        wait_caught_up(settings)
    with server.one_table() as (_name, cursor):
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        purge_to(server, cursor.fetchall()[-1][0])
        cursor.execute("SELECT @@GLOBAL.gtid_purged")
        [(purged,)] = cursor.fetchall()

    error = RunningProducer(settings).wait_error()

    assert isinstance(error, BinlogPurged)
    assert purged.rpartition(":")[0] in str(error)
    check_reason(settings, error)


def test_server_that_lost_transactions_stops_the_shard(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """F13: A primary that lacks what the log holds is not followed; the GTIDs are named."""
    server = start_mysql()
    settings = settings_of(server, kafka, keyspace)
    server.new_database()
    with producing(settings):
        server.new_database()
        wait_caught_up(settings)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("RESET BINARY LOGS AND GTIDS")

    error = RunningProducer(settings).wait_error()

    assert isinstance(error, ServerBehindLog)
    assert settings.keyspace in str(error)


@pytest.mark.full
def test_stop_comes_through_in_the_middle_of_a_transaction(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A stop aborts a half-written transaction; the next producer writes it whole, once."""
    settings = settings_of(mysql_a, kafka, keyspace)
    with mysql_a.one_table() as (name, cursor), producing(settings) as first:
        wait_caught_up(settings)
        cursor.execute("SET SESSION cte_max_recursion_depth = 60000")
        cursor.execute(
            "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n "
            "WHERE i < 60000) SELECT i FROM n"
        )
        first.end()
    with producing(settings):
        wait_caught_up(settings)
    log = read_log(settings)

    check_log(log)
    check_progress(log)
    assert len(replay(log, name, "t")) == 60_000


@pytest.mark.parametrize("start", ["tail", "timestamp:yesterday", "20260131"])
def test_unknown_start_is_refused_before_anything_is_made(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str, start: str
) -> None:
    """C4: a start that no producer knows is refused with the settings."""
    with pytest.raises(UsageError, match="Accepted: earliest, latest"):
        settings_of(mysql_a, kafka, keyspace, start=start)


def test_same_server_id_is_named(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """MariaDB ends the older of two streams with one server id; the message names the fix."""
    first = RunningProducer(settings_of(mariadb_a, kafka, keyspace, server_id=4711))
    first.wait_streaming()
    with producing(settings_of(mariadb_a, kafka, f"{keyspace}b", server_id=4711)):
        error = first.wait_error()

    assert isinstance(error, SameServerId)
    assert "server_id" in str(error)


def test_statement_in_the_binlog_stops_the_shard(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A change whose rows are not logged halts with its GTID; everything before is in the log."""
    settings = settings_of(mysql_a, kafka, keyspace)
    with mysql_a.one_table() as (name, cursor):
        producer = RunningProducer(settings)
        producer.wait_streaming()
        cursor.execute("INSERT INTO t VALUES (1)")
        wait_caught_up(settings)
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute("INSERT INTO t VALUES (2)")
        error = producer.wait_error()
        cursor.execute("SELECT @@server_uuid")
        [(uuid,)] = cursor.fetchall()
    log = read_log(settings)

    assert isinstance(error, Halt)
    assert uuid in str(error)
    check_log(log)
    assert sorted(replay(log, name, "t")) == [1]
    check_reason(settings, error)


def test_gtids_added_by_hand_are_looked_into(
    start_mysql: StartServer,
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An executed set that the stream can never reach is reported, not silently waited for."""
    monkeypatch.setattr("producers.session.heads.UNREACHED_S_MAX", 0.5)
    server = start_mysql()
    foreign = "11111111-2222-3333-4444-555555555555"
    producer = RunningProducer(settings_of(server, kafka, keyspace))
    producer.wait_streaming()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL gtid_purged = '+{foreign}:1-7'")

    error = producer.wait_error()

    assert isinstance(error, BinlogPurged)
    assert f"{foreign}:1-7" in str(error)


def test_fault_that_does_not_pass_ends_in_a_halt(
    mysql_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without its schema registry the producer ends with an error after a few attempts."""
    monkeypatch.setattr("producers.session.supervisor.BACKOFF_S_MAX", 0.01)
    settings = settings_of(mysql_a, kafka, keyspace, registry_url="http://127.0.0.1:1")

    error = RunningProducer(settings).wait_error()

    assert isinstance(error, Halt)
    assert "in a row" in str(error)
