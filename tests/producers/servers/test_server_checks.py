"""Preflight on real servers: all problems at once, each with its fix."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from databases.errors import ServerRefused
from event_token import Flavor
from producers.errors import Problem
from producers.servers.server_list import open_server
from producers.settings import ServerSettings, ShardProducerSettings
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.servers.replication import start_pair, statements
from tests.producers.session.producing import problems_of, server_of
from topics.kafka.client import ClientConfig

MARKER = "s3cret-marker"

# Nothing in the tests' servers waits for the disk.
ACCEPTED: Final[Mapping[str, Any]] = {
    "accept_unlogged_cascades": True,
    "accept_loss_at_server_crash": True,
}


def whats(problems: list[Problem]) -> str:
    """All problems as one text."""
    return "\n".join(str(problem) for problem in problems)


def test_well_set_server_has_no_problem(database: DatabaseFixture) -> None:
    """The test servers are set as a producer needs them."""
    flavor = Flavor(database.flavor.value)

    found = problems_of(
        server_of(database), flavor, accept_unlogged_cascades=True, accept_loss_at_server_crash=True
    )

    assert found == []


def test_all_wrong_mysql_settings_are_listed_at_once(
    start_mysql: Callable[..., DatabaseFixture],
) -> None:
    """F13: Four wrong settings and missing grants are one list, each with its statement."""
    database = start_mysql(
        (
            "--gtid-mode=OFF",
            "--enforce-gtid-consistency=OFF",
            "--binlog-row-metadata=MINIMAL",
            "--binlog-format=MIXED",
            "--binlog-ignore-db=scratch",
        )
    )
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER poor@'127.0.0.1' IDENTIFIED BY '{MARKER}'")

    found = problems_of(ServerSettings(database.host, database.port, "poor", MARKER), Flavor.MYSQL)

    listed = whats(found)
    for name in (
        "gtid_mode",
        "enforce_gtid_consistency",
        "binlog_row_metadata",
        "binlog_format",
    ):
        assert f"{name} is" in listed
    assert "GRANT REPLICATION SLAVE ON *.* TO 'poor'@'127.0.0.1';" in listed
    assert "GRANT REPLICATION CLIENT ON *.* TO 'poor'@'127.0.0.1';" in listed
    assert all(problem.fix for problem in found)
    assert MARKER not in listed
    assert "binlog_ignore_db is scratch" in whats(problems_of(server_of(database), Flavor.MYSQL))


def test_server_without_binlog_is_refused(start_mysql: Callable[..., DatabaseFixture]) -> None:
    """Without a binlog there is nothing to read."""
    database = start_mysql(("--skip-log-bin",))

    found = problems_of(server_of(database), Flavor.MYSQL)

    assert "log_bin is OFF" in whats(found)


def test_wrong_mariadb_settings_are_listed(start_mariadb: Callable[..., DatabaseFixture]) -> None:
    """MariaDB's own defaults do not do: row format, metadata and strict GTIDs are asked for."""
    database = start_mariadb(
        (
            "--binlog-format=MIXED",
            "--binlog-row-metadata=NO_LOG",
            "--gtid-strict-mode=OFF",
            "--binlog-do-db=shop",
        )
    )

    listed = whats(problems_of(server_of(database), Flavor.MARIADB))

    for name in ("binlog_format", "binlog_row_metadata", "gtid_strict_mode"):
        assert f"SET GLOBAL {name} = " in listed
    assert "binlog_do_db is shop" in listed


