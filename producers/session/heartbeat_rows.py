"""Heartbeat rows on the primary: they show how far a replica, and who reads from it, is.

The row travels through the binlog like any change. When it arrives from a server, the log has
everything that the primary committed before it, and its time is the head (watermark). A fresh read
that sees it holds all of the log before it.
"""

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Final

from pymysql.constants import ER
from pymysql.err import MySQLError

from databases.connection import error_code, open_connection
from databases.errors import ServerLost
from databases.grants import privileges_on, read_account
from databases.internal_tables import (
    HEARTBEAT,
    INTERNAL_DATABASE,
    JOURNAL,
    ROLE,
    create_internal_tables,
)
from databases.sql import rows
from event_token.errors import ShardstreamError
from producers.replication.family import family_of
from producers.replication.stream import server_errors
from producers.servers.server_list import OpenServer
from producers.session.heads import now_us
from producers.settings import ShardProducerSettings

PRIVILEGES: Final = ("CREATE", "SELECT", "INSERT", "UPDATE")
# Together they say what the time of a read is worth.
TABLES_OF_READS: Final = (HEARTBEAT, JOURNAL, ROLE)
# After a fault: the primary may be failing over, or a grant may be missing.
PAUSE_S: Final = 1.0
# The thread may be waiting for a server that does not answer; closing does not wait for that.
CLOSE_S_MAX: Final = 1.0

_MISSING: Final = frozenset({ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE})
_CLOCK: Final = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"
# Shard, this host's clock, the bound, this host's clock: it stands in for a clock that is far off.
_WRITE: Final = (
    f"INSERT INTO {HEARTBEAT} (shard, at_us) "
    f"SELECT %s, IF(ABS({_CLOCK} - %s) <= %s, {_CLOCK}, %s) "
    "ON DUPLICATE KEY UPDATE at_us = VALUES(at_us)"
)


class HeartbeatWriter:
    """A thread that writes the shard's heartbeat row on the primary, always or while `wanted`.

    `note` says why it cannot, "" if it can.
    """

    def __init__(self, settings: ShardProducerSettings, wanted: Callable[[], bool]) -> None:
        """Start the thread if there is more than one server, or rows are always written."""
        self.note = ""
        self._settings = settings
        self._wanted = wanted
        self._family = family_of(settings.flavor)
        self._period_s = settings.heartbeat_ms / 1000
        self._primary: OpenServer | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat rows", daemon=True)
        self._is_always = settings.heartbeat_rows == "always"
        if len(settings.servers) > 1 or self._is_always:
            self._thread.start()

    def close(self) -> None:
        """Ask the thread to end and wait briefly."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S_MAX)

    def _run(self) -> None:
        wait_s = self._period_s
        try:
            while not self._ending.wait(wait_s):
                wait_s = self._period_s
                try:
                    if self._is_always or self._wanted():
                        self._write()
                        self.note = ""
                except Exception as fault:  # noqa: BLE001 - the note reports it; the thread goes on
                    self.note = f"without heartbeat rows an idle shard holds readers back: {fault}"
                    self._forget()
                    wait_s = max(PAUSE_S, self._period_s)
        finally:
            self._forget()

    def _write(self) -> None:
        primary = self._primary or self._find()
        if primary is None:
            raise ServerLost("no primary of the shard answers: start it, or add it to `servers`")
        with server_errors(primary.settings, "writing a heartbeat row on"):
            if self._is_always and self._primary is None:
                create_tables_of_reads(primary.connection)
            write_heartbeat(primary.connection, self._settings)
        self._primary = primary

    def _find(self) -> OpenServer | None:
        for settings in self._settings.servers:
            with suppress(ShardstreamError):  # The primary may be another one.
                server = OpenServer(settings, self._family, open_connection(settings))
                if not _is_replica(server):
                    return server
        return None

    def _forget(self) -> None:
        if self._primary is not None:
            self._primary.close()
            self._primary = None


def _is_replica(server: OpenServer) -> bool:
    """Ask for its role, and close the connection of a replica."""
    is_replica = True
    try:
        is_replica = server.is_replica()
    finally:
        if is_replica:
            server.close()
    return is_replica


def write_heartbeat(connection: Any, settings: ShardProducerSettings) -> None:
    """Write the shard's row with the server's clock; create the table if it is missing."""
    own_us = now_us()
    values = (settings.shard, own_us, settings.max_clock_ahead_ms * 1000, own_us)
    with connection.cursor() as cursor:
        try:
            cursor.execute(_WRITE, values)
        except MySQLError as error:
            if error_code(error) not in _MISSING:
                raise
            create_internal_tables(connection, (HEARTBEAT,))
            cursor.execute(_WRITE, values)


def create_tables_of_reads(connection: Any) -> None:
    """Create those tables that are missing without which a fresh read has no time."""
    missing = []
    for table in TABLES_OF_READS:
        try:
            rows(connection, f"SELECT 1 FROM {table} LIMIT 0")  # noqa: S608 - our own name
        except MySQLError as error:
            if error_code(error) not in _MISSING:
                raise
            missing.append(table)
    if missing:
        create_internal_tables(connection, missing)


def heartbeat_warnings(settings: ShardProducerSettings) -> list[str]:
    """What keeps heartbeat rows from being written where they are wanted: one line each.

    Servers that do not answer are skipped; the preflight lists them.
    """
    family = family_of(settings.flavor)
    has_replica = False
    missing: list[str] = []
    primaries = 0
    for server in settings.servers:
        with suppress(ShardstreamError), closing(open_connection(server)) as connection:
            with server_errors(server, "asking for the role of"):
                if family.is_replica(connection):
                    has_replica |= server.read
                    continue
                primaries += 1
                account = read_account(connection)
                lacking = set(PRIVILEGES) - privileges_on(connection, INTERNAL_DATABASE)
            if lacking and not account.has("ALL PRIVILEGES"):
                missing.append(
                    f"{settings.keyspace}.{settings.shard}: heartbeat rows cannot be written on "
                    f"{server.name}: where a replica is read, an idle shard holds readers back, "
                    "and fresh reads have no time. "
                    f"GRANT {', '.join(PRIVILEGES)} ON {INTERNAL_DATABASE}.* TO {account.name};"
                )
    if has_replica and not primaries:
        text = (
            f"{settings.keyspace}.{settings.shard}: a replica is read, but no primary is named "
            "that could take heartbeat rows, so an idle shard holds readers back: add it to "
            "`servers`, with `read = false` if nothing should be streamed from it"
        )
        return [text]
    return missing if has_replica or settings.heartbeat_rows == "always" else []
