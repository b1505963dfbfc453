"""Names, keys and labels for rows whose table maps have none: asks the catalog, and proves it.

MySQL's `binlog_row_metadata=MINIMAL` leaves them out. The catalog says what they are now; it is
believed where the binlog has no definition of the table between the rows and the answer. What is
proved then holds until the stream reads a definition of the table, and is kept in the copy topic,
in the Kafka transactions of the log: a producer that starts far behind knows the tables of where
it starts. See docs/decisions.md.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from pymysql.constants import ER
from pymysql.err import MySQLError

from databases.catalog import BASE_TABLE, CatalogColumn, CatalogTable, read_table
from databases.connection import error_code
from databases.grants import read_account
from databases.sql import quoted, rows
from event_token import GtidSet, parse_gtid_set
from producers.copy.definition import CannotCopy, column_type, index_parts
from producers.decoder.errors import UnprovedTable
from producers.decoder.events.statements import Definition
from producers.decoder.tables.column_types import ENUM, SET, ColumnType
from producers.decoder.tables.named_columns import NamedColumns
from producers.decoder.values.charset import charset_of
from producers.filters.where import BINARY
from producers.replication.stream import server_errors
from producers.servers.definitions_ahead import DefinitionsAhead
from producers.servers.server_list import OpenServer
from producers.settings import ShardProducerSettings
from topics.progress.copy_topic import ProvedTable, encode, record_key

# Tables at once; the one that was proved first is asked again when its next row comes.
TABLES_MAX: Final = 20_000
_MISSING: Final = frozenset({ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR})
_DENIED: Final = frozenset({ER.TABLEACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR})
_PRIMARY: Final = "PRIMARY"
_WAY_ON: Final = (
    "Begin a new log after these rows with a copy (docs/operations.md, Names by proof), or leave "
    "the table out by a filter rule"
)

_Name = tuple[str, str]


class ProvedTables:
    """The decoder's `TableProofs`: the catalog of the server whose binlog is read."""

    def __init__(
        self, server: OpenServer, settings: ShardProducerSettings, ahead: DefinitionsAhead
    ) -> None:
        """`server`: its connection is shared with other queries, and is in no transaction."""
        self._server = server
        self._settings = settings
        self._ahead = ahead
        self._tables: dict[_Name, ProvedTable] = {}
        self._changed: set[_Name] = set()
        self._skips = 0
        self._ids: dict[str, int] = {}  # of collations, by name

    def __len__(self) -> int:
        """How many tables are proved now."""
        return len(self._tables)

    def begin(self, kept: Mapping[_Name, ProvedTable], skips: int, count: int | None) -> None:
        """Go on with what the topic has, which was proved where the log ends.

        `skips`: the SKIP records of the log: definitions may be among what was passed. `count`: of
        the tables, by the log's last progress record. None: the log is new, or its last producer
        did not prove tables. What does not belong to this log is removed from the topic.
        """
        self._skips = skips
        found = {name: each for name, each in kept.items() if each.skips == skips}
        if count == len(kept):
            self._tables = found
        self._changed = set(kept) - set(self._tables)

    def records(self) -> list[tuple[bytes, bytes | None]]:
        """Keys and values for the copy topic: what has changed since the last call."""
        changed, self._changed = self._changed, set()
        found: list[tuple[bytes, bytes | None]] = []
        for name in sorted(changed):
            table = self._tables.get(name)
            value = None if table is None else encode(table)
            found.append((record_key(ProvedTable(*name)), value))
        return found

    def defined(self, definition: Definition) -> None:
        """See `TableProofs`."""
        redefined = definition.redefined()
        for name in [name for name in self._tables if redefined.includes(*name)]:
            del self._tables[name]
            self._changed.add(name)

    def describe(
        self, database: str, table: str, read: Callable[[], GtidSet], *, is_new: bool
    ) -> NamedColumns:
        """See `TableProofs`."""
        name = database, table
        if is_new or name not in self._tables:
            proved = self._prove(database, table, read())
            self._tables.pop(name, None)
            if len(self._tables) >= TABLES_MAX:
                oldest = next(iter(self._tables))
                del self._tables[oldest]
                self._changed.add(oldest)
            self._tables[name] = proved
            self._changed.add(name)
        return _named(self._tables[name])

    def _prove(self, database: str, table: str, read: GtidSet) -> ProvedTable:
        server, name = self._server, f"{database}.{table}"
        with server_errors(server.settings, "asking for the columns of a table of"):
            try:
                with self._ahead.locked(database, table):
                    there = read_table(server.connection, database, table)
                    parts = index_parts(server.connection, database, table)
                    executed = server.family.moment(server.connection).executed
            except MySQLError as error:
                if error_code(error) in _DENIED:
                    account = read_account(server.connection).name
                    raise _unproved(
                        name,
                        f"the producer's account may not read its columns: GRANT SELECT ON "
                        f"{quoted(database)}.* TO {account};",
                    ) from error
                if error_code(error) not in _MISSING:
                    raise
                raise _unproved(
                    name, f"the table is not on {server.name} now. {_WAY_ON}"
                ) from error
        found = self._ahead.first(
            read,
            parse_gtid_set(executed, server.family.flavor),
            lambda each: each is None or each.redefined().includes(database, table),
        )
        if found is not None:
            gtid, definition = found
            kind = (
                "a statement that is too long to read" if definition is None else definition.kind()
            )
            raise _unproved(
                name,
                f"{server.name} has executed {kind} since ({gtid}), so its catalog does not tell "
                f"what they were called then. {_WAY_ON}",
            )
        with server_errors(server.settings, "asking for the collations of"):
            return self._described(name, there, parts)

    def _described(
        self, name: str, there: CatalogTable | None, parts: list[dict[str, object]]
    ) -> ProvedTable:
        if there is None or ".".join(there.entry.name) != name or there.entry.kind != BASE_TABLE:
            raise _unproved(name, f"{self._server.name} has no table of that very name. {_WAY_ON}")
        try:
            columns = [self._column(name, i, column) for i, column in enumerate(there.columns)]
            key = logged_key([column.name for column in columns], parts)
        except (CannotCopy, KeyError, ValueError) as error:
            raise _unproved(name, f"what the catalog shows is not understood: {error}") from error
        return ProvedTable(
            *there.entry.name,
            skips=self._skips,
            proved_us=time.time_ns() // 1000,
            columns=tuple(_fields(column) for column in columns),
            key=tuple(key),
        )

    def _column(self, table: str, index: int, there: CatalogColumn) -> ColumnType:
        column = column_type(table, self._settings, index, there)
        if column.is_text(is_mariadb=False) or column.type_code in {ENUM, SET}:
            column.collation = self._collation_ids()[there.collation or BINARY]
            column.charset = charset_of(column.collation)
        return column

    def _collation_ids(self) -> dict[str, int]:
        if not self._ids:
            query = "SELECT collation_name, id FROM information_schema.collations"
            found = rows(self._server.connection, query)
            self._ids = {str(name): int(number) for name, number in found}
        return self._ids


