"""Asks a server which of the columns that look like its own it hides from a SELECT."""

from collections.abc import Callable
from typing import Any, Final

from databases.sql import rows
from producers.decoder.errors import HiddenType
from producers.preflight.hidden_types import may_see
from producers.replication.stream import server_errors
from producers.settings import ServerSettings

_COLUMNS: Final = (
    "SELECT column_name FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
)
# MariaDB's catalog has these of a system-versioned table only where they are declared; they are
# logged either way.
_PERIOD: Final = frozenset(("row_start", "row_end"))


class ServerCatalog:
    """The decoder's `Catalog`."""

    def __init__(
        self, server: ServerSettings, connection: Any, on_notice: Callable[[str], None]
    ) -> None:
        """`connection`: to the server whose binlog is read; shared with other queries."""
        self._server = server
        self._connection = connection
        self._on_notice = on_notice

    def hidden(
        self, database: str, table: str, columns: list[str], doubtful: list[str]
    ) -> frozenset[str]:
        """Of the doubtful columns, those that are not in the table as it is now.

        With a notice where the table has other columns by now, or is gone: which of them are
        hidden in these rows is then a guess, by their names.
        HiddenType if the account could not see the table.
        """
        with server_errors(self._server, "asking for the columns of"):
            found = rows(self._connection, _COLUMNS, (database, table))
        shown = [str(name) for (name,) in found if name not in _PERIOD]
        place = f"{database}.{table}.{doubtful[0]}"
        if not shown and not may_see(self._server, self._connection, database):
            raise HiddenType(
                f"column {place} is named like one that the server adds for itself and shows "
                f"nobody, and whether it is one is not visible without the SELECT privilege on "
                f"{database}: grant it, or exclude the table by a filter rule"
            )
        hidden = frozenset(doubtful) - frozenset(shown)
        left = [name for name in columns if name not in hidden and name not in _PERIOD]
        if left != shown:
            logged = ", ".join(name for name in doubtful if name not in hidden) or "none"
            self._on_notice(
                f"{database}.{table}: changed or dropped on {self._server.name} since these rows. "
                f"Of the columns that are named as if the server had added them for itself, those "
                f"that the table has now are logged ({logged}), and others are not "
                f"({', '.join(sorted(hidden)) or 'none'}): docs/operations.md, Hidden columns"
            )
        return hidden
