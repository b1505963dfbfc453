"""What a target gets between the decision and its first write: triggers and counters."""

from collections.abc import Sequence

from databases.connection import server_errors
from event_token.errors import Halt
from resharding.plan.objects import missing_objects, read_objects
from resharding.switch.counters import counters_to_raise, raise_counters
from resharding.switch.shard_writes import ShardWrites
from resharding.switch.triggers import copy_triggers, missing_triggers, trial_problems


def opening_problems(
    sources: Sequence[ShardWrites], target: ShardWrites, databases: frozenset[str]
) -> list[str]:
    """What would be missing on the target, or be rejected by it, once it is open."""
    problems = trial_problems(target, missing_triggers(sources[0], target, databases))
    with server_errors(target.server, "looking at the objects of"):
        there = read_objects(target.connection, databases)
    for source in sources:
        with server_errors(source.server, "looking at the objects of"):
            here = read_objects(source.connection, databases)
        problems += [
            f"{target.server.name}: {each.full_name} is on {source.server.name} alone: create it "
            f"(`reshard create` printed the statement), or drop it on the source"
            for each in missing_objects(here, there)
        ]
    try:
        _counters(sources, target, databases)
    except Halt as error:
        problems.append(f"{target.server.name}: {error}")
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
