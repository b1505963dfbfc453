"""Requests of `shardstream copy`: checked against the server, then decided."""

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from databases.catalog import SYSTEM_SCHEMAS, TABLE_KINDS, list_tables
from databases.connection import open_connection
from databases.grants import privileges_on, read_account
from databases.internal_tables import INTERNAL_DATABASE
from event_token.errors import ShardstreamError
from producers.copy.chunk import is_one_condition
from producers.copy.definition import CannotCopy, read_definition, refuse_left_out
from producers.filters.rules import FilterSettings
from producers.replication.stream import server_errors
from producers.settings import ServerSettings, ShardProducerSettings
from topics.progress.copy_topic import (
    CopyAction,
    CopyAnswer,
    CopyRequest,
    CopyState,
    TableCopy,
    with_state,
)

# System databases, and our own; their rows are not logged.
OWN_DATABASES: Final = (*SYSTEM_SCHEMAS, INTERNAL_DATABASE)
Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Inspection:
    """A request, the tables it can be carried out for, and the problems of the others."""

    request: CopyRequest
    tables: tuple[Name, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The copies in their new state, and the answer."""

    copies: tuple[TableCopy, ...]
    answer: CopyAnswer


def inspect(
    server: ServerSettings, settings: ShardProducerSettings, request: CopyRequest
) -> Inspection:
    """Check the tables to copy. A server that does not answer is a problem, not an error."""
    named, problems = _names(request)
    if request.action is not CopyAction.START:
        return Inspection(request, tuple(named), tuple(problems))
    tables: list[Name] = []
    try:
        connection = open_connection(server)
        try:
            with server_errors(server, "reading the tables of"):
                if not request.tables:
                    named = _all_tables(connection, settings)
                    problems += _unseen_tables(connection, settings.filters, named)
                for database, table in named:
                    try:
                        refuse_left_out(settings.filters, database, table)
                        read_definition(connection, settings, database, table)
                        tables.append((database, table))
                    except CannotCopy as error:
                        problems.append(str(error))
        finally:
            connection.close()
    except ShardstreamError as error:
        problems.append(str(error))
    return Inspection(request, tuple(tables), tuple(problems))


def _names(request: CopyRequest) -> tuple[list[Name], list[str]]:
    names: list[Name] = []
    problems = []
    for text in request.tables:
        database, dot, table = text.partition(".")
        if database in OWN_DATABASES:
            problems.append(f"table {text}: system tables and shardstream's own are not copied")
        elif database and dot and table:
            names.append((database, table))
        else:
            problems.append(f"table {text!r}: write it as database.table")
    if request.where and not request.tables:
        problems.append("a condition (where) needs a table that it applies to")
    if not is_one_condition(request.where):
        problems.append(
            f"the condition (where) {request.where!r} is not one expression: its brackets or "
            "quotes are not balanced, or it has a comment or a semicolon"
        )
    return names, problems


def _all_tables(connection: object, settings: ShardProducerSettings) -> list[Name]:
    """All tables that the filter rules include."""
    return [
        entry.name
        for entry in list_tables(connection)
        if entry.kind in TABLE_KINDS
        and entry.database != INTERNAL_DATABASE
        and settings.filters.includes(*entry.name)
    ]


def _unseen_tables(connection: Any, filters: FilterSettings, seen: Collection[Name]) -> list[str]:
    """What "all tables" may lack: the catalog lists those alone that the account may read."""
    account = read_account(connection)
    if account.has_everywhere("SELECT"):
        return []
    wanted = filters.databases()
    whole: list[str] = []
    part: list[str] = []
    for database in sorted({name for name, _ in seen} if wanted is None else wanted):
        granted = privileges_on(connection, database)
        (whole if granted & {"SELECT", "ALL PRIVILEGES"} else part).append(database)
    if wanted is not None and not part:
        return []
    problem = (
        f"the producer's account {account.name} has SELECT on the whole of "
        f"{', '.join(whole) or 'no database'} and on parts of {', '.join(part) or 'no other'}: "
        "tables that it cannot see, if there are any, are not copied. "
        f"GRANT SELECT ON *.* TO {account.name}; or name the tables to copy"
    )
    return [problem]


def outdated(
    copies: Mapping[Name, TableCopy], filters: FilterSettings, now_us: int
) -> list[TableCopy]:
    """The copies made by another filter rule than their tables have now, in state CANCELLED.

    Rows and changes that the old rule excluded are not in the log, so readers that start from such
    a copy would miss them. A new copy follows the new rule. Pure.
    """
    found = []
    for name, copy in copies.items():
        rule = filters.rule_text(*name)
        if copy.state is not CopyState.CANCELLED and copy.rule != rule:
            note = f"copied by another filter rule ({copy.rule or 'none'}): copy it again"
            found.append(with_state(copy, CopyState.CANCELLED, now_us, note))
    return found


def carry_out(
    inspection: Inspection,
    copies: Mapping[Name, TableCopy],
    filters: FilterSettings,
    *,
    begun_us: int,
    now_us: int,
) -> Outcome:
    """Decide. Named tables are changed all or none; without names each that qualifies. Pure."""
    request = inspection.request
    problems = list(inspection.problems)
    changed: list[TableCopy] = []
    tables = inspection.tables
    if not request.tables and request.action is not CopyAction.START:
        tables = tuple(name for name, copy in copies.items() if _applies(request, copy))
    for name in tables:
        copy = copies.get(name)
        if request.action is CopyAction.START:
            if copy is not None and not copy.state.is_over and not _begins_again(request, copy):
                problems.append(f"table {copy.name} is already being copied ({copy.state.value})")
            else:
                rule = filters.rule_text(*name)
                changed.append(_begun(name, request, rule, begun_us, now_us))
        elif copy is None:
            problems.append(f"table {'.'.join(name)} has no copy")
        elif not _applies(request, copy):
            problems.append(f"table {copy.name}: its copy is {copy.state.value}")
        else:
            changed.append(with_state(copy, _STATE_AFTER[request.action], now_us))
    if problems and request.tables:
        changed = []
    names = tuple(copy.name for copy in changed)
    return Outcome(tuple(changed), CopyAnswer(request.id, names, tuple(problems)))


_STATE_AFTER: Final = {
    CopyAction.PAUSE: CopyState.PAUSED,
    CopyAction.RESUME: CopyState.COPYING,
    CopyAction.CANCEL: CopyState.CANCELLED,
}
_APPLIES_TO: Final = {
    CopyAction.PAUSE: {CopyState.COPYING},
    # A failed copy resumes where it stopped, once its cause is fixed.
    CopyAction.RESUME: {CopyState.PAUSED, CopyState.FAILED},
    CopyAction.CANCEL: {CopyState.COPYING, CopyState.PAUSED, CopyState.FAILED},
}


def _applies(request: CopyRequest, copy: TableCopy) -> bool:
    return copy.state in _APPLIES_TO[request.action]


def may_go_on(copy: TableCopy) -> bool:
    """Tell whether a copy goes on after its last key, be it once somebody resumes it."""
    return copy.state in _APPLIES_TO[CopyAction.CANCEL]


def _begins_again(request: CopyRequest, copy: TableCopy) -> bool:
    return copy.state is CopyState.COPYING and copy.begun_seq <= request.after_seq


def begun_again(
    copy: TableCopy, reason: str, *, begun_us: int, begun_seq: int, now_us: int
) -> TableCopy:
    """The copy from its beginning: what it has copied belongs to another table, or definition.

    Readers take it for a new copy: rows come once more, and the copy is complete when this one is.
    One that is paused or has failed stays so, and is resumed at the table's beginning. Pure.
    """
    again = f"begun again: {reason}"
    return TableCopy(
        database=copy.database,
        table=copy.table,
        copy_id=uuid.uuid4().hex,
        state=copy.state,
        begun_us=begun_us,
        updated_us=now_us,
        where=copy.where,
        rule=copy.rule,
        note=copy.note if copy.state is CopyState.FAILED else again,
        begun_seq=begun_seq,
        by=copy.by,
        reason=copy.reason,
        begun_again=again,
    )


def _begun(name: Name, request: CopyRequest, rule: str, begun_us: int, now_us: int) -> TableCopy:
    database, table = name
    return TableCopy(
        database=database,
        table=table,
        copy_id=uuid.uuid4().hex,
        state=CopyState.COPYING,
        begun_us=begun_us,
        updated_us=now_us,
        where=request.where,
        rule=rule,
        by=request.by,
        reason=request.reason,
    )
