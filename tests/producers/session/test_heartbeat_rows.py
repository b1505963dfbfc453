"""Heads of a shard that is read from a replica, which come from heartbeat rows."""

from dataclasses import replace
from typing import Literal
from unittest.mock import Mock

import pytest

from databases.errors import ServerLost
from databases.internal_tables import HEARTBEAT, JOURNAL, create_internal_tables
from databases.sql import rows
from event_token import Flavor
from producers.session.heads import NO_INTERVAL, PRIVILEGES, HeartbeatWriter, write_heartbeat
from producers.settings import ServerSettings, ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.servers.replication import (
    REPLICA,
    followed,
    promote,
    start_pair_with_table,
    statements,
    wait_same,
)
from tests.producers.session.producing import (
    SettableBound,
    check_log,
    check_progress,
    producing,
    read_log,
    replay,
    server_of,
    settings_alone,
    settings_of,
    warnings_of,
)
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.records.vevent import EventType


def grant(primary: DatabaseFixture) -> None:
    """Let the account write heartbeat rows."""
    names = ", ".join(PRIVILEGES)
    statements(
        primary,
        f"CREATE USER IF NOT EXISTS '{primary.user}'@'127.0.0.1'",
        f"GRANT {names} ON `\\_shardstream`.* TO '{primary.user}'@'127.0.0.1'",
    )


def clock_us(database: DatabaseFixture) -> int:
    """The server's clock."""
    with database.connect() as connection:
        return int(rows(connection, "SELECT UNIX_TIMESTAMP(NOW(6)) * 1000000")[0][0])


def test_whatever_goes_wrong_in_the_thread_is_noted() -> None:
    """An unexpected fault becomes a note, and the thread keeps trying."""
    asked: list[int] = []

    def fails() -> bool:
        asked.append(1)
        raise ValueError("not expected")

    nobody = ServerSettings("127.0.0.1", 1, "nobody", "")
    settings = ShardProducerSettings(
        keyspace="ks",
        shard="-80",
        flavor=Flavor.MARIADB,
        servers=(nobody, replace(nobody, port=2)),
        kafka=ClientConfig({"bootstrap.servers": "127.0.0.1:1"}),
        heartbeat_ms=10,
    )
    writer = HeartbeatWriter(settings, fails)
    try:
        wait_for("it has tried again", lambda: len(asked) > 1)
    finally:
        writer.close()

    assert "not expected" in writer.note


def test_a_demoted_server_is_left_without_read_only_too() -> None:
    """Its role is asked again: a row that is written there would be on no other server."""
    nobody = ServerSettings("127.0.0.1", 1, "nobody", "")
    kafka = ClientConfig({"bootstrap.servers": "127.0.0.1:1"})
    settings = ShardProducerSettings("ks", "-80", Flavor.MYSQL, (nobody,), kafka)
    writer = HeartbeatWriter(settings, lambda: False)  # with one server it starts no thread
    demoted = writer._primary = Mock(is_replica=Mock(return_value=True))

    with pytest.raises(ServerLost, match="no primary of the shard"):
        writer._write()

    demoted.close.assert_called_once_with()
    assert writer._primary is None


def test_a_primary_without_an_end_that_is_in_the_log_gets_no_rows(mysql_a: DatabaseFixture) -> None:
    """A failover has lost END: with a heartbeat row its reads would pass for fresh."""
    with mysql_a.connect() as connection:
        create_internal_tables(connection)
    grant(mysql_a)
    settings = settings_alone(
        mysql_a, keyspace="ended", shard="3d-3e", heartbeat_rows="always", heartbeat_ms=10
    )
    marked = f"INSERT INTO {JOURNAL} VALUES ('r1', 'END', '[\"3d-3e\"]', '[]', NULL, 'ended')"
    select = f"SELECT COUNT(*) FROM {HEARTBEAT} WHERE shard = '3d-3e'"
    writer = HeartbeatWriter(settings, lambda: False, ["r1"])
    try:
        wait_for("a note says so", lambda: "lacks the END of reshard r1" in writer.note)
        with mysql_a.connect() as connection:
            assert rows(connection, select) == [(0,)]
        statements(mysql_a, marked)
        wait_for("rows are written", lambda: writer.note == "")
        with mysql_a.connect() as connection:
            assert rows(connection, select) == [(1,)]
        # A demoted server gets none either, though the account may write there.
        statements(mysql_a, "SET GLOBAL read_only = ON")
        wait_for("no primary is found", lambda: "and takes writes" in writer.note)
        with pytest.raises(ServerLost, match="takes no writes"), mysql_a.connect() as connection:
            write_heartbeat(connection, settings)
    finally:
        writer.close()
        statements(
            mysql_a,
            "SET GLOBAL read_only = OFF",
            f"DELETE FROM {JOURNAL} WHERE keyspace = 'ended'",
            f"DELETE FROM {HEARTBEAT} WHERE shard = '3d-3e'",
        )


