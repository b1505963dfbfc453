"""The tables of a reshard as their servers describe them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from databases.sql import quoted, rows
from resharding.apply.routing import Routes
from topics.records.table_shape import Column, ValueKind

# At the end of SHOW CREATE TABLE; not part of the definition.
_COUNTER: Final = re.compile(r" AUTO_INCREMENT=\d+")

# Key types whose values as text do not identify or order rows.
_NO_KEYS: Final = frozenset(("float", "double", "enum", "set", "json", "geometry"))

_KINDS: Final = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int"), ValueKind.INT),
    "bigint": ValueKind.LONG,
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext"), ValueKind.STRING),
    "longtext": ValueKind.STRING,
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob"), ValueKind.BYTES),
    "longblob": ValueKind.BYTES,
}


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column; its type without and with length and attributes."""

    name: str
    data_type: str
    column_type: str

    def as_column(self) -> Column | None:
        """The column as vindexes know it; None for types that no vindex accepts."""
        kind = _KINDS.get(self.data_type)
        if kind is ValueKind.LONG and "unsigned" in self.column_type:
            kind = ValueKind.UNSIGNED_LONG
        return None if kind is None else Column(self.name, kind, self.column_type)


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table on a server. `statement` creates it; `compared` is the part that must match.

    `counter`: its AUTO_INCREMENT column. `unique_keys`: the columns of each, primary key included.
    """

    database: str
    table: str
    statement: str
    engine: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]
    is_empty: bool
    triggers: tuple[str, ...]
    counter: str | None
    unique_keys: tuple[tuple[str, ...], ...]

    @property
    def name(self) -> str:
        """`database.table`."""
        return f"{self.database}.{self.table}"

    @property
    def compared(self) -> str:
        """The statement without the AUTO_INCREMENT counter."""
        return _COUNTER.sub("", self.statement)

    def column(self, name: str) -> TableColumn | None:
        """A column by its name."""
        return next((column for column in self.columns if column.name == name), None)


def read_definitions(connection: Any, databases: Iterable[str]) -> list[TableDefinition]:
    """All base tables of these databases."""
    found = []
    for database in sorted(databases):
        names = rows(
            connection,
            "SELECT table_name, engine FROM information_schema.tables "
            "WHERE table_schema = %s AND table_type = 'BASE TABLE' ORDER BY table_name",
            (database,),
        )
        found += [_definition(connection, database, table, engine) for table, engine in names]
    return found


def _definition(connection: Any, database: str, table: str, engine: str) -> TableDefinition:
    name = f"{quoted(database)}.{quoted(table)}"
    [(_, statement)] = rows(connection, f"SHOW CREATE TABLE {name}")
    columns = rows(
        connection,
        "SELECT column_name, data_type, column_type, extra FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        (database, table),
    )
    indexed = rows(
        connection,
        "SELECT index_name, column_name FROM information_schema.statistics WHERE table_schema = %s "
        "AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index",
        (database, table),
    )
    uniques: dict[str, list[str]] = {}
    for index, column in indexed:
        uniques.setdefault(str(index), []).append(str(column))
    counters = [name for name, *_, extra in columns if "auto_increment" in str(extra).lower()]
    triggers = rows(
        connection,
        "SELECT trigger_name FROM information_schema.triggers "
        "WHERE event_object_schema = %s AND event_object_table = %s",
        (database, table),
    )
    return TableDefinition(
        database,
        table,
        str(statement),
        engine,
        tuple(TableColumn(*column) for *column, _extra in columns),
        tuple(uniques.get("PRIMARY", ())),
        not rows(connection, f"SELECT 1 FROM {name} LIMIT 1"),
        tuple(str(trigger) for (trigger,) in triggers),
        next(iter(counters), None),
        tuple(map(tuple, uniques.values())),
    )


def source_problems(found: Iterable[TableDefinition], routes: Routes, where: str) -> list[str]:
    """Why these tables of a source cannot be resharded. Pure."""
    by_name = {(table.database, table.table): table for table in found}
    problems = [
        f"{where}: table {'.'.join(name)} has a vindex but does not exist"
        for name in sorted(routes.tables.keys() - by_name.keys())
    ]
    for name, table in sorted(by_name.items()):
        route = routes.tables.get(name)
        if route is None:
            problems.append(
                f"{where}: table {table.name} has no vindex: declare one in the settings. A table "
                f"that every shard holds in full (a reference table) belongs in a database without "
                f"sharded tables, which a reshard leaves alone"
            )
            continue
        if table.engine != "InnoDB":
            problems.append(f"{where}: table {table.name} is {table.engine}, not InnoDB")
        if not table.key:
            problems.append(f"{where}: table {table.name} has no primary key")
        problems += [
            f"{where}: table {table.name} has {column.name} {column.column_type} in its primary "
            f"key: a reshard cannot put its rows in order"
            for column in table.columns
            if column.name in table.key and column.data_type in _NO_KEYS
        ]
        sharding = table.column(route.column)
        known = None if sharding is None else sharding.as_column()
        if sharding is None or known is None or known.kind not in route.vindex.takes:
            has = "does not have it" if sharding is None else f"has it as {sharding.column_type}"
            problems.append(
                f"{where}: vindex {route.declared.vindex} of {table.name} is over column "
                f"{route.column}, and the table {has}"
            )
    return problems


def counter_problems(found: Iterable[TableDefinition], routes: Routes, where: str) -> list[str]:
    """The tables whose AUTO_INCREMENT would give one value on several shards. Pure.

    A value is unique within its shard, so every unique key that holds it must hold the sharding
    column too. As sharding column it would send a new row to any shard but the one it is on.
    """
    problems = []
    for table in found:
        route = routes.tables.get((table.database, table.table))
        if route is None or table.counter is None:
            continue
        at_fault = table.counter == route.column or any(
            table.counter in key and route.column not in key for key in table.unique_keys
        )
        if at_fault:
            problems.append(
                f"{where}: table {table.name} takes {table.counter} from AUTO_INCREMENT, and "
                f"several shards would give the same values: let the application assign them, or "
                f"make the key ({route.column}, {table.counter}). Where every server of each shard "
                f"has values of its own (auto_increment_increment, auto_increment_offset), "
                f"--accept-auto-increment takes the table as it is"
            )
    return problems


def target_problems(
    found: Iterable[TableDefinition], wanted: Iterable[TableDefinition], where: str
) -> list[str]:
    """Why a server with these tables cannot become a target. Pure."""
    found = list(found)
    return [
        *(f"{where}: table {table.name} is not empty" for table in found if not table.is_empty),
        *definition_problems(found, wanted, where),
    ]


def definition_problems(
    found: Iterable[TableDefinition], wanted: Iterable[TableDefinition], where: str
) -> list[str]:
    """How these tables of a target differ from those of a source. Pure."""
    problems = []
    wanted_by_name = {(table.database, table.table): table for table in wanted}
    for table in found:
        like = wanted_by_name.get((table.database, table.table))
        if table.triggers:
            problems.append(
                f"{where}: table {table.name} has triggers ({', '.join(table.triggers)}): drop "
                f"them; switch creates those of the source"
            )
        if like is None:
            problems.append(f"{where}: table {table.name} is on no source")
        elif like.compared != table.compared:
            problems.append(
                f"{where}: table {table.name} is not defined as on the source: "
                f"{first_difference(like.compared, table.compared)}"
            )
    return problems


def first_difference(one: str, other: str) -> str:
    """The first pair of lines that differ. Pure."""
    for mine, theirs in zip(one.splitlines(), other.splitlines(), strict=False):
        if mine != theirs:
            return f"{mine.strip()!r} there, {theirs.strip()!r} here"
    return "one of them has more lines"


def databases_statement(connection: Any, database: str) -> str:
    """The statement that creates the database with its character set."""
    [(_, statement)] = rows(connection, f"SHOW CREATE DATABASE {quoted(database)}")
    return str(statement).replace("CREATE DATABASE", "CREATE DATABASE IF NOT EXISTS", 1)
