"""Triggers, which a target gets only when it starts to serve.

Until then its rows come from the sources, where the triggers have run already. Whether the target
will accept them is tried before writes are stopped: afterwards there is no way back.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pymysql.err import MySQLError

from databases.connection import error_code, error_text, server_errors
from databases.errors import ServerRefused
from databases.internal_tables import INTERNAL_DATABASE
from databases.sql import quoted
from event_token.errors import Halt
from resharding.server import SESSION_MODE
from resharding.switch.shard_writes import ShardWrites

_TRIAL: Final = f"{INTERNAL_DATABASE}.trigger_trial"
# ER_BINLOG_CREATE_ROUTINE_NEED_SUPER: the server cannot know that only rows are logged.
_NEEDS_SUPER: Final = 1419
_COLUMNS: Final = (
    "trigger_schema, trigger_name, event_object_table, definer, action_timing, event_manipulation, "
    "action_statement, sql_mode"
)


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger as information_schema describes it; `definer` as user@host."""

    database: str
    name: str
    table: str
    definer: str
    timing: str
    event: str
    body: str
    sql_mode: str

    def trial(self) -> str:
        """The statement that creates a trigger like this one on the trial table."""
        user, _, host = self.definer.rpartition("@")
        return (
            f"CREATE DEFINER = {quoted(user)}@{quoted(host)} TRIGGER {_TRIAL} "
            f"{self.timing} {self.event} ON {_TRIAL} FOR EACH ROW {self.body}"
        )


def read_triggers(writes: ShardWrites, databases: frozenset[str]) -> list[Trigger]:
    """The triggers of these databases; those of one table and event in the order that they fire."""
    marks = ", ".join(["%s"] * len(databases))
    query = (
        f"SELECT {_COLUMNS} FROM information_schema.triggers WHERE trigger_schema IN ({marks}) "
        "ORDER BY trigger_schema, event_object_table, action_timing, event_manipulation, "
        "action_order"
    )
    found = writes.query(query, tuple(sorted(databases)))
    return [Trigger(*(str(value) for value in row)) for row in found]


def missing_triggers(
    source: ShardWrites, target: ShardWrites, databases: frozenset[str]
) -> list[Trigger]:
    """The triggers that only the source has."""
    present = {(trigger.database, trigger.name) for trigger in read_triggers(target, databases)}
    wanted = read_triggers(source, databases)
    return [trigger for trigger in wanted if (trigger.database, trigger.name) not in present]


def trial_problems(target: ShardWrites, triggers: Iterable[Trigger]) -> list[str]:
    """The triggers that the target rejects: each is created on an empty copy of its table."""
    problems = []
    for trigger in triggers:
        try:
            with server_errors(target.server, "trying a trigger on"):
                _try(target.connection, trigger)
        except (MySQLError, ServerRefused) as error:
            problems.append(_cannot_create(target, trigger, error))
    return problems


def _try(connection: Any, trigger: Trigger) -> None:
    original = f"{quoted(trigger.database)}.{quoted(trigger.table)}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {INTERNAL_DATABASE}")
        cursor.execute(f"DROP TABLE IF EXISTS {_TRIAL}")
        cursor.execute(f"CREATE TABLE {_TRIAL} LIKE {original}")
        try:
            with _sql_mode(cursor, trigger.sql_mode):
                cursor.execute(trigger.trial())
        finally:
            cursor.execute(f"DROP TABLE {_TRIAL}")


def copy_triggers(source: ShardWrites, target: ShardWrites, databases: frozenset[str]) -> None:
    """Create the triggers on the target that only the source has. Halt when it rejects one."""
    for trigger in missing_triggers(source, target, databases):
        name = f"{quoted(trigger.database)}.{quoted(trigger.name)}"
        [row] = source.query(f"SHOW CREATE TRIGGER {name}")
        sql_mode, statement, charset, collation = row[1], str(row[2]), row[3], row[4]
        try:
            with (
                server_errors(target.server, "creating a trigger on"),
                target.connection.cursor() as cursor,
            ):
                cursor.execute(f"SET NAMES {charset} COLLATE {collation}")
                cursor.execute(f"USE {quoted(trigger.database)}")
                with _sql_mode(cursor, sql_mode):
                    cursor.execute(statement)
                cursor.execute("SET NAMES utf8mb4")
        except (MySQLError, ServerRefused) as error:
            problem = _cannot_create(target, trigger, error)
            raise Halt(f"{problem}. Writes are stopped: fix this and run switch again") from error


@contextmanager
def _sql_mode(cursor: Any, sql_mode: str) -> Iterator[None]:
    cursor.execute("SET SESSION sql_mode = %s", (sql_mode,))
    try:
        yield
    finally:
        cursor.execute("SET SESSION sql_mode = %s", (SESSION_MODE,))


def _cannot_create(target: ShardWrites, trigger: Trigger, error: Exception) -> str:
    text = error_text(error) if isinstance(error, MySQLError) else str(error)
    fix = ""
    if isinstance(error, MySQLError) and error_code(error) == _NEEDS_SUPER:
        fix = ": SET GLOBAL log_bin_trust_function_creators = ON there, or grant SUPER"
    return (
        f"{target.server.name}: trigger {trigger.database}.{trigger.name} cannot be created: "
        f"{text}{fix}"
    )
