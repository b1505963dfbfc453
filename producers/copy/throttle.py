"""Why a copy had better wait: what the server and its replicas say of their load."""

import time
from collections.abc import Sequence
from typing import Any, Final

import pymysql

from event_token import Flavor
from event_token.errors import ShardstreamError
from producers.connection import open_query_connection, server_errors
from producers.faults import Problem, ServerRefused
from producers.flavor import replica_status_statement, rows, version_of
from producers.grants import read_account
from producers.settings import CopySettings, ServerSettings, ShardProducerSettings

# One look lasts for all the chunks of this time.
LOOK_S: Final = 1.0
_MS_A_SECOND: Final = 1000
_ACCESS_DENIED: Final = 1227
# MariaDB's own privilege for it; before that the account must be able to stop replication too.
_REPLICA_MONITOR_FROM: Final = (10, 5, 9)


class LagNotShown(ServerRefused):
    """Raised when an account may not ask how far a replica is behind; `mend` is the GRANT."""

    def __init__(self, name: str, text: str, mend: str) -> None:
        self.mend = mend
        super().__init__(f"{name} does not say how far it is behind: {text}. Mend: {mend}")


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
        with server_errors(server, "asking for the lag of"):
            status = _replica_status(connection, server)
    finally:
        connection.close()
    lag_s = 0
    for row in status:
        lag = row.get("Seconds_Behind_Source", row.get("Seconds_Behind_Master"))
        if lag is None:
            return None
        lag_s = max(lag_s, int(lag))
    return lag_s


def _replica_status(connection: Any, server: ServerSettings) -> list[dict[str, Any]]:
    """One row for each source that the server follows. LagNotShown without the privilege."""
    [(text,)] = rows(connection, "SELECT @@version")
    try:
        with connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(replica_status_statement(text))
            return list(cursor.fetchall())
    except pymysql.err.MySQLError as error:
        if error.args[0] != _ACCESS_DENIED:
            raise
        privilege = "REPLICATION CLIENT"
        if "mariadb" in text.lower():
            monitors = version_of(text) >= _REPLICA_MONITOR_FROM
            privilege = "REPLICA MONITOR" if monitors else "REPLICATION SLAVE ADMIN"
        mend = f"GRANT {privilege} ON *.* TO {read_account(connection).name};"
        raise LagNotShown(server.name, str(error.args[1]), mend) from error


def lag_problems(settings: ShardProducerSettings) -> list[Problem]:
    """The servers whose lag a copy goes by, and whose account may not ask for it.

    A server that cannot be reached is another check's problem.
    """
    if settings.copy.max_replica_lag_ms is None or len(settings.servers) == 1:
        return []
    problems = []
    for server in settings.servers:
        if server.read and settings.flavor is Flavor.MYSQL:
            continue  # Streaming needs the same privilege there.
        try:
            _lag_s(server)
        except LagNotShown as error:
            what = "copying.max_replica_lag_ms is set, and the account may not ask for the lag"
            problems.append(Problem(what, server.name, error.mend))
        except ShardstreamError:
            continue
    return problems