def test_replication_filters_of_mysql_are_refused_by_name(mysql_b: DatabaseFixture) -> None:
    """A replica leaves rows out under their GTIDs: each filter is named, those of mysql.* pass."""
    with mysql_b.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1")
        change = "CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = ({}), REPLICATE_DO_DB = ({})"
        try:
            cursor.execute(change.format("mysql.rds_history, shop.audit", "shop"))
            listed = whats(problems_of(server_of(mysql_b), Flavor.MYSQL))
            cursor.execute(change.format("mysql.rds_history", ""))
            of_system = problems_of(
                server_of(mysql_b),
                Flavor.MYSQL,
                accept_unlogged_cascades=True,
                accept_loss_at_server_crash=True,
            )
        finally:
            cursor.execute(change.format("", ""))
            cursor.execute("RESET REPLICA ALL")

    assert "replicate_ignore_table is " in listed
    assert "shop.audit: this server's binlog lacks" in listed
    assert "replicate_do_db is shop" in listed
    assert of_system == []


def test_members_of_a_group_are_refused(start_mysql: Callable[..., DatabaseFixture]) -> None:
    """A secondary of Group Replication would pass for a primary, its clock for the primary's.

    As a replica, the same server names the errors that it passes over.
    """
    name = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
    member = start_mysql(
        (
            "--plugin-load-add=group_replication.so",
            f"--loose-group-replication-group-name={name}",
            "--replica-skip-errors=1062",
        )
    )

    [problem] = problems_of(server_of(member), Flavor.MYSQL, accept_loss_at_server_crash=True)
    with member.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1")
    of_replica = whats(problems_of(server_of(member), Flavor.MYSQL))

    assert "a member of a group" in problem.what
    assert "slave_skip_errors is 1062" in of_replica


def test_idempotent_replicas_are_refused_by_name(start_server: StartServer) -> None:
    """A3: a replica that drops what it cannot apply is refused, and accepted once it is strict."""
    _primary, replica = start_pair(start_server)
    flavor = Flavor(replica.flavor)
    before = whats(problems_of(server_of(replica), flavor))
    statements(replica, "SET GLOBAL slave_exec_mode = IDEMPOTENT")

    [problem] = [p for p in problems_of(server_of(replica), flavor) if "IDEMPOTENT" in p.what]
    with pytest.raises(ServerRefused, match="IDEMPOTENT"):
        open_server(server_of(replica), shard_settings(replica))
    fix, _, _ = problem.fix.partition(";")
    statements(replica, fix)

    assert "IDEMPOTENT" not in before
    assert "IDEMPOTENT" not in whats(problems_of(server_of(replica), flavor))


def shard_settings(database: DatabaseFixture) -> ShardProducerSettings:
    """Settings of a shard on this server, without Kafka."""
    kafka = ClientConfig({"bootstrap.servers": "127.0.0.1:1"})
    flavor = Flavor(database.flavor)
    return ShardProducerSettings("ks", "-", flavor, (server_of(database),), kafka)


def test_replication_filters_of_mariadb_are_refused_by_name(mariadb_a: DatabaseFixture) -> None:
    """Filters of the server and of a named connection; without the grant the grant is asked for."""
    poor = ServerSettings(mariadb_a.host, mariadb_a.port, "unmonitored", "x")
    with mariadb_a.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE USER unmonitored@'127.0.0.1' IDENTIFIED BY 'x'")
        grants = "PROCESS, REPLICATION SLAVE, BINLOG MONITOR"
        cursor.execute(f"GRANT {grants} ON *.* TO unmonitored@'127.0.0.1'")
        try:
            cursor.execute(
                "CHANGE MASTER 'other' TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1, "
                "MASTER_USE_GTID = slave_pos, IGNORE_DOMAIN_IDS = (7)"
            )
            cursor.execute("SET GLOBAL replicate_wild_ignore_table = 'shop.audit%'")
            cursor.execute("START SLAVE 'other'")
            listed = whats(problems_of(server_of(mariadb_a), Flavor.MARIADB))
            unseen = whats(problems_of(poor, Flavor.MARIADB))
        finally:
            cursor.execute("STOP ALL SLAVES")
            cursor.execute("SET GLOBAL replicate_wild_ignore_table = ''")
            cursor.execute("RESET SLAVE 'other' ALL")

    assert "replicate_ignore_domain_ids is 7: this server's binlog lacks" in listed
    assert "replicate_wild_ignore_table is shop.audit%" in listed
    assert "replicate_wild_ignore_table is shop.audit%" in unseen
    assert "GRANT REPLICA MONITOR ON *.* TO 'unmonitored'@'127.0.0.1'" in unseen