@pytest.mark.full
def test_heads_follow_what_the_replica_has_applied(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """The head moves on an idle replica, stops on a stopped one, and moves on after a promotion."""
    primary, replica, name = start_pair_with_table(start_mysql)
    spared = replace(server_of(primary), read=False)
    settings = settings_of(
        primary, kafka, keyspace, servers=(server_of(replica), spared), heartbeat_ms=50
    )
    [warning] = warnings_of(settings)
    grant(primary)
    assert warnings_of(settings) == []
    stopped = f"STOP {REPLICA[replica.flavor]} SQL_THREAD"
    with producing(settings) as producer:

        def head_us() -> int:
            return producer.statuses[-1].head_us

        def wait_head_passes(time_us: int) -> None:
            wait_for(f"the head passes {time_us}", lambda: head_us() > time_us)

        for i in range(3):
            statements(primary, f"INSERT INTO {name}.t VALUES ({i})")
            wait_head_passes(clock_us(primary))
        assert followed(settings) == server_of(replica).name
        statements(replica, stopped)
        statements(primary, f"INSERT INTO {name}.t VALUES (3)")
        unseen_us = clock_us(primary)
        seen = len(producer.statuses)
        wait_for("it is asked again and again", lambda: len(producer.statuses) > seen + 5)
        assert head_us() <= unseen_us
        statements(replica, stopped.replace("STOP", "START"))
        wait_head_passes(unseen_us)
        wait_same(replica, primary)
        primary.server.kill()
        promote(replica)
        wait_head_passes(clock_us(replica))
    log = read_log(settings)

    assert f"GRANT {', '.join(PRIVILEGES)} ON _shardstream.*" in warning
    check_log(log)
    check_progress(log)
    assert sorted(replay(log, name, "t")) == [0, 1, 2, 3]
    internal = {e.type for e in log.events if e.database == "_shardstream"}
    assert internal <= {EventType.DDL}


def test_replica_alone_is_warned_of(start_mysql: StartServer, mysql_a: DatabaseFixture) -> None:
    """Without a primary in the list no rows can be written; one alone needs them if always.

    Where they are written, a clock of which nobody knows how far it is off is warned of, too.
    """
    replica = start_mysql()
    statements(
        replica,
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1",
    )
    away = ServerSettings("127.0.0.1", 1, "nobody", "")

    def warnings(
        *servers: ServerSettings, always: bool = False, bound_us: int | None = 0
    ) -> list[str]:
        kafka = ClientConfig({"bootstrap.servers": "127.0.0.1:1"})
        settings = ShardProducerSettings("ks", "-", Flavor.MYSQL, servers, kafka)
        rows_when: Literal["always", "replicas"] = "always" if always else "replicas"
        clock = SettableBound(bound_us)
        changed = replace(settings, heartbeat_rows=rows_when, host_clock=clock)
        return [text for text in warnings_of(changed) if "heartbeat rows" in text]

    assert "read = false" in warnings(server_of(replica))[0]
    # The one that does not answer may be the primary.
    assert warnings(server_of(replica), away) == []
    assert warnings(server_of(mysql_a), away) == []
    grant(mysql_a)
    assert warnings(server_of(mysql_a), bound_us=None) == []
    [unknown] = warnings(server_of(mysql_a), always=True, bound_us=None)
    assert f"{NO_INTERVAL}: nobody knows" in unknown
    names = ", ".join(PRIVILEGES)
    account = f"'{mysql_a.user}'@'127.0.0.1'"
    statements(mysql_a, f"REVOKE {names} ON `\\_shardstream`.* FROM {account}")
    [warning] = warnings(server_of(mysql_a), always=True)
    assert f"GRANT {names} ON _shardstream.* TO {account}" in warning
