"""What a server says of the replication that it takes part in, by the names of its fields."""

from typing import Any, Final

import pymysql

from producers.errors import ServerRefused
from producers.preflight.grants import read_account
from producers.servers.flavor import replica_status_statement, rows, version_of
from producers.settings import ServerSettings

_ACCESS_DENIED: Final = 1227
# MariaDB's own privilege for it; before that the account must be able to stop replication too.
_REPLICA_MONITOR_FROM: Final = (10, 5, 9)


class StatusNotShown(ServerRefused):
    """Raised when an account may not ask how a server replicates; `mend` is the GRANT."""

    def __init__(self, name: str, text: str, mend: str) -> None:
        self.mend = mend
        super().__init__(f"{name} does not say how it replicates: {text}. Mend: {mend}")


def replica_status(connection: Any, server: ServerSettings) -> list[dict[str, Any]]:
    """One row for each source that the server follows. StatusNotShown without the privilege."""
    [(text,)] = rows(connection, "SELECT @@version")
    try:
        return named_rows(connection, replica_status_statement(text))
    except pymysql.err.MySQLError as error:
        if error.args[0] != _ACCESS_DENIED:
            raise
        privilege = "REPLICATION CLIENT"
        if "mariadb" in text.lower():
            monitors = version_of(text) >= _REPLICA_MONITOR_FROM
            privilege = "REPLICA MONITOR" if monitors else "REPLICATION SLAVE ADMIN"
        mend = f"GRANT {privilege} ON *.* TO {read_account(connection).name};"
        raise StatusNotShown(server.name, str(error.args[1]), mend) from error


def named_rows(connection: Any, statement: str) -> list[dict[str, Any]]:
    """All rows of a query, each by the names of its columns."""
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())
