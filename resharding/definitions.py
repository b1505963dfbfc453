"""The tables and other objects of a reshard, and what becomes of each in it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from databases.catalog import (
    BASE_TABLE,
    BYTE_STRINGS,
    INTEGERS,
    SEQUENCE,
    TEXTS,
    VIEW,
    CatalogColumn,
    CatalogEntry,
    list_events,
    list_routines,
    list_tables,
    list_triggers,
    read_columns,
    unique_keys,
)
from databases.sql import quoted, raw_rows, rows, text_literal
from event_token import UsageError
from resharding.routing import Routes
from topics.records.table_shape import Column, ValueKind

# On the line of SHOW CREATE TABLE with the options, before any text; not part of the definition.
_COUNTER: Final = re.compile(r"\A([^'\n]*?) AUTO_INCREMENT=\d+")
_OPTIONS: Final = "\n) "

# Key types whose values as text do not identify or order rows.
_NO_KEYS: Final = frozenset(("float", "double", "enum", "set", "json", "geometry"))

_KINDS: Final = {
    **dict.fromkeys(INTEGERS, ValueKind.INT),
    "bigint": ValueKind.LONG,
    **dict.fromkeys(TEXTS, ValueKind.STRING),
    **dict.fromkeys(BYTE_STRINGS, ValueKind.BYTES),
}


def vindex_column(column: CatalogColumn) -> Column | None:
    """The column as vindexes know it; None for types that no vindex accepts."""
    kind = _KINDS.get(column.data_type)
    if kind is ValueKind.LONG and "unsigned" in column.column_type:
        kind = ValueKind.UNSIGNED_LONG
    return None if kind is None else Column(column.name, kind, column.column_type)


@dataclass(frozen=True, slots=True)
class ReshardTable:
    """A table on a server. `statement` creates it; `compared` is the part that must match.

    `counter`: its AUTO_INCREMENT column. `unique_keys`: the columns of each, primary key included.
    """

    database: str
    table: str
    statement: str
    engine: str
    columns: tuple[CatalogColumn, ...]
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
        return _without_counter(self.statement)

    def column(self, name: str) -> CatalogColumn | None:
        """A column by its name."""
        return next((column for column in self.columns if column.name == name), None)


def read_definitions(connection: Any, databases: Iterable[str]) -> list[ReshardTable]:
    """All base tables of these databases."""
    names = sorted(databases)
    triggers: dict[tuple[str, str], list[str]] = {}
    for trigger in list_triggers(connection, names):
        triggers.setdefault((trigger.database, trigger.table), []).append(trigger.name)
    return [
        _definition(connection, entry, tuple(triggers.get(entry.name, ())))
        for entry in list_tables(connection, names)
        if entry.kind == BASE_TABLE
    ]


def _definition(connection: Any, entry: CatalogEntry, triggers: tuple[str, ...]) -> ReshardTable:
    name = f"{quoted(entry.database)}.{quoted(entry.table)}"
    _, statement = _shown(connection, "TABLE", *entry.name)
    columns = read_columns(connection, *entry.name)
    uniques = {
        index: tuple(str(part.column) for part in parts)
        for index, parts in unique_keys(connection, *entry.name).items()
    }
    return ReshardTable(
        *entry.name,
        str(statement),
        entry.engine,
        columns,
        uniques.get("PRIMARY", ()),
        not rows(connection, f"SELECT 1 FROM {name} LIMIT 1"),
        triggers,
        next((column.name for column in columns if column.is_counter), None),
        tuple(uniques.values()),
    )


def shown_definition(connection: Any, database: str, table: str) -> bytes:
    """The table's statement without its counter, of a connection that returns bytes."""
    statement = f"SHOW CREATE TABLE {quoted(database)}.{quoted(table)}"
    [(_, shown)] = rows(connection, statement)
    return _without_counter(shown.decode("latin-1")).encode("latin-1")


