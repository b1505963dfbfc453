"""A shard's log is continued only from servers that belong to the shard."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from databases.sql import rows
from event_token import Flavor
from producers.errors import ServerBehindLog, WrongServer
from producers.servers.identity import twin_problems
from producers.settings import ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.servers.proxy import VirtualAddress
from tests.producers.servers.replication import promote, start_pair, statements, wait_same
from tests.producers.session.producing import (
    RunningProducer,
    check_log,
    producing,
    read_log,
    replay,
    server_of,
    settings_of,
    wait_caught_up,
    warnings_of,
)
from tests.waiting import wait_for

INSERT = "INSERT INTO shop.t VALUES ({})"


def fill(database: DatabaseFixture, *ids: int) -> None:
    """Create the table and insert rows, a transaction each."""
    statements(
        database,
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY)",
        *(INSERT.format(i) for i in ids),
    )


@contextmanager
def caught_up(settings: ShardProducerSettings) -> Iterator[RunningProducer]:
    """A producer that has caught up, stopped after the block."""
    with producing(settings) as producer:
        wait_caught_up(settings)
        yield producer


def notes(producer: RunningProducer) -> str:
    """All that a producer has noted."""
    return "; ".join(status.note for status in producer.statuses)


def known_identity(settings: ShardProducerSettings) -> str:
    """The identity that the log holds."""
    return read_log(settings).progress[-1].identity


def test_server_that_lacks_what_the_log_holds_is_told_by_its_identity(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A2: with other GTIDs too, the wrong server is named, not a way to go on with it."""
    right, wrong = (start_mariadb((f"--server-id={number}",)) for number in (77, 78))
    settings = settings_of(right, kafka, keyspace)
    others = replace(settings_of(wrong, kafka, keyspace), shard="80-")
    fill(right, 1, 2)
    fill(wrong, 10)
    with caught_up(settings), caught_up(others):
        pass

    error = RunningProducer(replace(settings, servers=others.servers)).wait_error()

    assert isinstance(error, WrongServer)


def test_shard_pointed_at_another_shards_server_stops(
    start_server: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A2: a server that has executed as much but belongs to another shard is not followed."""
    right, wrong = start_server.together(2, ("--server-id=77",))
    settings = settings_of(right, kafka, keyspace)
    others = replace(settings_of(wrong, kafka, keyspace), shard="80-")
    fill(right, 1, 2)
    fill(wrong, *range(10, 20))
    with caught_up(settings), caught_up(others):
        pass
    fill_more = [INSERT.format(i) for i in range(20, 30)]
    statements(wrong, *fill_more)

    error = RunningProducer(replace(settings, servers=others.servers)).wait_error()
    twins = [str(problem) for _, problem in twin_problems([settings, others])]

    assert replay(read_log(settings), "shop", "t").keys().isdisjoint(range(10, 30))
    if right.flavor is Flavor.MYSQL:
        assert isinstance(error, ServerBehindLog)
        assert "this is the wrong server" in str(error)
        assert twins == []
        return
    assert isinstance(error, WrongServer)
    assert "it belongs to another shard. Correct the address" in str(error)
    [twin] = twins
    name = server_of(right).name
    assert f"gtid_domain_id 0 and server_id 77 are also those of {name} of shard" in twin
    statements(wrong, f"UPDATE _shardstream.identity SET uuid = '{known_identity(settings)}'")
    assert any("made from a copy" in str(p) for _, p in twin_problems([settings, others]))
    with caught_up(settings):
        pass


@pytest.mark.full
def test_clone_with_the_uuid_of_another_shards_server_is_refused(
    mysql_a: DatabaseFixture, start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A2: a split's servers may share the history of a backup, but not the UUID of new GTIDs."""
    clone = start_mysql()
    settings = settings_of(mysql_a, kafka, keyspace)
    others = replace(settings_of(clone, kafka, keyspace), shard="80-")
    with mysql_a.connect() as connection:
        [(uuid,)] = rows(connection, "SELECT @@server_uuid")
    statements(clone, f"SET GLOBAL gtid_purged = '+{uuid}:1-3'")
    assert twin_problems([settings, others]) == []

    clone.server.stop()
    names = (mysql_a.server.datadir / "auto.cnf").read_text()
    (clone.server.datadir / "auto.cnf").write_text(names)
    clone.server.start()
    [(shard, problem)] = twin_problems([settings, others])

    assert shard == f"{keyspace}/80-"
    assert f"server_uuid {uuid} is also that of {server_of(mysql_a).name} of shard" in str(problem)
    assert "remove auto.cnf" in problem.fix
    with closing(VirtualAddress(mysql_a)) as address:
        there = replace(server_of(mysql_a), port=address.port)
        assert twin_problems([settings, replace(others, servers=(there,))]) == []


@pytest.mark.full
def test_failover_behind_a_virtual_address_needs_no_declaration(
    start_server: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A2: the replica that takes over an address proves by itself that it belongs to the shard."""
    primary, replica = start_pair(start_server)
    fill(primary, 1)
    wait_same(replica, primary)
    with closing(VirtualAddress(primary)) as address:
        there = replace(server_of(primary), port=address.port)
        statements(
            replica,
            "SET SESSION sql_log_bin = 0",
            f"ALTER USER '{there.user}'@'127.0.0.1' IDENTIFIED BY '{there.password}'",
        )
        settings = settings_of(primary, kafka, keyspace, servers=(there,))
        with producing(settings) as producer:
            statements(primary, INSERT.format(2))
            wait_caught_up(settings)
            wait_same(replica, primary)
            primary.server.kill()
            promote(replica)
            address.move_to(replica)
            statements(replica, INSERT.format(3))
            wait_caught_up(settings)
        noted = notes(producer)
    log = read_log(settings)

    assert "unverified" not in noted
    check_log(log)
    assert sorted(replay(log, "shop", "t")) == [2, 3]
    assert bool(log.progress[-1].identity) == (primary.flavor is Flavor.MARIADB)


def test_log_without_identity_takes_the_first(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A2: a log that was begun without one takes the server's identity, with a note."""
    database = start_mariadb()
    account = f"'{database.user}'@'127.0.0.1'"
    statements(database, f"REVOKE CREATE, INSERT ON `\\_shardstream`.* FROM {account}")
    settings = settings_of(database, kafka, keyspace)
    fill(database, 1)
    with caught_up(settings) as producer:
        wait_for("it is noted", lambda: "to prove its shard" in notes(producer))
    before = known_identity(settings)
    [warning] = warnings_of(settings)
    _, _, grant = warning.partition("would be followed: ")
    statements(database, grant)
    with caught_up(settings) as producer:
        wait_for("it is noted", lambda: "the log takes the identity of" in notes(producer))
    with database.connect() as connection:
        [(there,)] = rows(connection, "SELECT uuid FROM _shardstream.identity")

    assert before == ""
    assert f"GRANT CREATE, SELECT, INSERT ON _shardstream.* TO {account}" in grant
    assert known_identity(settings) == there
    assert warnings_of(settings) == []
