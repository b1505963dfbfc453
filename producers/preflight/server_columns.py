"""Asks a server which columns of a table are left out of the log.

Those that it hides from a SELECT, and MariaDB's generated ones.
"""

from collections.abc import Callable
from typing import Any, Final

from databases.sql import rows
from databases.system_versioned import ROW_END, ROW_START
from event_token import Flavor
from producers.decoder.errors import HiddenType
from producers.decoder.tables.server_columns import is_unlogged
from producers.preflight.hidden_types import may_see
from producers.replication.stream import server_errors
from producers.settings import ServerSettings

_COLUMNS: Final = (
    "SELECT column_name, generation_expression FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
)
# MariaDB's catalog has these of a system-versioned table only where they are declared; they are
# logged either way.
_PERIOD: Final = frozenset((ROW_START, ROW_END))


class ServerCatalog:
    """The decoder's `Catalog`."""

    def __init__(
        self,
        flavor: Flavor,
        server: ServerSettings,
        connection: Any,
        on_notice: Callable[[str], None],
    ) -> None:
        """`connection`: to the server whose binlog is read; shared with other queries."""
        self._flavor = flavor
        self._server = server
        self._connection = connection
        self._on_notice = on_notice

    def hidden(
        self, database: str, table: str, columns: list[str], doubtful: list[str]
    ) -> frozenset[str]:
        """Of the doubtful columns, those that the table does not have now, and its generated ones.

        With a notice where the table has other columns by now, or is gone: which of them are
        hidden in these rows is then a guess, by their names.
        HiddenType if the account could not see the table.
        """
        with server_errors(self._server, "asking for the columns of"):
            found = rows(self._connection, _COLUMNS, (database, table))
        shown = [str(name) for name, _ in found if name not in _PERIOD]
        sure = frozenset(columns) - frozenset(doubtful) - _PERIOD
        if not (shown and sure.issubset(shown)):
            self._require_sight(database, table)
        hidden = frozenset(doubtful) - frozenset(shown)
        left = [name for name in columns if name not in hidden and name not in _PERIOD]
        if doubtful and left != shown:
            logged = ", ".join(name for name in doubtful if name not in hidden) or "none"
            self._on_notice(
                f"{database}.{table}: changed or dropped on {self._server.name} since these rows. "
                f"Of the columns that are named as if the server had added them for itself, those "
                f"that the table has now are logged ({logged}), and others are not "
                f"({', '.join(sorted(hidden)) or 'none'}): docs/operations.md, Hidden columns"
            )
        return hidden | {str(n) for n, how in found if is_unlogged(self._flavor, how)}

    def _require_sight(self, database: str, table: str) -> None:
        """HiddenType unless the account would see all columns of the table if it existed."""
        if not may_see(self._server, self._connection, database):
            raise HiddenType(
                f"which columns of table {database}.{table} the server hides or generates is not "
                f"visible without the SELECT privilege on {database}, and it does not log them as "
                f"it logs others: grant it, or exclude the table by a filter rule"
            )
