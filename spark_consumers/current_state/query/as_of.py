"""Reads tables of a target as of a time: at a frontier, or exactly. Needs no Spark."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from deltalake import DeltaTable

from event_token.errors import UsageError
from spark_consumers.applying.changes import HOME, KEY, SEQ, SHARD, TIME
from spark_consumers.applying.evolution import renamed, spelled_as, united
from spark_consumers.current_state.query.columns import hidden_schema, known_table, visible_schema
from spark_consumers.current_state.query.frontiers import Frontier, Frontiers
from spark_consumers.current_state.query.layout import TablePlace, place_of
from spark_consumers.current_state.query.log_window import LogWindow
from spark_consumers.current_state.query.merging import conformed
from spark_consumers.current_state.query.replaying import StoredVersions, replayed

# What orders the changes; it is of no use to who reads a table.
KEPT = frozenset({KEY, HOME, SHARD, SEQ, TIME})


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
    *,
    changelog: str | None = None,
    accept_skip: Collection[str] = (),
) -> TableAsOf:
    """Return a table (`database.table`) as it was at the last frontier at or before a time.

    A frontier is where a batch ends, so the rows are exact as of the time that is returned. Tables
    that are read for one time are consistent with each other, over all shards.

    `changelog`: a change log of the same keyspace and key range, below the same storage. With it
    the rows are exact as of `timestamp_us`: its changes from the frontier to that time are applied
    to the table. `accept_skip`: GTIDs of skipped transactions between the two without which the
    table is right.

    UsageError: the target or the table is not there, or was not there yet, or the change log is of
    another stream, or does not have all changes from the frontier to the time. CannotApply: see
    `replay_changelog`.
    """
    target, storage = target.rstrip("/"), dict(storage_options or {})
    database, dot, name = table.partition(".")
    if not dot:
        raise UsageError(f"{table!r} is not database.table")
    place = TablePlace(target, database, name)
    frontiers = Frontiers(target, storage)
    frontier = frontiers.before(timestamp_us)
    if frontier is None and frontiers.newest() is None:
        raise UsageError(f"{target} holds no current state: name the target of `shardstream state`")
    if frontier is None:
        raise UsageError(f"{target} holds no current state of that time: its frontiers begin later")
    if changelog is None:
        _check_there(frontier, place)
        read = DeltaTable(
            place.visible, version=frontier.tables[place.name], storage_options=storage
        )
        columns = [field.name for field in read.schema().fields if field.name not in KEPT]
        return TableAsOf(frontier.frontier_us, pa.table(read.scan(columns=columns)))
    _check_there(frontiers.newest() or frontier, place)
    window = LogWindow(
        changelog.rstrip("/"), storage, frontier, timestamp_us, frontiers.kept_origin
    )
    window.check(frontiers.first_at(timestamp_us))
    stored = _stored(place, frontier, storage)
    return TableAsOf(timestamp_us, replayed(stored, window, accept_skip))


def _check_there(frontier: Frontier, place: TablePlace) -> None:
    if place.name not in frontier.tables:
        places = (place_of(place.target, there) for there in frontier.visible)
        known = ", ".join(sorted(f"{each.database}.{each.table}" for each in places)) or "none"
        name = f"{place.database}.{place.table}"
        raise UsageError(f"{place.target} had no table {name} then; it had: {known}")


def _stored(place: TablePlace, frontier: Frontier, storage: Mapping[str, str]) -> StoredVersions:
    """Return what the target has of a table at a frontier, with the columns that it has now.

    A column that it has lost since then is there, too.
    """
    newest = DeltaTable(place.visible, storage_options=dict(storage))
    schema = pa.schema(newest.schema().to_arrow())
    known = known_table(place.database, place.table, schema)
    if place.name not in frontier.tables:
        empty = visible_schema(known).empty_table()
        return StoredVersions(known, empty, hidden_schema(empty.schema).empty_table())
    visible = _rows(place.visible, frontier.tables[place.name], storage)
    hidden = _rows(place.hidden, frontier.tables[place.hidden_name], storage)
    then = known_table(place.database, place.table, visible.schema).shape
    now = spelled_as(known.shape, renamed(then, known.renames))
    known = replace(known, shape=united(known.shape, now))
    names = {a.name: b.name for a, b in zip(then.columns, now.columns, strict=True)}
    schema = visible_schema(known)
    return StoredVersions(
        known,
        conformed(_renamed(visible, names), schema),
        conformed(_renamed(hidden, names), hidden_schema(schema)),
    )


def _rows(url: str, version: int, storage: Mapping[str, str]) -> pa.Table:
    table = DeltaTable(url, version=version, storage_options=dict(storage))
    return pa.table(table.scan())


def _renamed(rows: pa.Table, names: Mapping[str, str]) -> pa.Table:
    return rows.rename_columns([names.get(name, name) for name in rows.column_names])
