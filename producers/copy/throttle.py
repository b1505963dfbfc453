"""Why a copy had better wait: what the server and its replicas say of their load."""

import time
from collections.abc import Sequence
from typing import Any, Final

import pymysql

from event_token.errors import ShardstreamError
from producers.connection import open_query_connection, server_errors
from producers.flavor import rows
from producers.settings import CopySettings, ServerSettings

# One look lasts for all the chunks of this time.
LOOK_S: Final = 1.0
_MS_A_SECOND: Final = 1000


class Throttle:
    """Looks at most once in LOOK_S; one thread uses it."""

    def __init__(self, limits: CopySettings, others: Sequence[ServerSettings]) -> None:
        """`others`: the shard's servers but the one that is copied from."""
        self._limits = limits
        self._others = others
        self._looked_s = 0.0
        self._reason = ""

    def reason(self, connection: Any) -> str:
        """Why the next chunk should wait, "" when it need not."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._reason = self._threads(connection) or self._replicas()
            self._looked_s = now_s
        return self._reason

    def _threads(self, connection: Any) -> str:
        allowed = self._limits.max_threads_running
        if allowed is None:
            return ""
        [(_, running)] = rows(connection, "SHOW GLOBAL STATUS LIKE 'Threads_running'")
        if int(running) <= allowed:
            return ""
        return f"waits: the server runs {running} threads, more than {allowed}"

    def _replicas(self) -> str:
        allowed_ms = self._limits.max_replica_lag_ms
        if allowed_ms is None:
            return ""
        for server in self._others:
            try:
                lag_s = _lag_s(server)
            except ShardstreamError as error:
                return f"waits: the lag of {server.name} cannot be asked: {error}"
            if lag_s is None:
                return f"waits: replication on {server.name} does not run"
            if lag_s * _MS_A_SECOND > allowed_ms:
                return f"waits: {server.name} is {lag_s} s behind, more than {allowed_ms} ms"
        return ""


def _lag_s(server: ServerSettings) -> int | None:
    """Seconds that a replica is behind, 0 for a primary, None where its replication rests."""
    connection = open_query_connection(server)
    try:
        with (
            server_errors(server, "asking for the lag of"),
            connection.cursor(pymysql.cursors.DictCursor) as cursor,
        ):
            cursor.execute("SELECT @@version AS version")
            version = str(cursor.fetchone()["version"])
            old = version.startswith(("8.0.1", "8.0.20", "8.0.21")) and "Maria" not in version
            cursor.execute("SHOW SLAVE STATUS" if old else "SHOW REPLICA STATUS")
            status = cursor.fetchone()
    finally:
        connection.close()
    if status is None:
        return 0
    lag = status.get("Seconds_Behind_Source", status.get("Seconds_Behind_Master"))
    return None if lag is None else int(lag)
