"""Asks a server's catalog for what its binlog does not show; checks rules and declared types.

MariaDB's binlog shows UUID, INET4 and INET6 as BINARY, byte for byte, so the catalog is read: for
all tables at the start, for one table at its first row and after statements that may change it.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from databases.catalog import (
    ROW_END,
    ROW_START,
    TABLE_KINDS,
    CatalogColumn,
    CatalogTable,
    columns_of_types,
    list_tables,
    read_columns,
    read_table,
    row_end_of,
)
from databases.grants import privileges_on
from event_token import Flavor
from event_token.errors import UsageError
from producers.copy.definition import CannotCopy, column_type, logged_columns
from producers.decoder.errors import HiddenType
from producers.decoder.tables.column_types import UnknownColumn, plan_column
from producers.decoder.tables.server_columns import TableLookup, is_unlogged, left_out
from producers.errors import Problem
from producers.filters.binding import bind_rule, sharding_columns
from producers.filters.rules import FilterSettings
from producers.filters.where import BINARY, SourceColumn
from producers.replication.stream import server_errors
from producers.settings import ServerSettings, ShardProducerSettings
from producers.typed_columns import BYTES, HIDDEN_BYTES, TypedColumns, declaration, looks_binary
from topics.records.table_shape import Column, ValueKind


def table_problems(
    connection: Any, server_name: str, settings: ShardProducerSettings
) -> list[Problem]:
    """Filter rules and column types of the settings that do not fit the server's tables."""
    return [
        *rule_problems(connection, server_name, settings, at_start=True),
        *hidden_type_problems(connection, server_name, settings),
    ]


def rule_problems(
    connection: Any, server_name: str, settings: ShardProducerSettings, *, at_start: bool
) -> list[Problem]:
    """Return a problem per rule that names a missing table or column, or does not fit.

    `at_start`: a missing table is a mistake in the settings; later it may have been dropped, and
    be about to be created again.
    """
    filters = settings.filters
    if not filters:
        return []
    tables = [entry.name for entry in list_tables(connection) if entry.kind in TABLE_KINDS]
    fix = "correct the filter rules in the settings of the keyspace"
    problems = [
        Problem(f"filter rules name the table {name}, which does not exist", server_name, fix)
        for name in (_missing(filters, tables) if at_start else ())
    ]
    vindexes = sharding_columns(settings.vindexes)
    for table in tables:
        if not filters.includes(*table):
            continue
        unlogged: list[str] = []
        try:
            rule = filters.rule_for(*table)
            there = None if rule is None else read_table(connection, *table)
            if rule is not None and there is not None:
                logged = logged_columns(there, settings.flavor)
                unlogged = [column.name for column in there.columns if column not in logged]
                columns = [
                    _source_column(".".join(table), settings, i, column)
                    for i, column in enumerate(logged)
                ]
                primary_key = [i for i, c in enumerate(logged) if c.is_in_primary_key]
                sharding = vindexes.get(table)
                by = None if sharding is None else (sharding.column, sharding.vindex)
                bind_rule(rule, columns, primary_key, by, filters.hmac_key, filters.hmac_key_id)
        except UsageError as error:
            what = f"the filter rule of {'.'.join(table)}: {error}{left_out(unlogged)}"
            problems.append(Problem(what, server_name, fix))
    return problems


def _missing(settings: FilterSettings, tables: list[tuple[str, str]]) -> Iterator[str]:
    there = {f"{database}.{table}" for database, table in tables}
    patterns = (*settings.include, *settings.exclude, *(rule.table for rule in settings.rules))
    for name in sorted({pattern.text for pattern in patterns if not pattern.is_regexp}):
        if name not in there:
            yield name


