"""Copies of a shard with replicas: read from one, or throttled by one that lags."""

import threading
from dataclasses import replace
from typing import Self

import pytest
from pymysql.cursors import DictCursor

from event_token import Flavor
from producers.preflight import shard_findings
from producers.settings import CopySettings, ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.copy.copying import (
    check_copied_log,
    check_no_stale_read,
    replay_upserts,
    server_rows,
    start,
    wait_state,
)
from tests.producers.servers.replication import REPLICA, start_pair, statements, wait_same
from tests.producers.session.producing import (
    check_progress,
    producing,
    read_log,
    server_of,
    settings_of,
    wait_caught_up,
)
from tests.waiting import wait_for
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyState, read_copies
from topics.records.vevent import EventType

pytestmark = pytest.mark.full

ROWS = 2_000


class Writing:
    """Upserts and deletes on the primary until stopped; `v` grows with each write."""

    def __init__(self, primary: DatabaseFixture, name: str) -> None:
        self._primary = primary
        self._name = name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.writes = 0

    def _run(self) -> None:
        with self._primary.connect(database=self._name) as connection:
            cursor = connection.cursor()
            while not self._stop.wait(0.002):
                self.writes += 1
                number = self.writes * 7919 % ROWS
                cursor.execute(f"REPLACE INTO t VALUES ({number}, {ROWS + self.writes})")
                if self.writes % 3 == 0:
                    cursor.execute(f"DELETE FROM t WHERE id = {number}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)


def test_copy_from_a_replica_and_copy_held_by_its_lag(
    start_server: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """Rows copied from a replica under load equal the primary's; its lag throttles a copy."""
    primary, replica = start_pair(start_server)
    name = primary.new_database()
    rows = ", ".join(f"({i}, {i})" for i in range(ROWS))
    statements(
        primary,
        f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO {name}.t VALUES {rows}",
        f"CREATE USER IF NOT EXISTS '{primary.user}'@'127.0.0.1'",
        f"GRANT CREATE, INSERT, UPDATE ON `\\_shardstream`.* TO '{primary.user}'@'127.0.0.1'",
    )
    wait_same(replica, primary)
    spared = replace(server_of(primary), read=False)
    settings = settings_of(
        primary,
        kafka,
        keyspace,
        servers=(server_of(replica), spared),
        heartbeat_ms=50,
        copy=CopySettings(chunk_rows_max=20),
    )
    with producing(settings):
        with Writing(primary, name) as writing:
            wait_for("the load runs", lambda: writing.writes > 20)
            start(settings, f"{name}.t")
            wait_state(settings, CopyState.COMPLETED)
        wait_same(replica, primary)
        wait_caught_up(settings)
    log = read_log(settings)
    check_copied_log(log)
    check_progress(log)
    assert check_no_stale_read(log, name, "t", "v") > 0
    assert replay_upserts(log, name, "t") == server_rows(primary, name, "t", ["id"])
    internal = {e.type for e in log.events if e.database == "_shardstream"}
    assert internal <= {EventType.DDL}

    check_held_by_lag(primary, replica, name, kafka, f"{keyspace}_held")


def grant_what_is_missing(settings: ShardProducerSettings, *servers: DatabaseFixture) -> None:
    """Run what the preflight says on all the shard's servers."""
    fixes = {
        problem.where: problem.fix
        for problem in shard_findings(settings, with_tables=False).problems
    }
    for database in servers:
        # Not into its binlog: what a replica writes itself parts it from its primary.
        statements(database, "SET sql_log_bin = 0", fixes[server_of(database).name])


def delay(replica: DatabaseFixture, seconds: int) -> None:
    """Delay the replica's transactions by this many seconds."""
    word = REPLICA[replica.flavor]
    source = "MASTER" if word == "SLAVE" else "REPLICATION SOURCE"
    to = source.rsplit(maxsplit=1)[-1]
    change = f"CHANGE {source} TO {to}_DELAY = {seconds}"
    statements(replica, f"STOP {word}", change, f"START {word}")


def lag_s(replica: DatabaseFixture) -> int:
    """Return the replica's reported lag, in whole seconds."""
    with replica.connect() as connection, connection.cursor(DictCursor) as cursor:
        cursor.execute(f"SHOW {REPLICA[replica.flavor]} STATUS")
        [row] = cursor.fetchall()
    return int(row.get("Seconds_Behind_Source", row.get("Seconds_Behind_Master")) or 0)


def check_held_by_lag(
    primary: DatabaseFixture,
    replica: DatabaseFixture,
    name: str,
    kafka: KafkaCluster,
    keyspace: str,
) -> None:
    """Nothing is copied while the replica lags or its replication is stopped, then everything."""
    settings = settings_of(
        primary,
        kafka,
        keyspace,
        servers=(server_of(primary), server_of(replica)),
        copy=CopySettings(max_replica_lag_ms=500),
    )
    topics = ShardTopics(keyspace, settings.shard)

    def is_noted(text: str) -> bool:
        copies = read_copies(settings.kafka, topics).values()
        return any(text in copy.note for copy in copies)

    if primary.flavor is Flavor.MARIADB:
        for server in (primary, replica):
            revoke = f"REVOKE REPLICA MONITOR ON *.* FROM '{primary.user}'@'127.0.0.1'"
            statements(server, "SET sql_log_bin = 0", revoke)
    delay(replica, 3600)
    statements(primary, f"REPLACE INTO {name}.t VALUES (-1, -1)")
    # Whole seconds: in the first one the replica still passes for up to date.
    wait_for("the replica is late", lambda: lag_s(replica) > 0)
    with producing(settings):
        start(settings, f"{name}.t")
        if primary.flavor is Flavor.MARIADB:
            wait_for("the grant is named", lambda: is_noted("GRANT REPLICA MONITOR ON *.*"))
            grant_what_is_missing(settings, primary, replica)
        assert shard_findings(settings, with_tables=False).problems == []
        wait_for("the lag holds the copy", lambda: is_noted("s behind, more than 500 ms"))
        statements(replica, f"STOP {REPLICA[replica.flavor]} SQL_THREAD")
        wait_for("stopped replication holds it, too", lambda: is_noted("is stopped"))
        [held] = wait_state(settings, CopyState.COPYING).values()
        delay(replica, 0)
        wait_state(settings, CopyState.COMPLETED)

    assert held.rows_read == 0
    log = read_log(settings)
    check_copied_log(log)
    assert replay_upserts(log, name, "t") == server_rows(primary, name, "t", ["id"])
