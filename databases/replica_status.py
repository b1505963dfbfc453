"""How a server replicates, by the field names of its own status."""

from typing import Any, Final

from pymysql.constants import ER
from pymysql.err import MySQLError

from databases.connection import error_code
from databases.errors import ServerRefused
from databases.grants import read_account
from databases.server import DatabaseServer
from databases.server_facts import replica_status_statement, version_of
from databases.sql import named_rows, rows

# MariaDB's own privilege for it; before that the account must be able to stop replication too.
_REPLICA_MONITOR_FROM: Final = (10, 5, 9)


class StatusNotShown(ServerRefused):
    """Raised when an account may not ask how a server replicates; `fix` is the GRANT."""

    def __init__(self, name: str, text: str, fix: str) -> None:
        self.fix = fix
        super().__init__(f"{name} does not say how it replicates: {text}. Fix: {fix}")


def replica_status(connection: Any, server: DatabaseServer) -> list[dict[str, Any]]:
    """One row per source that the server follows. StatusNotShown without the privilege."""
    [(text,)] = rows(connection, "SELECT @@version")
    try:
        return named_rows(connection, replica_status_statement(text))
    except MySQLError as error:
        if error_code(error) != ER.SPECIFIC_ACCESS_DENIED_ERROR:
            raise
        privilege = "REPLICATION CLIENT"
        if "mariadb" in text.lower():
            monitors = version_of(text) >= _REPLICA_MONITOR_FROM
            privilege = "REPLICA MONITOR" if monitors else "REPLICATION SLAVE ADMIN"
        fix = f"GRANT {privilege} ON *.* TO {read_account(connection).name};"
        raise StatusNotShown(server.name, str(error.args[1]), fix) from error