def test_other_family_is_said(mysql_a: DatabaseFixture) -> None:
    """A MySQL server under the settings of MariaDB is one clear problem."""
    found = problems_of(server_of(mysql_a), Flavor.MARIADB)

    assert len(found) == 1
    assert "the server is mysql" in found[0].what


def test_unlogged_cascades_are_refused_by_name_unless_accepted(mariadb_a: DatabaseFixture) -> None:
    """MariaDB does not log the rows that a foreign key deletes: the table is named."""
    name = mariadb_a.new_database()
    with mariadb_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE parent (id INT PRIMARY KEY)")
        cursor.execute(
            "CREATE TABLE child (id INT PRIMARY KEY, p INT, "
            "FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)"
        )

    found = problems_of(server_of(mariadb_a), Flavor.MARIADB)
    accepted = problems_of(
        server_of(mariadb_a),
        Flavor.MARIADB,
        accept_unlogged_cascades=True,
        accept_loss_at_server_crash=True,
    )

    assert f"changes table {name}/child with {name}/parent" in whats(found)
    assert accepted == []
    with mariadb_a.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name}")


def test_cascades_on_a_replica_of_mysql_are_its_sources(mysql_b: DatabaseFixture) -> None:
    """A replica logs a cascade only where its source did, which it does not say."""
    name = mysql_b.new_database()
    with mysql_b.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE p (id INT PRIMARY KEY)")
        cursor.execute(
            "CREATE TABLE c (p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)"
        )
        as_primary = problems_of(server_of(mysql_b), Flavor.MYSQL, accept_loss_at_server_crash=True)
        cursor.execute("CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1")
        try:
            as_replica = problems_of(server_of(mysql_b), Flavor.MYSQL)
        finally:
            cursor.execute("RESET REPLICA ALL")
            cursor.execute(f"DROP DATABASE {name}")

    assert as_primary == []
    assert f"changes table {name}/c with {name}/p" in whats(as_replica)
    assert "this replica does not log such changes by itself" in whats(as_replica)


def test_cascades_that_cannot_be_seen_are_a_problem(mariadb_a: DatabaseFixture) -> None:
    """With SELECT alone MariaDB shows no foreign key at all: that is not taken for none."""
    with mariadb_a.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE USER blind@'127.0.0.1' IDENTIFIED BY 'x'")
        grants = "SELECT, REPLICATION SLAVE, BINLOG MONITOR"
        cursor.execute(f"GRANT {grants} ON *.* TO blind@'127.0.0.1'")

    blind = ServerSettings(mariadb_a.host, mariadb_a.port, "blind", "x")
    found = problems_of(blind, Flavor.MARIADB, accept_loss_at_server_crash=True)

    assert [p.fix.split(";")[0] for p in found] == ["GRANT PROCESS ON *.* TO 'blind'@'127.0.0.1'"]


def test_wrong_password_is_a_problem_without_the_password(mysql_a: DatabaseFixture) -> None:
    """Refused credentials are listed; what was tried is not."""
    server = ServerSettings(mysql_a.host, mysql_a.port, mysql_a.user, MARKER)

    found = problems_of(server, Flavor.MYSQL)

    assert len(found) == 1
    assert "Access denied" in found[0].what
    assert MARKER not in whats(found) + repr(server)


def test_unreachable_server_is_a_problem() -> None:
    """Nobody listens there: said with host and port."""
    found = problems_of(ServerSettings("127.0.0.1", 1, "nobody", MARKER), Flavor.MYSQL)

    assert len(found) == 1
    assert "127.0.0.1:1" in found[0].where
    assert MARKER not in whats(found)
