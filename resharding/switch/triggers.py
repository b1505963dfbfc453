"""Triggers, which a target gets only when it starts to serve.

Until then its rows come from the sources, where the triggers have run already.
"""

from databases.sql import quoted
from resharding.switch.shard_writes import ShardWrites


def trigger_names(writes: ShardWrites, databases: frozenset[str]) -> set[tuple[str, str]]:
    """The triggers of these databases, as (database, name)."""
    marks = ", ".join(["%s"] * len(databases))
    query = (
        "SELECT trigger_schema, trigger_name FROM information_schema.triggers "
        f"WHERE trigger_schema IN ({marks})"
    )
    return {(str(d), str(n)) for d, n in writes.query(query, tuple(sorted(databases)))}


def copy_triggers(source: ShardWrites, target: ShardWrites, databases: frozenset[str]) -> None:
    """Create the triggers on the target that only the source has."""
    missing = trigger_names(source, databases) - trigger_names(target, databases)
    for database, name in sorted(missing):
        [row] = source.query(f"SHOW CREATE TRIGGER {quoted(database)}.{quoted(name)}")
        sql_mode, statement, charset, collation = row[1], row[2], row[3], row[4]
        target.query("SET SESSION sql_mode = %s", (sql_mode,))
        target.query(f"SET NAMES {charset} COLLATE {collation}")
        target.query(f"USE {quoted(database)}")
        target.query(str(statement))
        target.query("SET NAMES utf8mb4")
        target.query("SET SESSION sql_mode = DEFAULT")
