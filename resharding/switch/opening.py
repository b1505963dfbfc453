"""What a target gets between the decision and its first write: triggers and counters."""

from collections.abc import Sequence
from dataclasses import dataclass

from databases.connection import server_errors
from event_token.errors import Halt
from resharding.plan.objects import SourceObject, missing_objects, read_objects
from resharding.plan.tables import TableDefinition, definition_problems, read_definitions
from resharding.switch.counters import counters_to_raise, raise_counters
from resharding.switch.shard_writes import ShardWrites
from resharding.switch.triggers import copy_triggers, missing_triggers, trial_problems


@dataclass(frozen=True, slots=True)
class SourceSchema:
    """What the sharded databases of a source hold now."""

    name: str
    tables: list[TableDefinition]
    objects: list[SourceObject]


def read_schema(source: ShardWrites, databases: frozenset[str]) -> SourceSchema:
    """Look at the sharded databases of a source."""
    with server_errors(source.server, "looking at the objects of"):
        tables = read_definitions(source.connection, databases)
        return SourceSchema(source.server.name, tables, read_objects(source.connection, databases))


def opening_problems(
    sources: Sequence[ShardWrites],
    schemas: Sequence[SourceSchema],
    target: ShardWrites,
    databases: frozenset[str],
) -> list[str]:
    """What would be missing on the target, or be rejected by it, once it is open."""
    problems = trial_problems(target, missing_triggers(sources[0], target, databases))
    with server_errors(target.server, "looking at the objects of"):
        there = read_objects(target.connection, databases)
    for schema in schemas:
        problems += [
            f"{target.server.name}: {each.full_name} is on {schema.name} alone: create it "
            f"(`reshard create` printed the statement), or drop it on the source"
            for each in missing_objects(schema.objects, there)
        ]
    try:
        _counters(sources, target, databases)
    except Halt as error:
        problems.append(f"{target.server.name}: {error}")
    return list(dict.fromkeys(problems))


def table_problems(
    schemas: Sequence[SourceSchema], target: ShardWrites, databases: frozenset[str]
) -> list[str]:
    """How the target's tables differ from those of the sources: some DDL reached one side alone."""
    where = target.server.name
    with server_errors(target.server, "looking at the tables of"):
        there = read_definitions(target.connection, databases)
    problems = []
    for schema in schemas:
        problems += definition_problems(there, schema.tables, where)
        names = {table.name for table in there}
        problems += [
            f"{where}: table {table.name} is on {schema.name} alone: create it, or drop it there"
            for table in schema.tables
            if table.name not in names
        ]
    return list(dict.fromkeys(problems))


def is_prepared(
    sources: Sequence[ShardWrites], target: ShardWrites, databases: frozenset[str]
) -> bool:
    """Whether the target has the triggers and counters with which it can be opened."""
    return not (
        missing_triggers(sources[0], target, databases) or _counters(sources, target, databases)
    )


def prepare(sources: Sequence[ShardWrites], target: ShardWrites, databases: frozenset[str]) -> None:
    """Create the triggers of the first source, and raise the counters above those of all."""
    copy_triggers(sources[0], target, databases)
    statements = _counters(sources, target, databases)
    with server_errors(target.server, "setting the counters of"):
        raise_counters(target.connection, statements)


def _counters(
    sources: Sequence[ShardWrites], target: ShardWrites, databases: frozenset[str]
) -> list[str]:
    with server_errors(target.server, "comparing the counters of"):
        return counters_to_raise(
            [source.connection for source in sources],
            target.connection,
            databases,
            target.server.flavor,
        )
