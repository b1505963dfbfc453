"""What the sharded databases of a source hold, and what becomes of each object in a reshard."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from databases.sql import quoted, rows, text_literal

BASE_TABLE: Final = "BASE TABLE"
VIEW: Final = "VIEW"
# Of MariaDB: a table of one row, whose counter a target gets by itself.
SEQUENCE: Final = "SEQUENCE"
TRIGGER: Final = "TRIGGER"
EVENT: Final = "EVENT"

# Where SHOW CREATE has the statement, and where the sql_mode under which it was defined.
_STATEMENT_AT: Final = {VIEW: 1, SEQUENCE: 1, EVENT: 3}
_MODE_AT: Final = 1
_ROUTINE_STATEMENT_AT: Final = 2
# Delimiter of statements that may contain semicolons.
_DELIMITER: Final = "//"


class Fate(StrEnum):
    """What becomes of an object."""

    CARRIED = "carried: create makes it, the applier fills it"
    BY_SWITCH = "carried: switch creates it on the targets"
    BEFORE_SWITCH = "not carried: create it on each target before the switch"
    AFTER_SWITCH = "not carried: create it on the targets after the switch"


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
    def fate(self) -> Fate:
        """What becomes of it in a reshard that was not refused."""
        match self.kind:
            case "BASE TABLE":
                return Fate.CARRIED
            case "TRIGGER":
                return Fate.BY_SWITCH
            case "EVENT":
                return Fate.AFTER_SWITCH
            case _:
                return Fate.BEFORE_SWITCH

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
    found: list[SourceObject] = []
    for database in sorted(databases):
        found += _tables(connection, database)
        found += _routines(connection, database)
        found += _triggers(connection, database)
        found += [
            _defined(connection, EVENT, database, str(name))
            for (name,) in rows(
                connection,
                "SELECT event_name FROM information_schema.events WHERE event_schema = %s "
                "ORDER BY event_name",
                (database,),
            )
        ]
    return found


def _tables(connection: Any, database: str) -> list[SourceObject]:
    found = rows(
        connection,
        "SELECT table_type, table_name FROM information_schema.tables WHERE table_schema = %s "
        "AND table_type <> 'TEMPORARY' ORDER BY table_type, table_name",
        (database,),
    )
    return [
        _defined(connection, str(kind), database, str(name))
        if kind in {VIEW, SEQUENCE}
        else SourceObject(str(kind), database, str(name))
        for kind, name in found
    ]


def _routines(connection: Any, database: str) -> list[SourceObject]:
    found = rows(
        connection,
        "SELECT routine_type, routine_name FROM information_schema.routines "
        "WHERE routine_schema = %s ORDER BY routine_type, routine_name",
        (database,),
    )
    return [_defined(connection, str(kind), database, str(name)) for kind, name in found]


def _triggers(connection: Any, database: str) -> list[SourceObject]:
    found = rows(
        connection,
        "SELECT trigger_name, event_object_table, action_timing, event_manipulation, action_order, "
        "action_statement, sql_mode FROM information_schema.triggers WHERE trigger_schema = %s "
        "ORDER BY event_object_table, action_timing, event_manipulation, action_order",
        (database,),
    )
    return [
        SourceObject(
            TRIGGER,
            database,
            str(name),
            str(body),
            str(mode),
            f"{timing} {event} on {table}, number {number} there",
        )
        for name, table, timing, event, number, body, mode in found
    ]


def _defined(connection: Any, kind: str, database: str, name: str) -> SourceObject:
    [shown] = rows(connection, f"SHOW CREATE {kind} {quoted(database)}.{quoted(name)}")
    at = _STATEMENT_AT.get(kind, _ROUTINE_STATEMENT_AT)
    has_mode = kind not in {VIEW, SEQUENCE}
    return SourceObject(
        kind, database, name, str(shown[at]), str(shown[_MODE_AT]) if has_mode else None
    )


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
        each for each in source if each.fate is Fate.BEFORE_SWITCH and each.full_name not in there
    ]
