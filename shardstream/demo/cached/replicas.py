"""The replicas of the shards, each held back by the same time, and the account of page views."""

import time
from typing import Any, Final

from caching.reading.snapshots import FILTER_GRANTS, ROLE_GRANT
from event_token import Flavor
from event_token.errors import Halt
from producers.session.heads import PRIVILEGES
from shardstream.demo.shop import DATABASE, Connect, connect_as
from shardstream.demo.story import Story
from shardstream.local.database_server import NOT_DURABLE, LocalAccount, LocalDatabase
from shardstream.local.local_server import HOST

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
_OUR_TABLES: Final = "`\\_shardstream`.*"
# What FreshReader needs: the rows, our own tables for the time of a read, and what shows roles and
# replication filters.
_READER_GRANTS: Final = {
    Flavor.MARIADB: (
        f"SELECT ON {DATABASE}.*",
        f"SELECT ON {_OUR_TABLES}",
        "REPLICA MONITOR ON *.*",
    ),
    Flavor.MYSQL: (
        f"SELECT ON {DATABASE}.*",
        f"SELECT ON {_OUR_TABLES}",
        ROLE_GRANT,
        *FILTER_GRANTS,
    ),
}


class Replicas:
    """A replica of each shard of the shop, on a server of its own; targets of a split have none."""

    def __init__(self, story: Story) -> None:
        """Start nothing yet."""
        self._databases = story.stack.databases
        self._servers: dict[str, LocalDatabase] = {}
        for number, shard in enumerate(story.sources):
            primary = self._databases[shard]
            server = self._servers[shard] = type(primary)(
                story.folder / f"replica_{shard}",
                server_id=SERVER_ID_FIRST + number,
                account=LocalAccount(primary.user, primary.password),
                extra_args=NOT_DURABLE,
                die_with_parent=True,
                report=story.report,
            )
            story.cleanup.callback(server.kill)

    def launch(self) -> None:
        """Start all servers without waiting; `follow` waits."""
        for server in self._servers.values():
            server.launch()

    def follow(self) -> None:
        """Let all servers follow their primaries, which run. Raises Halt."""
        for server in self._servers.values():
            server.finish_start()
        self._make_readers()
        for shard, server in self._servers.items():
            primary = self._databases[shard]
            change, *others = _FOLLOW[server.flavor]
            source = (primary.host, primary.port, primary.user, primary.password, LAG_S)
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(change, source)
                for statement in others:
                    cursor.execute(statement)

    def _make_readers(self) -> None:
        """Create the account that page views read with on all servers, outside the binlog.

        And let producers write heartbeat rows, by which reads have an age.
        """
        for server in (*self._databases.values(), *self._servers.values()):
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION sql_log_bin = 0")
                cursor.execute(f"CREATE USER '{READER}'@'%%' IDENTIFIED BY %s", (server.password,))
                for what in _READER_GRANTS[server.flavor]:
                    cursor.execute(f"GRANT {what} TO '{READER}'@'%'")
                producer = f"'{server.user}'@'{HOST}'"
                cursor.execute(f"GRANT {', '.join(PRIVILEGES)} ON {_OUR_TABLES} TO {producer}")

    @property
    def readers(self) -> dict[str, list[Connect]]:
        """How page views read, by shard: from the replica if there is one, then the primary."""
        found: dict[str, list[Connect]] = {}
        for shard, primary in self._databases.items():
            replica = self._servers.get(shard)
            servers = [primary] if replica is None else [replica, primary]
            found[shard] = [connect_as(server, READER, autocommit=True) for server in servers]
        return found

    def wait_caught_up(self) -> None:
        """Wait until each replica has what its primary has executed by now. Halt if it does not."""
        deadline_s = time.monotonic() + CATCH_UP_S_MAX
        for shard, replica in self._servers.items():
            primary = self._databases[shard]
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


def _value(server: LocalDatabase, query: str, *args: Any) -> Any:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(query, args or None)
        row = cursor.fetchone()
    return row[0] if row else None
