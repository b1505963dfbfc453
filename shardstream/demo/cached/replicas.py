"""The replicas of the shards, each held back by the same time."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pymysql

from event_token import Flavor
from event_token.errors import Halt
from shardstream.demo.shop import DATABASE
from shardstream.local.database_server import NOT_DURABLE, Account, DatabaseServer
from shardstream.local.ports import HOST

# Seconds that each replica lags behind its primary. Well beyond what a page view takes, and short
# enough to be waited for.
LAG_S: Final = 2
# Apart from the primaries', which count from 101.
SERVER_ID_FIRST: Final = 301
READER: Final = "reader"
# Replication starts within a second, a busy machine takes longer.
CATCH_UP_S_MAX: Final = 120.0
POLL_S: Final = 0.05

_FOLLOW: Final = {
    Flavor.MYSQL: (
        (
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = %s, SOURCE_PORT = %s, SOURCE_USER = %s, "
            "SOURCE_PASSWORD = %s, SOURCE_DELAY = %s, SOURCE_AUTO_POSITION = 1, "
            "SOURCE_CONNECT_RETRY = 1, GET_SOURCE_PUBLIC_KEY = 1"
        ),
        "SET GLOBAL super_read_only = ON",
        "START REPLICA",
    ),
    Flavor.MARIADB: (
        (
            "CHANGE MASTER TO MASTER_HOST = %s, MASTER_PORT = %s, MASTER_USER = %s, "
            "MASTER_PASSWORD = %s, MASTER_DELAY = %s, MASTER_USE_GTID = slave_pos, "
            "MASTER_CONNECT_RETRY = 1, MASTER_SSL = 0, MASTER_SSL_VERIFY_SERVER_CERT = 0"
        ),
        "SET GLOBAL read_only = ON",
        "START SLAVE",
    ),
}
# What a primary has executed, and whether a replica has all of it.
_EXECUTED: Final = {
    Flavor.MYSQL: "SELECT @@GLOBAL.gtid_executed",
    Flavor.MARIADB: "SELECT @@GLOBAL.gtid_binlog_pos",
}
_HAS: Final = {
    Flavor.MYSQL: "SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)",
    Flavor.MARIADB: "SELECT MASTER_GTID_WAIT(%s, 0) = 0",
}
# What FreshReader needs: the rows, our own tables for the time of a read, and on MySQL the table
# that tells a replica from a primary.
_READER_GRANTS: Final = (f"{DATABASE}.*", "`\\_shardstream`.*")
_ROLE_GRANT: Final = "performance_schema.replication_connection_configuration"

Connect = Callable[[], Any]


class Replicas:
    """A replica per shard, on a server of its own; `servers` by shard."""

    def __init__(
        self,
        folder: Path,
        primaries: Mapping[str, DatabaseServer],
        report: Callable[[str], None],
    ) -> None:
        """Start nothing yet."""
        self._primaries = primaries
        self.servers: dict[str, DatabaseServer] = {
            shard: type(primary)(
                folder / f"replica_{shard}",
                server_id=SERVER_ID_FIRST + number,
                account=Account(primary.user, primary.password),
                extra_args=NOT_DURABLE,
                die_with_parent=True,
                report=report,
            )
            for number, (shard, primary) in enumerate(primaries.items())
        }

    def launch(self) -> None:
        """Start all servers without waiting; `follow` waits."""
        for server in self.servers.values():
            server.launch()

    def follow(self) -> None:
        """Let all servers follow their primaries, which run. Raises Halt."""
        for shard, server in self.servers.items():
            server.finish_start()
            make_reader(server)
            _follow(server, self._primaries[shard])

    def wait_caught_up(self) -> None:
        """Wait until each replica has what its primary has executed by now. Halt if it does not."""
        deadline_s = time.monotonic() + CATCH_UP_S_MAX
        for shard, replica in self.servers.items():
            primary = self._primaries[shard]
            if primary.pid is None or replica.pid is None:
                continue
            wanted = _value(primary, _EXECUTED[primary.flavor])
            while not _value(replica, _HAS[replica.flavor], wanted):
                if time.monotonic() > deadline_s:
                    raise Halt(
                        f"the replica of {shard} has not reached {wanted} within "
                        f"{CATCH_UP_S_MAX:.0f} s; its log: {replica.log_path}"
                    )
                time.sleep(POLL_S)

    def kill(self) -> None:
        """Kill all servers."""
        for server in self.servers.values():
            server.kill()


def make_reader(server: DatabaseServer) -> None:
    """Create the account that page views read with, outside the binlog."""
    granted = list(_READER_GRANTS)
    if server.flavor is Flavor.MYSQL:
        granted.append(_ROLE_GRANT)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"CREATE USER '{READER}'@'%%' IDENTIFIED BY %s", (server.password,))
        for what in granted:
            cursor.execute(f"GRANT SELECT ON {what} TO '{READER}'@'%'")


def connect_as_reader(server: DatabaseServer) -> Connect:
    """Return a function that connects with the account of page views."""

    def connect() -> Any:
        return pymysql.connect(
            host=HOST,
            port=server.port,
            user=READER,
            password=server.password,
            database=DATABASE,
            charset="utf8mb4",
            autocommit=True,
            ssl_disabled=True,
        )

    return connect


def _follow(replica: DatabaseServer, primary: DatabaseServer) -> None:
    change, *others = _FOLLOW[replica.flavor]
    source = (primary.host, primary.port, primary.user, primary.password, LAG_S)
    with replica.connect() as connection, connection.cursor() as cursor:
        cursor.execute(change, source)
        for statement in others:
            cursor.execute(statement)


def _value(server: DatabaseServer, query: str, *args: Any) -> Any:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(query, args or None)
        row = cursor.fetchone()
    return row[0] if row else None
