"""The tables, columns and keys that a server has now, as information_schema lists them.

MariaDB's system-versioned tables: a binlog does not say that a table is one. Its row events show
two columns TIMESTAMP(6) NOT NULL, and the second one as a part of the primary key, where MariaDB
puts it. The catalog lists these columns only where the table's definition names them.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from databases.sql import rows

# Schemas of the servers themselves, whose tables no application writes.
SYSTEM_SCHEMAS: Final = ("mysql", "information_schema", "performance_schema", "sys")

BASE_TABLE: Final = "BASE TABLE"
SYSTEM_VERSIONED: Final = "SYSTEM VERSIONED"
VIEW: Final = "VIEW"
# Of MariaDB: a table of one row, whose counter a target gets by itself.
SEQUENCE: Final = "SEQUENCE"
# The kinds that hold rows.
TABLE_KINDS: Final = frozenset((BASE_TABLE, SYSTEM_VERSIONED))

# Data types, as the catalog names them: integers by size, text, and bytes.
INTEGERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")
TEXTS: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
BYTE_STRINGS: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")

# The columns of a system-versioned table that names none; they are last.
ROW_START: Final = "row_start"
ROW_END: Final = "row_end"

_TABLES: Final = (
    "SELECT table_schema, table_name, table_type, engine FROM information_schema.tables WHERE "
)
_OF_TABLE: Final = "table_schema = %s AND table_name = %s"
_COLUMNS: Final = (
    "SELECT column_name, data_type, column_type, character_set_name, collation_name, "
    "character_octet_length, numeric_precision, numeric_scale, datetime_precision, is_nullable, "
    "column_key, extra, generation_expression FROM information_schema.columns "
    f"WHERE {_OF_TABLE} ORDER BY ordinal_position"
)
_UNIQUE_KEYS: Final = (
    "SELECT index_name, column_name, sub_part FROM information_schema.statistics "
    f"WHERE {_OF_TABLE} AND non_unique = 0 ORDER BY index_name, seq_in_index"
)
# Bits of InnoDB's foreign keys: on delete and on update, cascade and set null.
_CASCADE_BITS: Final = 1 | 2 | 4 | 8


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table, view or sequence."""

    database: str
    table: str
    kind: str
    engine: str

    @property
    def name(self) -> tuple[str, str]:
        """Database and table."""
        return self.database, self.table


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A column. `data_type` is in lower case and has no length, `column_type` has all attributes.

    `octets`, `precision`, `scale` and `second_digits` are 0 where the type has none; `charset` and
    `collation` are "" then, and `generation` is "" unless the server computes the value.
    """

    name: str
    data_type: str
    column_type: str
    charset: str
    collation: str
    octets: int
    precision: int
    scale: int
    second_digits: int
    is_nullable: bool
    is_in_primary_key: bool
    is_counter: bool
    generation: str


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table with its columns, in their order."""

    entry: CatalogEntry
    columns: tuple[CatalogColumn, ...]

    @property
    def row_end(self) -> str:
        """The column that ends a row version; "" unless the table is system-versioned."""
        if self.entry.kind != SYSTEM_VERSIONED:
            return ""
        return next((c.name for c in self.columns if c.generation == "ROW END"), ROW_END)

    @property
    def names_versioning(self) -> bool:
        """Whether `columns` has those that begin and end row versions, if the table has any."""
        return self.row_end in {"", *(column.name for column in self.columns)}


@dataclass(frozen=True, slots=True)
class KeyPart:
    """A column of a unique key; None: an expression. `is_whole`: not a prefix of the value."""

    column: str | None
    is_whole: bool


@dataclass(frozen=True, slots=True)
class CatalogTrigger:
    """A trigger; `definer` as user@host, `order` among those of its table, timing and event."""

    database: str
    name: str
    table: str
    definer: str
    timing: str
    event: str
    order: str
    body: str
    sql_mode: str