def _without_counter(statement: str) -> str:
    # Texts have no line breaks there, so the last line that begins so is the one of options.
    columns, begin, options = statement.rpartition(_OPTIONS)
    return columns + begin + _COUNTER.sub(r"\1", options)


def source_problems(found: Iterable[ReshardTable], routes: Routes, where: str) -> list[str]:
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
        known = None if sharding is None else vindex_column(sharding)
        if sharding is None or known is None or known.kind not in route.vindex.takes:
            has = "does not have it" if sharding is None else f"has it as {sharding.column_type}"
            problems.append(
                f"{where}: vindex {route.declared.vindex} of {table.name} is over column "
                f"{route.column}, and the table {has}"
            )
    return problems


def counter_problems(found: Iterable[ReshardTable], routes: Routes, where: str) -> list[str]:
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
    found: Iterable[ReshardTable], wanted: Iterable[ReshardTable], where: str
) -> list[str]:
    """Why a server with these tables cannot become a target. Pure."""
    found = list(found)
    return [
        *(f"{where}: table {table.name} is not empty" for table in found if not table.is_empty),
        *definition_problems(found, wanted, where),
    ]


def definition_problems(
    found: Iterable[ReshardTable], wanted: Iterable[ReshardTable], where: str
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


TRIGGER: Final = "TRIGGER"
EVENT: Final = "EVENT"

# Where SHOW CREATE has the statement, and where the sql_mode under which it was defined.
_STATEMENT_AT: Final = {VIEW: 1, SEQUENCE: 1, EVENT: 3}
_MODE_AT: Final = 1
_ROUTINE_STATEMENT_AT: Final = 2
# Of a definition that is no text, what is shown before the byte that is none.
_NEAR_BYTES: Final = 40
# Delimiter of statements that may contain semicolons.
_DELIMITER: Final = "//"


class Transfer(StrEnum):
    """What becomes of an object."""

    CARRIED = "carried: create makes it, the applier fills it"
    BY_SWITCH = "carried: switch creates it on the targets"
    BEFORE_SWITCH = "not carried: create it on each target before the switch"
    AFTER_SWITCH = "not carried: create it on the targets after the switch"


_TRANSFERS: Final = {
    BASE_TABLE: Transfer.CARRIED,
    TRIGGER: Transfer.BY_SWITCH,
    EVENT: Transfer.AFTER_SWITCH,
}


@dataclass(frozen=True, slots=True)
class SourceObject:
    """An object of a database; `definition`: SHOW CREATE and its sql_mode, "" for tables.

    `place`: the table, time and event of a trigger with its number in the order of firing.
    """

    kind: str
    database: str
    name: str
    definition: str = ""
    sql_mode: str | None = None
    place: str = ""

    @property
    def full_name(self) -> str:
        """As messages name it."""
        return f"{self.kind.lower()} {self.database}.{self.name}"

    @property
    def transfer(self) -> Transfer:
        """What becomes of it in a reshard that was not refused."""
        return _TRANSFERS.get(self.kind, Transfer.BEFORE_SWITCH)

    def script(self) -> str:
        """What creates the object when it is fed to the servers' own client."""
        lines = [f"DELIMITER {_DELIMITER}", f"USE {quoted(self.database)}{_DELIMITER}"]
        if self.sql_mode is not None:
            lines.append(f"SET SESSION sql_mode = {text_literal(self.sql_mode)}{_DELIMITER}")
        return "\n".join([*lines, f"{self.definition}{_DELIMITER}", "DELIMITER ;"])


def read_objects(connection: Any, databases: Iterable[str]) -> list[SourceObject]:
    """All tables, views, sequences, routines, triggers and events of these databases.

    The account needs SELECT, SHOW VIEW, TRIGGER and EVENT: without them servers show less.
    """
    names = sorted(databases)
    found = [
        _defined(connection, entry.kind, *entry.name)
        if entry.kind in {VIEW, SEQUENCE}
        else SourceObject(entry.kind, *entry.name)
        for entry in sorted(list_tables(connection, names), key=lambda each: each.kind)
    ]
    found += [
        _defined(connection, kind, database, name)
        for database, kind, name in list_routines(connection, names)
    ]
    found += [
        SourceObject(
            TRIGGER,
            trigger.database,
            trigger.name,
            trigger.body,
            trigger.sql_mode,
            f"{trigger.timing} {trigger.event} on {trigger.table}, number {trigger.order} there",
        )
        for trigger in list_triggers(connection, names)
    ]
    found += [
        _defined(connection, EVENT, database, name)
        for database, name, _ in list_events(connection, names)
    ]
    return sorted(found, key=lambda each: each.database)


def _defined(connection: Any, kind: str, database: str, name: str) -> SourceObject:
    shown = _shown(connection, kind, database, name)
    at = _STATEMENT_AT.get(kind, _ROUTINE_STATEMENT_AT)
    has_mode = kind not in {VIEW, SEQUENCE}
    return SourceObject(
        kind, database, name, str(shown[at]), str(shown[_MODE_AT]) if has_mode else None
    )


def _shown(connection: Any, kind: str, database: str, name: str) -> tuple[Any, ...]:
    """What SHOW CREATE says of an object. UsageError by its name if that is no text."""
    try:
        [shown] = raw_rows(connection, f"SHOW CREATE {kind} {quoted(database)}.{quoted(name)}")
        return tuple(part.decode() if isinstance(part, bytes) else part for part in shown)
    except UnicodeDecodeError as error:
        near = error.object[max(0, error.start - _NEAR_BYTES) : error.end]
        raise UsageError(
            f"{connection.host}:{connection.port}: the definition of {kind.lower()} "
            f"{database}.{name} has a byte that is no text, {error.object[error.start]:#04x} after "
            f"{near[:-1].decode(errors='replace')!r}: a reshard cannot carry it as it is. Write it "
            "as an expression, such as UNHEX('E9') or CONVERT(UNHEX('E9') USING latin1)"
        ) from error


def object_problems(found: Mapping[str, Iterable[SourceObject]]) -> list[str]:
    """Why these objects, by the name of their source, cannot be resharded. Pure."""
    problems = []
    triggers: dict[str, tuple[str, SourceObject | None]] = {}
    for number, (where, objects) in enumerate(found.items()):
        here = {o.full_name: o for o in objects if o.kind == TRIGGER}
        problems += [
            f"{where}: {o.database}.{o.name} is a {o.kind} table, of which a reshard cannot carry "
            f"everything: move it to a database without sharded tables, or make it an ordinary one"
            for o in objects
            if o.kind not in {BASE_TABLE, VIEW, SEQUENCE, TRIGGER, EVENT} and not o.definition
        ]
        if number == 0:
            triggers = {name: (where, trigger) for name, trigger in here.items()}
            continue
        for name in sorted(triggers.keys() | here.keys()):
            first_where, trigger = triggers.get(name, (next(iter(found)), None))
            if here.get(name) != trigger:
                problems.append(
                    f"{where}: {name} is not defined as on {first_where}: the targets get only one"
                )
    return problems


def merged_objects(found: Iterable[Iterable[SourceObject]]) -> list[SourceObject]:
    """Each object of some sources once, as the first that has it defines it. Pure."""
    by_name: dict[str, SourceObject] = {}
    for objects in found:
        for each in objects:
            by_name.setdefault(each.full_name, each)
    return list(by_name.values())


def missing_objects(
    source: Iterable[SourceObject], target: Iterable[SourceObject]
) -> list[SourceObject]:
    """What a target must have before the switch, and only the source has. Pure."""
    there = {each.full_name for each in target}
    return [
        each
        for each in source
        if each.transfer is Transfer.BEFORE_SWITCH and each.full_name not in there
    ]
