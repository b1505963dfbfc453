"""How a server is asked for its clock, its executed set and its role by one statement."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pymysql.err import OperationalError

from databases.server_facts import SOURCES_FOLLOWED, MariadbFacts, MysqlFacts
from databases.sql import rows
from shardstream.local.local_server import free_ports
from tests.database_servers import DatabaseFixture, StartServer

_SOURCE = (
    "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1, SOURCE_USER = 'a', "
    "SOURCE_AUTO_POSITION = 1"
)
# Each makes the server a replica, leaves it one, or makes it a primary.
_STATES = (
    _SOURCE,
    "START REPLICA",
    "STOP REPLICA",
    "RESET REPLICA",
    "RESET REPLICA ALL",
    f"{_SOURCE} FOR CHANNEL 'one'",
    "RESET REPLICA ALL FOR CHANNEL 'one'",
)
_GROUP = (
    "INSTALL PLUGIN group_replication SONAME 'group_replication.so'",
    "SET GLOBAL group_replication_group_name = 'aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa'",
    "SET GLOBAL group_replication_bootstrap_group = ON",
)


@contextmanager
def _limited(database: DatabaseFixture) -> Iterator[Any]:
    """A connection of an account with the two privileges that streaming needs."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE USER streams@'%' IDENTIFIED BY 'secret'")
        cursor.execute("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO streams@'%'")
    with database.connect(user="streams", password="secret") as connection:
        yield connection


def test_the_sources_are_those_that_the_server_says_it_follows(start_mysql: StartServer) -> None:
    """Whatever is configured, also without the performance schema, and to any account."""
    database = start_mysql(("--performance-schema=OFF",))
    facts, of_limited = MysqlFacts(), MysqlFacts()

    with database.connect() as root, root.cursor() as cursor, _limited(database) as limited:
        with pytest.raises(OperationalError, match="denied"):
            rows(limited, f"SELECT {SOURCES_FOLLOWED}")
        roles = []
        for state in _STATES:
            cursor.execute(state)
            moment, is_replica = facts.moment_and_role(root)
            assert is_replica == facts.is_replica(root), state
            assert of_limited.moment_and_role(limited)[1] == is_replica, state
            assert moment.executed == facts.moment(root).executed
            roles.append(is_replica)

    assert roles == [True, True, True, True, False, True, False]


def test_the_primary_of_a_group_is_no_replica(start_mysql: StartServer) -> None:
    """A member of a group has channels of its own, which are no sources."""
    database = start_mysql()
    facts = MysqlFacts()
    address = f"127.0.0.1:{free_ports(1)[0]}"

    with database.connect() as root, root.cursor() as cursor:
        for text in _GROUP:
            cursor.execute(text)
        cursor.execute("SET GLOBAL group_replication_local_address = %s", (address,))
        cursor.execute("START GROUP_REPLICATION")
        channels = rows(
            root, "SELECT channel_name FROM performance_schema.replication_connection_configuration"
        )

        assert channels == [("group_replication_applier",)]
        assert facts.moment_and_role(root)[1] is facts.is_replica(root) is False


def test_mariadb_says_its_role_with_its_clock(mariadb_a: DatabaseFixture) -> None:
    """One statement says what three say."""
    facts = MariadbFacts()

    with mariadb_a.connect() as connection:
        before = facts.moment(connection)
        moment, is_replica = facts.moment_and_role(connection)

    assert not is_replica
    assert moment.clock_us >= before.clock_us
    assert moment.executed == before.executed