def read_entry(connection: Any, database: str, table: str) -> CatalogEntry | None:
    """A table by its name; None: it does not exist, or the account may not see it."""
    found = _entries(connection, _OF_TABLE, (database, table))
    return found[0] if found else None


def list_tables(connection: Any, databases: Iterable[str] | None = None) -> list[CatalogEntry]:
    """All tables, views and sequences by name: of these databases, or of all but the servers'."""
    names = SYSTEM_SCHEMAS if databases is None else tuple(databases)
    if not names:
        return []
    sign = "NOT IN" if databases is None else "IN"
    marks = ", ".join(["%s"] * len(names))
    return _entries(connection, f"table_schema {sign} ({marks}) ORDER BY 1, 2", names)


def _entries(connection: Any, condition: str, values: Sequence[str]) -> list[CatalogEntry]:
    return [
        CatalogEntry(*map(str, row))
        for row in rows(connection, _TABLES + condition, values)
        if row[2] != "TEMPORARY"
    ]


def estimated_rows(connection: Any, database: str, table: str) -> int | None:
    """The server's estimate of a table's rows; None: it does not exist, or cannot be seen."""
    query = f"SELECT table_rows FROM information_schema.tables WHERE {_OF_TABLE}"
    found = rows(connection, query, (database, table))
    return int(found[0][0] or 0) if found else None


def read_columns(connection: Any, database: str, table: str) -> tuple[CatalogColumn, ...]:
    """The columns of a table in their order; none if it does not exist or cannot be seen."""
    return tuple(_column(*row) for row in rows(connection, _COLUMNS, (database, table)))


def _column(name: Any, data_type: Any, column_type: Any, *more: Any) -> CatalogColumn:
    charset, collation, octets, precision, scale, second_digits = more[:6]
    nullable, key, extra, generation = more[6:]
    return CatalogColumn(
        name=str(name),
        data_type=str(data_type).lower(),
        column_type=str(column_type),
        charset=charset or "",
        collation=collation or "",
        octets=int(octets or 0),
        precision=int(precision or 0),
        scale=int(scale or 0),
        second_digits=int(second_digits or 0),
        is_nullable=nullable == "YES",
        is_in_primary_key=key == "PRI",
        is_counter="auto_increment" in str(extra).lower(),
        generation=str(generation or ""),
    )


def read_table(connection: Any, database: str, table: str) -> CatalogTable | None:
    """A table and its columns; None: it does not exist, or the account may not see it."""
    entry = read_entry(connection, database, table)
    if entry is None:
        return None
    return CatalogTable(entry, read_columns(connection, database, table))


def unique_keys(connection: Any, database: str, table: str) -> dict[str, tuple[KeyPart, ...]]:
    """The unique keys of a table by name, the primary key as PRIMARY."""
    found: dict[str, list[KeyPart]] = {}
    for index, column, length in rows(connection, _UNIQUE_KEYS, (database, table)):
        part = KeyPart(None if column is None else str(column), length is None)
        found.setdefault(str(index), []).append(part)
    return {index: tuple(parts) for index, parts in found.items()}


def columns_of_types(connection: Any, types: Collection[str]) -> list[tuple[str, str, str, str]]:
    """Database, table, name and type of all columns of these data types, views' included."""
    kinds, schemas = (", ".join(["%s"] * len(values)) for values in (types, SYSTEM_SCHEMAS))
    query = (
        "SELECT table_schema, table_name, column_name, column_type FROM information_schema.columns "
        f"WHERE data_type IN ({kinds}) AND table_schema NOT IN ({schemas}) "
        "ORDER BY table_schema, table_name, ordinal_position"
    )
    found = rows(connection, query, (*types, *SYSTEM_SCHEMAS))
    return [(str(d), str(t), str(name), str(column_type)) for d, t, name, column_type in found]


