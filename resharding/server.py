"""The servers of a reshard, and sessions on them with an account that may write."""

from dataclasses import dataclass
from typing import Any, Final

from databases.connection import open_connection, server_errors
from databases.server import DatabaseServer
from event_token import Flavor

# A statement that waits for a lock ends by the server's own limit (50 s by default) first.
ANSWER_TIMEOUT_S: Final = 120
# Servers print definitions and values as the session's sql_mode says: with ANSI_QUOTES or ORACLE in
# their settings a table of one could not be created on another, with PAD_CHAR_TO_FULL_LENGTH equal
# rows would differ.
SESSION_MODE: Final = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
# Limits that servers set against forgotten sessions and slow queries would end a claim that waits
# for a log, and a comparison of large tables.
_LIMITS: Final = {
    Flavor.MYSQL: "max_execution_time = 0",
    Flavor.MARIADB: "max_statement_time = 0, idle_transaction_timeout = 0, "
    "idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0",
}
_IDLE_S_MAX: Final = 8 * 3600  # the servers' own default


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardServer(DatabaseServer):
    """The primary of one shard, with the account that a reshard uses there."""

    shard: str
    flavor: Flavor

    @property
    def name(self) -> str:
        """How messages name the server."""
        return f"{self.host}:{self.port} (shard {self.shard})"


def open_session(server: ReshardServer, *, many_statements: bool = False) -> Any:
    """Open a connection as `databases.connection.open_connection` does, with patience for locks."""
    connection = open_connection(
        server, answer_timeout_s=ANSWER_TIMEOUT_S, many_statements=many_statements
    )
    try:
        with server_errors(server, "setting the session of"), connection.cursor() as cursor:
            cursor.execute(
                f"SET SESSION sql_mode = '{SESSION_MODE}', wait_timeout = {_IDLE_S_MAX}, "
                f"{_LIMITS[server.flavor]}"
            )
    except BaseException:
        connection.close()
        raise
    return connection
