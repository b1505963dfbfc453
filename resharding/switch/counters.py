"""What a target gives out by itself, AUTO_INCREMENT and sequences: set above all that was used.

Rows on a target do not tell: the highest values may have been deleted on the source, or belong to
another target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from databases.sql import quoted, rows
from event_token import Flavor
from event_token.errors import Halt
from resharding.plan.objects import SEQUENCE

# MySQL answers from a cache that is up to a day old.
_FRESH: Final = "SET SESSION information_schema_stats_expiry = 0"

Table = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Numbers:
    """A sequence: the next value that it has not given out, and how it goes on."""

    next_value: int
    low: int
    high: int
    start: int
    increment: int
    cycles: bool


def counters_to_raise(
    sources: Sequence[Any], target: Any, databases: frozenset[str], flavor: Flavor
) -> list[str]:
    """The statements that set the target's counters above those of all sources."""
    found = [auto_increments(source, databases, flavor) for source in sources]
    here = auto_increments(target, databases, flavor)
    statements = [
        f"ALTER TABLE {_name(table)} AUTO_INCREMENT = {wanted}"
        for table, value in sorted(here.items())
        if (wanted := max(counters.get(table, 0) for counters in found)) > value
    ]
    if flavor is Flavor.MARIADB:
        given = [sequences(source, databases) for source in sources]
        for name, sequence in sorted(sequences(target, databases).items()):
            statements += sequence_statement(name, sequence, [g[name] for g in given if name in g])
    return statements


def auto_increments(connection: Any, databases: frozenset[str], flavor: Flavor) -> dict[Table, int]:
    """The next value of each table with an AUTO_INCREMENT column."""
    if flavor is Flavor.MYSQL:
        with connection.cursor() as cursor:
            cursor.execute(_FRESH)
    marks = ", ".join(["%s"] * len(databases))
    found = rows(
        connection,
        "SELECT t.table_schema, t.table_name, COALESCE(t.auto_increment, 1) "
        "FROM information_schema.tables t JOIN information_schema.columns c "
        "ON c.table_schema = t.table_schema AND c.table_name = t.table_name "
        f"WHERE t.table_schema IN ({marks}) AND c.extra LIKE '%%auto_increment%%'",
        tuple(sorted(databases)),
    )
    return {(str(database), str(table)): int(value) for database, table, value in found}


def sequences(connection: Any, databases: frozenset[str]) -> dict[Table, Numbers]:
    """The sequences of a MariaDB server."""
    marks = ", ".join(["%s"] * len(databases))
    names = rows(
        connection,
        "SELECT table_schema, table_name FROM information_schema.tables "
        f"WHERE table_type = %s AND table_schema IN ({marks})",
        (SEQUENCE, *sorted(databases)),
    )
    found = {}
    for database, name in names:
        [values] = rows(
            connection,
            "SELECT next_not_cached_value, minimum_value, maximum_value, start_value, increment, "
            f"cycle_option FROM {_name((database, name))}",
        )
        following, low, high, start, increment = map(int, values[:5])
        found[str(database), str(name)] = Numbers(
            following, low, high, start, increment, cycles=bool(values[5])
        )
    return found


def sequence_statement(name: Table, here: Numbers, given: Sequence[Numbers]) -> list[str]:
    """The statement that sets a sequence behind those of the sources, in its own steps. Pure."""
    if not given or here.cycles:
        return []
    step = here.increment or 1
    furthest = (max if step > 0 else min)(sequence.next_value for sequence in given)
    wanted = here.start - (here.start - furthest) // step * step
    if (wanted - here.next_value) * step <= 0:
        return []
    if not here.low <= wanted <= here.high:
        raise Halt(
            f"sequence {'.'.join(name)} on the target ends at {here.high if step > 0 else here.low}"
            f", and the sources have given out all up to {furthest}: let it go on further (ALTER "
            f"SEQUENCE), then run switch again"
        )
    return [f"SELECT SETVAL({_name(name)}, {wanted}, 0)"]


def raise_counters(connection: Any, statements: Sequence[str]) -> None:
    """Execute the statements of `counters_to_raise`."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _name(table: Table) -> str:
    return ".".join(map(quoted, table))