def next_counters(
    connection: Any, databases: Collection[str], *, is_mysql: bool
) -> dict[tuple[str, str], int]:
    """The next value of each table of these databases with an AUTO_INCREMENT column."""
    if is_mysql:
        # It answers from a cache that is up to a day old.
        rows(connection, "SET SESSION information_schema_stats_expiry = 0")
    query = (
        "SELECT t.table_schema, t.table_name, COALESCE(t.auto_increment, 1) "
        "FROM information_schema.tables t JOIN information_schema.columns c "
        "ON c.table_schema = t.table_schema AND c.table_name = t.table_name "
        "WHERE t.table_schema IN ({}) AND c.extra LIKE '%%auto_increment%%'"
    )
    found = _of_databases(connection, query, databases)
    return {(str(database), str(table)): int(value) for database, table, value in found}


def cascading_keys(connection: Any, *, is_mariadb: bool, limit: int) -> list[tuple[str, str, str]]:
    """InnoDB's foreign keys with CASCADE or SET NULL: name, child table, parent table."""
    view = "INNODB_SYS_FOREIGN" if is_mariadb else "INNODB_FOREIGN"
    query = (
        f"SELECT id, for_name, ref_name FROM information_schema.{view} "
        f"WHERE type & {_CASCADE_BITS} <> 0 ORDER BY id LIMIT {limit}"
    )
    return [(str(key), str(child), str(parent)) for key, child, parent in rows(connection, query)]


def list_triggers(connection: Any, databases: Collection[str]) -> list[CatalogTrigger]:
    """The triggers of these databases; those of one table and event in the order of firing."""
    query = (
        "SELECT trigger_schema, trigger_name, event_object_table, definer, action_timing, "
        "event_manipulation, action_order, action_statement, sql_mode "
        "FROM information_schema.triggers WHERE trigger_schema IN ({}) "
        "ORDER BY trigger_schema, event_object_table, action_timing, event_manipulation, "
        "action_order"
    )
    found = _of_databases(connection, query, databases)
    return [CatalogTrigger(*map(str, row)) for row in found]


def list_routines(connection: Any, databases: Collection[str]) -> list[tuple[str, str, str]]:
    """Database, kind (PROCEDURE or FUNCTION) and name of the routines of these databases."""
    query = (
        "SELECT routine_schema, routine_type, routine_name FROM information_schema.routines "
        "WHERE routine_schema IN ({}) ORDER BY 1, 2, 3"
    )
    found = _of_databases(connection, query, databases)
    return [(str(database), str(kind), str(name)) for database, kind, name in found]


def list_events(connection: Any, databases: Collection[str]) -> list[tuple[str, str, bool]]:
    """Database, name, and whether it is enabled, of the events of these databases."""
    query = (
        "SELECT event_schema, event_name, status FROM information_schema.events "
        "WHERE event_schema IN ({}) ORDER BY 1, 2"
    )
    found = _of_databases(connection, query, databases)
    return [(str(database), str(name), status == "ENABLED") for database, name, status in found]


def _of_databases(connection: Any, query: str, databases: Collection[str]) -> list[tuple[Any, ...]]:
    if not databases:
        return []
    return rows(connection, query.format(", ".join(["%s"] * len(databases))), sorted(databases))


def row_end_of(
    names: Sequence[str], candidates: Collection[str], there: CatalogTable | None
) -> str | None:
    """Return the column that ends the row versions of a table version of a binlog. Pure.

    `names`: its columns; `candidates`: those that have the form of such a column. `there`: the
    table now, which may have been altered since. "": it was not versioned. None: it is unknown.
    """
    if there is not None:
        if there.row_end in candidates:
            return there.row_end
        # To drop the versioning is to drop its columns: a plain one has never ended versions.
        plain = {column.name for column in there.columns} - {there.row_end}
        candidates = [name for name in candidates if name not in plain]
    if ROW_END in candidates and tuple(names[-2:]) == (ROW_START, ROW_END):
        return ROW_END
    return None if candidates else ""
