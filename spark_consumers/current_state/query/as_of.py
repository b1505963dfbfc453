"""Reads tables of a target as of a time, all at one frontier. Needs no Spark."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from event_token.errors import UsageError
from spark_consumers.current_state.query.frontiers import Frontiers
from spark_consumers.current_state.query.layout import TablePlace

# What orders the changes; it is of no use to who reads a table.
KEPT = frozenset({"_key", "_home", "_shard", "_seq", "_time_us"})


@dataclass(frozen=True, slots=True)
class TableAsOf:
    """A table as of `frontier_us`: it has all changes before that time, and none from then on."""

    frontier_us: int
    rows: pa.Table


def table_as_of(
    target: str,
    table: str,
    timestamp_us: int,
    storage_options: Mapping[str, str] | None = None,
) -> TableAsOf:
    """Return a table (`database.table`) as it was at the last frontier at or before a time.

    A frontier is where a batch ends, so the rows are exact as of the time that is returned. Tables
    that are read for one time are consistent with each other, over all shards. UsageError: the
    target or the table is not there, or was not there yet.
    """
    target, storage = target.rstrip("/"), dict(storage_options or {})
    database, dot, name = table.partition(".")
    if not dot:
        raise UsageError(f"{table!r} is not database.table")
    frontier = Frontiers(target, storage).before(timestamp_us)
    if frontier is None:
        raise UsageError(f"{target} holds no current state of that time: its frontiers begin later")
    place = TablePlace(target, database, name)
    version = frontier.tables.get(place.name)
    if version is None:
        known = ", ".join(sorted(frontier.tables)) or "none"
        raise UsageError(f"{target} had no table {table} then; it had: {known}")
    read = DeltaTable(place.visible, version=version, storage_options=storage)
    columns = [field.name for field in read.schema().fields if field.name not in KEPT]
    return TableAsOf(frontier.frontier_us, pa.table(read.scan(columns=columns)))
