"""Holds copies back while the server or its replicas are under load."""

import time
from collections.abc import Sequence
from typing import Any, Final

from databases.connection import open_connection
from databases.replica_status import StatusNotShown, replica_status
from databases.sql import rows
from event_token import Flavor
from event_token.errors import ShardstreamError
from producers.errors import Problem
from producers.options import CopySettings
from producers.replication.stream import server_errors
from producers.settings import ServerSettings, ShardProducerSettings

# One check serves all chunks of this time.
LOOK_S: Final = 1.0
_MS_A_SECOND: Final = 1000


class Throttle:
    """Checks the load at most once per LOOK_S; used by one thread."""

    def __init__(self, limits: CopySettings, others: Sequence[ServerSettings]) -> None:
        """`others`: the shard's servers except the one that is copied from."""
        self._limits = limits
        self._others = others
        self._looked_s = 0.0
        self._reason = ""

    def reason(self, connection: Any) -> str:
        """Why the next chunk should wait; "" if it need not."""
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
                return f"waits: the lag of {server.name} is unknown: {error}"
            if lag_s is None:
                return f"waits: replication on {server.name} is stopped"
            if lag_s * _MS_A_SECOND > allowed_ms:
                return f"waits: {server.name} is {lag_s} s behind, more than {allowed_ms} ms"
        return ""


def _lag_s(server: ServerSettings) -> int | None:
    """Seconds that a replica is behind, 0 for a primary, None if its replication is stopped."""
    connection = open_connection(server)
    try:
        with server_errors(server, "asking for the lag of"):
            status = replica_status(connection, server)
    finally:
        connection.close()
    lag_s = 0
    for row in status:
        lag = row.get("Seconds_Behind_Source", row.get("Seconds_Behind_Master"))
        if lag is None:
            return None
        lag_s = max(lag_s, int(lag))
    return lag_s


def lag_problems(settings: ShardProducerSettings) -> list[Problem]:
    """The servers whose lag throttles copies, and whose account may not read it.

    Servers that cannot be reached are reported by another check.
    """
    if settings.copy.max_replica_lag_ms is None or len(settings.servers) == 1:
        return []
    problems = []
    for server in settings.servers:
        if server.read and settings.flavor is Flavor.MYSQL:
            continue  # Streaming requires the same privilege there.
        try:
            _lag_s(server)
        except StatusNotShown as error:
            what = "copying.max_replica_lag_ms is set, but the account may not read the lag"
            problems.append(Problem(what, server.name, error.fix))
        except ShardstreamError:
            continue
    return problems