def _source_column(
    table: str, settings: ShardProducerSettings, index: int, there: CatalogColumn
) -> SourceColumn:
    """The column as a rule sees it when the table's rows are read."""
    try:
        described = column_type(table, settings, index, there)
        _, column = plan_column(described)
    except (CannotCopy, UnknownColumn):  # its rows stop the shard, with or without a rule
        column = Column(there.name, ValueKind.BYTES, there.column_type)
        return SourceColumn(column, there.collation, there.is_nullable)
    is_text = described.is_text(settings.flavor is Flavor.MARIADB)
    # Neither the type of UUIDs that are logged as bytes is in a table map, nor the decimals of
    # FLOAT(m,d), by which the server compares.
    is_fixed = there.data_type in {"float", "double"} and "," in there.column_type
    hidden = there.column_type if is_fixed or there.data_type in HIDDEN_BYTES else ""
    return SourceColumn(
        column, there.collation or (BINARY if is_text else ""), there.is_nullable, hidden
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
    tables = {entry.name for entry in list_tables(connection) if entry.kind in TABLE_KINDS}
    found = {
        f"{database}.{table}.{column}": column_type
        for database, table, column, column_type in columns_of_types(connection, HIDDEN_BYTES)
        if (database, table) in tables and filters.includes(database, table)
    }
    for place in typed.names:
        # A name that contains dots can be read in several ways.
        for database, table, name in _readings(place):
            if filters.includes(database, table):
                for column in read_columns(connection, database, table):
                    if column.name == name:
                        found[place] = column.column_type
    problems = []
    for place, sql_type in found.items():
        wrong = typed.contradiction(place, sql_type)
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


class ServerCatalog:
    """The decoder's `Catalog`: the catalog of the server whose binlog is read."""

    def __init__(
        self,
        flavor: Flavor,
        declared: TypedColumns,
        server: ServerSettings,
        connection: Any,
        on_notice: Callable[[str], None],
    ) -> None:
        """`connection`: to that server; shared with other queries."""
        self.flavor = flavor
        self.declared = declared
        self.server = server
        self.connection = connection
        self.on_notice = on_notice

    def type_of(self, place: str) -> str:
        """The declared type of a column; "" if none is."""
        return self.declared.type_of(place)

    def look_up(self, database: str, table: str) -> TableLookup:
        """The table as the server has it now; read when it is first needed."""
        return _Lookup(self, database, table)


class _Lookup:
    """One table; see `TableLookup`."""

    def __init__(self, catalog: ServerCatalog, database: str, table: str) -> None:
        self._catalog = catalog
        self._database = database
        self._name = f"{database}.{table}"
        self._table = table

    @cached_property
    def _there(self) -> CatalogTable | None:
        with server_errors(self._catalog.server, "reading the columns of a table of"):
            return read_table(self._catalog.connection, self._database, self._table)

    def hidden(self, columns: list[str], doubtful: list[str]) -> frozenset[str]:
        """See `TableLookup`. With a notice where the table has other columns by now, or is gone.

        Which of the doubtful ones are hidden in these rows is then a guess, by their names.
        """
        found = () if self._there is None else self._there.columns
        # The catalog has these of a system-versioned table only where they are declared, and they
        # are logged either way.
        period = {ROW_START, ROW_END}
        shown = [column.name for column in found if column.name not in period]
        sure = frozenset(columns) - frozenset(doubtful) - period
        if not (shown and sure.issubset(shown)):
            self._require_sight()
        hidden = frozenset(doubtful) - frozenset(shown)
        left = [name for name in columns if name not in hidden and name not in period]
        if doubtful and left != shown:
            logged = ", ".join(name for name in doubtful if name not in hidden) or "none"
            self._catalog.on_notice(
                f"{self._name}: changed or dropped on {self._catalog.server.name} since these rows."
                f" Of the columns that are named as if the server had added them for itself, those "
                f"that the table has now are logged ({logged}), and others are not "
                f"({', '.join(sorted(hidden)) or 'none'}): docs/operations.md, Hidden columns"
            )
        flavor = self._catalog.flavor
        return hidden | {c.name for c in found if is_unlogged(flavor, c.generation)}

    def check_types(self, columns: list[str], *, is_new: bool) -> None:
        """See `TableLookup`. HiddenType, too, if the account could not see a column.

        A column that is gone, or has another type by now, is logged as bytes, with a notice for a
        new table version.
        """
        found = () if self._there is None else self._there.columns
        types = {column.name: column.column_type for column in found}
        declared = self._catalog.declared
        unknown: list[str] = []
        unseen = ""
        for column in dict.fromkeys(columns):
            place = f"{self._name}.{column}"
            there = types.get(column, "")
            wrong = declared.contradiction(place, there) if there else None
            if wrong is not None:
                raise HiddenType(f"{wrong[0]}. Fix: {wrong[1]}")
            if not looks_binary(there) and not declared.type_of(place):
                unknown.append(place)
                unseen = unseen or ("" if there else place)
        if not is_new or not unknown:
            return
        if unseen:
            declaring = f"{declaration(unseen, BYTES)} (or {', '.join(map(repr, HIDDEN_BYTES))})"
            self._require_sight(f", or declare the column under typed_columns: {declaring}")
        self._catalog.on_notice(
            f"{', '.join(unknown)}: dropped from {self._catalog.server.name}, or of another type "
            "now, so it is unknown whether it was BINARY or UUID, INET4, INET6; logged as bytes "
            "unless typed_columns declares it"
        )

    def row_end(self, names: list[str], candidates: list[str]) -> str:
        """See `TableLookup`. Where it is unknown, none does, with a notice."""
        found = row_end_of(names, candidates, self._there)
        if found is not None:
            return found
        if self._there is None:
            self._require_sight()
        self._catalog.on_notice(
            f"{self._name}: dropped from {self._catalog.server.name}, or altered since, so it is "
            f"unknown whether it was system-versioned with {' or '.join(candidates)} as its ROW "
            f"END; logged as a table without versions"
        )
        return ""

    def _require_sight(self, way_on: str = "") -> None:
        """HiddenType unless the account would see all columns of the table if it existed.

        `way_on`: ends the message with another way than the grant and a filter rule.
        """
        catalog = self._catalog
        with server_errors(catalog.server, "reading the grants of"):
            granted = privileges_on(catalog.connection, self._database)
        if not granted & {"SELECT", "ALL PRIVILEGES"}:
            raise HiddenType(
                f"columns of table {self._name} that the server hides or generates, MariaDB's "
                f"UUID, INET4 and INET6, and versions of its rows are not visible without the "
                f"SELECT privilege on {self._database}, and the binlog does not show them: grant "
                f"it, or exclude the table by a filter rule{way_on}"
            )
