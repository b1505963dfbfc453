"""Compares UUID, INET4 and INET6 columns of a MariaDB server with the declared types.

Its binlog shows them as BINARY, byte for byte, so the server is asked: about all tables at the
start, about one table at its first row and after statements that may have changed it.
"""

from collections.abc import Callable
from typing import Any, Final

from databases.grants import privileges_on
from databases.sql import rows
from databases.system_versioned import catalog_table, row_end_of
from event_token import Flavor
from producers.decoder.errors import HiddenType
from producers.errors import Problem
from producers.preflight.typed_columns import BYTES, TypedColumns, declaration, looks_binary
from producers.replication.stream import server_errors
from producers.settings import ServerSettings, ShardProducerSettings

_HIDDEN_COLUMNS: Final = (
    "SELECT table_schema, table_name, column_name, column_type FROM information_schema.columns "
    "WHERE data_type IN ('uuid', 'inet4', 'inet6') AND table_schema NOT IN "
    "('mysql', 'information_schema', 'performance_schema', 'sys') "
    "ORDER BY table_schema, table_name, ordinal_position"
)
_VIEWS: Final = "SELECT table_schema, table_name FROM information_schema.views"
_TABLE: Final = (
    "SELECT column_name, column_type FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s"
)


def hidden_type_problems(
    connection: Any, server_name: str, settings: ShardProducerSettings
) -> list[Problem]:
    """List each such column of the logged tables whose declaration does not match.

    Declared columns that do not exist are no problem: their table may come later, or be dropped
    and still be in the binlog.
    """
    if settings.flavor is not Flavor.MARIADB:
        return []
    typed, filters = settings.typed_columns, settings.filters
    views = {(str(schema), str(view)) for schema, view in rows(connection, _VIEWS)}
    found = {
        f"{schema}.{table}.{column}": str(column_type)
        for schema, table, column, column_type in rows(connection, _HIDDEN_COLUMNS)
        if (schema, table) not in views and filters.includes(schema, table)
    }
    for place in typed.names:
        # A name that contains dots can be read in several ways.
        for database, table, column in _readings(place):
            types = dict(rows(connection, _TABLE, (database, table)))
            if column in types and filters.includes(database, table):
                found[place] = types[column]
    problems = []
    for place, column_type in found.items():
        wrong = typed.contradiction(place, column_type)
        if wrong is not None:
            problems.append(Problem(wrong[0], server_name, wrong[1]))
    return problems


def _readings(place: str) -> list[tuple[str, str, str]]:
    """The ways to split a name into database, table and column."""
    dots = [i for i, letter in enumerate(place) if letter == "."]
    return [
        (place[:first], place[first + 1 : second], place[second + 1 :])
        for i, first in enumerate(dots)
        for second in dots[i + 1 :]
    ]


class ServerTypes:
    """The decoder's `HiddenTypes`: as the settings declare them, compared with the server."""

    def __init__(
        self,
        declared: TypedColumns,
        server: ServerSettings,
        connection: Any,
        on_notice: Callable[[str], None],
    ) -> None:
        """`connection`: to the server whose binlog is read; shared with other queries."""
        self._declared = declared
        self._server = server
        self._connection = connection
        self._on_notice = on_notice

    def type_of(self, place: str) -> str:
        """The declared type of a column; "" if none is."""
        return self._declared.type_of(place)

    def check(self, database: str, table: str, columns: list[str], *, is_new: bool) -> None:
        """Ask the server for the types of these columns; HiddenType if one is declared otherwise.

        A column that is gone, or has another type by now, is logged as bytes, with a notice for a
        new table version. HiddenType, too, if the account could not see the column.
        """
        with server_errors(self._server, "asking for column types of"):
            types = dict(rows(self._connection, _TABLE, (database, table)))
        unknown, unseen = [], []
        for column in dict.fromkeys(columns):
            place = f"{database}.{table}.{column}"
            there = types.get(column, "")
            wrong = self._declared.contradiction(place, there) if there else None
            if wrong is not None:
                raise HiddenType(f"{wrong[0]}. Fix: {wrong[1]}")
            if not looks_binary(there) and not self._declared.type_of(place):
                unknown.append(place)
                unseen += [] if there else [place]
        if not is_new or not unknown:
            return
        if unseen:
            self._require_sight(database, unseen)
        self._on_notice(
            f"{', '.join(unknown)}: dropped from {self._server.name}, or of another type now, so "
            "it is unknown whether it was BINARY or UUID, INET4, INET6; logged as bytes unless "
            "typed_columns declares it"
        )

    def row_end(self, database: str, table: str, names: list[str], candidates: list[str]) -> str:
        """Return which of the candidates ends row versions; see `RowEnds`.

        Where nothing tells, the table is logged as one without versions, with a notice.
        """
        with server_errors(self._server, "asking for the tables of"):
            there = catalog_table(self._connection, database, table)
        found = row_end_of(names, candidates, there)
        if found is not None:
            return found
        place = f"{database}.{table}"
        if there is None and not may_see(self._server, self._connection, database):
            raise HiddenType(
                f"a binlog does not tell whether {place} is system-versioned, so that "
                f"{' or '.join(candidates)} ends the versions of its rows, and the account does "
                f"not see the table: GRANT SELECT ON {database}.* to it, or leave the table out "
                f"with a filter rule"
            )
        self._on_notice(
            f"{place}: dropped from {self._server.name}, or altered since, so it is unknown "
            f"whether it was system-versioned with {' or '.join(candidates)} as its ROW END; "
            f"logged as a table without versions"
        )
        return ""

    def _require_sight(self, database: str, places: list[str]) -> None:
        """HiddenType unless the account would see these columns if they existed."""
        if not may_see(self._server, self._connection, database):
            raise HiddenType(
                f"a binlog does not distinguish UUID, INET4 and INET6 from BINARY, and the type of "
                f"column {places[0]} is not visible without the SELECT privilege on {database}: "
                f"grant it, or declare the column: {declaration(places[0], BYTES)} "
                f'(or "uuid", "inet4", "inet6")'
            )


def may_see(server: ServerSettings, connection: Any, database: str) -> bool:
    """Tell whether the account sees all columns of a database."""
    with server_errors(server, "reading the grants of"):
        granted = privileges_on(connection, database)
    return bool(granted & {"SELECT", "ALL PRIVILEGES"})


def server_types(
    settings: ShardProducerSettings,
    server: ServerSettings,
    connection: Any,
    on_notice: Callable[[str], None],
) -> ServerTypes | None:
    """For MariaDB's decoder; None for MySQL, whose binlog shows all types."""
    if settings.flavor is not Flavor.MARIADB:
        return None
    return ServerTypes(settings.typed_columns, server, connection, on_notice)