def _unproved(name: str, why: str) -> UnprovedTable:
    return UnprovedTable(
        f"table {name}: its rows have no names (binlog_row_metadata is not FULL), and {why}"
    )


def logged_key(columns: list[str], parts: list[dict[str, object]]) -> list[int]:
    """The columns of the key that a full table map has: the primary key, or the first unique one.

    `parts`: the rows of SHOW INDEX, in its order. Without a primary key, MySQL takes the first
    unique key of whole columns without NULL for it. Pure; ValueError where a part is an expression.
    """
    indexes: dict[object, list[dict[str, object]]] = {}
    for part in parts:
        if not int(str(part["non_unique"])):
            indexes.setdefault(part["key_name"], []).append(part)
    for index, members in indexes.items():
        is_whole = all(p["sub_part"] is None and p["null"] != "YES" for p in members)
        if index == _PRIMARY or is_whole:
            if any(p["column_name"] is None for p in members):
                raise ValueError(f"its unique key {index} has an expression that is never NULL")
            return [columns.index(str(p["column_name"])) for p in members]
    return []


def _fields(column: ColumnType) -> tuple[object, ...]:
    """A column as the topic has it."""
    return (
        column.type_code,
        column.meta_0,
        column.meta_1,
        column.name,
        column.unsigned,
        column.charset,
        column.collation,
        column.nullable,
        column.labels,
        column.geometry,
        column.dimension,
    )


def _named(table: ProvedTable) -> NamedColumns:
    columns = []
    for index, fields in enumerate(table.columns):
        code, meta_0, meta_1, name, unsigned, charset, collation, nullable, labels, *last = fields
        column = ColumnType(index, code)
        column.meta_0, column.meta_1, column.name, column.unsigned = meta_0, meta_1, name, unsigned
        column.charset, column.collation, column.nullable = charset, collation, nullable
        column.labels = list(labels)
        column.geometry, column.dimension = last
        columns.append(column)
    return NamedColumns(columns, list(table.key))
