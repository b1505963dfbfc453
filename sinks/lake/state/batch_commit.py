"""Commits a batch on the driver: the tables one by one, and then the frontier that they reach.

Of each table its history comes first, then the hidden rows, then the visible ones. A batch that is
cut off between two commits is run again: the marks of its tables show what they have.

A table gets other types or names of columns by a rewrite in one commit: a file's values have the
type that the table had when it was written, and not every reader widens them. Such ALTERs are rare
and rewrite the source's table as well. With `--drop-columns` a column that no live shard has any
more is dropped in the same way: no reader needs column mapping, and no file keeps values that could
come back. A frontier has the columns that shards lack; what follows from that is done after it, and
before the next batch, because what tasks stage does not know of it.
"""

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from event_token.errors import Halt, Retry
from sinks.lake.delta.commit import commit
from sinks.lake.delta.log import (
    CLOSED,
    Action,
    TableVersion,
    batch_info,
    commit_path,
    query_mark,
    serialized,
    shard_mark,
)
from sinks.lake.delta.storage import Storage
from sinks.lake.delta.stored_table import (
    FEATURES_PROTOCOL,
    StoredTable,
    add_columns,
    create_table,
    new_table,
    open_table,
    read_file,
    write_file,
)
from sinks.lake.state.frontiers import Frontier, Frontiers, check_kept, left_out_after
from sinks.lake.state.history import FLOOR_MARK
from sinks.lake.state.layout import (
    TablePlace,
    evolved,
    hidden_schema,
    history_schema,
    is_readable_as,
    known_table,
    place_of,
    visible_schema,
)
from sinks.lake.state.options import StateTarget
from sinks.lake.state.task import TableWork
from sinks.resume import PlannedBatch
from sinks.rule.columns import (
    ColumnReport,
    Dropped,
    KnownTable,
    Lacking,
    as_json,
    cleared,
    followed,
    is_before,
    of_json,
    to_drop,
    without,
)
from sinks.rule.homes import HOME, SEQ, SHARD, TIME, Version
from sinks.rule.policy import OnSameKey
from sinks.rule.upserts import as_schema
from sinks.same_keys import SameKey, known_after
from topics.records.table_shape import TableShape

# The number of the frontier after which a table's columns were dropped.
DROPPED_MARK = "shardstream.dropped"


def rewrite(
    url: str,
    options: Mapping[str, str],
    schema: pa.Schema,
    renames: Mapping[str, str],
    *,
    dropped: Sequence[Dropped] = (),
    marks: Mapping[str, int] | None = None,
) -> None:
    """Give a table, if there is one, the columns of a schema. Retry when another commit came first.

    `renames`: columns that get another name (old: new). `dropped`: columns that lose the values of
    rows that are older than these changes. `marks`: of the commit.
    """
    table = open_table(url, options)
    if table is None:
        return
    snapshot = table.snapshot
    wider = new_table(url, options, schema, snapshot.buckets)
    now_ms = int(time.time() * 1000)
    metadata = {**snapshot.metadata, "schemaString": Schema.from_arrow(schema).to_json()}
    actions: list[Action] = [{"metaData": metadata}]
    actions += [
        {"txn": {"appId": mark, "version": number, "lastUpdated": now_ms}}
        for mark, number in (marks or {}).items()
    ]
    actions += _protocol(snapshot.protocol, wider.snapshot.protocol)
    files = (*snapshot.files.values(), *snapshot.closed.values())
    actions += [file.removal(now_ms, data_change=False) for file in files]
    for bucket in range(snapshot.buckets):
        rows = _as(schema, renames, table.read(table.everything([bucket])))
        for column, at in dropped:
            rows = cleared(rows, column, at)
        staged = wider.stage(None, rows, compact=False)
        actions += [file.action(data_change=False) for file in staged.added]
    for file in snapshot.closed.values():
        rows = _as(schema, renames, read_file(table.storage, file.path, table.schema))
        written = write_file(table.storage, *file.bucket, rows, CLOSED)
        actions.append(written.action(data_change=False))
    actions.append({"commitInfo": {"timestamp": now_ms, "operation": "ALTER TABLE"}})
    storage = Storage(url, options)
    if not storage.create(commit_path(snapshot.version + 1), serialized(actions)):
        raise Retry(f"{url}: another program wrote to the table while its columns were changed")


def _protocol(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Action]:
    """Return the action that a table needs whose new types are a feature that it lacks."""
    has = {side: set(stored.get(side) or ()) for side in ("readerFeatures", "writerFeatures")}
    missing = {*wanted["writerFeatures"]} - has["writerFeatures"]
    if not missing:
        return []
    features = {side: sorted(names | missing) for side, names in has.items()}
    return [{"protocol": {**FEATURES_PROTOCOL, **features}}]


def _as(schema: pa.Schema, renames: Mapping[str, str], rows: pa.Table) -> pa.Table:
    names = [renames.get(name, name) for name in rows.column_names]
    return as_schema(rows.rename_columns(names), schema)


@dataclass(frozen=True, slots=True)
class ColumnDrops:
    """The columns that shards lack after the drops that the newest frontier asks for.

    `lacking`: by the tables' places below the target. `visible`: the tables of visible rows that
    the frontier names. `is_rewritten`: whether one of them was rewritten now.
    """

    lacking: Mapping[str, Lacking] = field(default_factory=dict)
    visible: Mapping[TablePlace, StoredTable] = field(default_factory=dict)
    is_rewritten: bool = False

    def versions(self, target: StateTarget) -> dict[str, int]:
        """Return the versions of these tables, which may have been rewritten after the frontier."""
        found = {place.name: table.snapshot.version for place, table in self.visible.items()}
        for place in self.visible:
            hidden = open_table(place.hidden, target.storage)
            if hidden is not None:
                found[place.hidden_name] = hidden.snapshot.version
        return found


def drop_columns(target: StateTarget, newest: Frontier | None) -> ColumnDrops:
    """Drop the columns that no live shard has, and clear those that a shard has added again.

    Retry: another program wrote to a table meanwhile.
    """
    if newest is None or newest.lacking is None or not target.options.drop_columns:
        return ColumnDrops()
    lacking: dict[str, Lacking] = {}
    opened: dict[TablePlace, StoredTable] = {}
    is_rewritten = False
    for name, (lost, again) in _parsed(newest.lacking).items():
        place = place_of(target.path, name)
        lacking[name] = lost
        visible = open_table(place.visible, target.storage)
        if visible is None or place.source in target.options.history:
            continue
        known = known_table(place, visible)
        gone = to_drop(lost, known.shape, newest.position.shards)
        lacking[name] = {c: shards for c, shards in lost.items() if c not in gone}
        if visible.snapshot.marks.get(DROPPED_MARK, 0) < newest.number:
            left = [dropped for dropped in again if dropped[0] not in gone]
            marks = {DROPPED_MARK: newest.number}
            is_rewritten |= _rewritten(target, place, visible, gone, left, marks)
        opened[place] = visible
    return ColumnDrops(lacking, opened, is_rewritten)


def lacking_after(
    target: StateTarget,
    works: Iterable[TableWork],
    before: Mapping[str, Lacking],
    live: Collection[str],
) -> str | None:
    """Return which columns shards lack after a batch, for the frontier; None: none of any table."""
    if not target.options.drop_columns:
        return None
    reports: dict[str, list[ColumnReport]] = {}
    for work in works:
        if work.report:
            reports.setdefault(work.place.name, []).append(work.report)
    found: dict[str, object] = {}
    for name in sorted(before.keys() | reports):
        place = place_of(target.path, name)
        visible = open_table(place.visible, target.storage)
        if visible is None:
            continue
        known = known_table(place, visible)
        now, again = followed(before.get(name, {}), reports.get(name, ()), known, live)
        if now or again:
            listed = [(column, at.shard, at.seq, at.timestamp_us) for column, at in again]
            found[name] = {"lacking": as_json(now), "again": listed}
    return json.dumps(found) if found else None


def _parsed(text: str) -> dict[str, tuple[Lacking, list[Dropped]]]:
    """Return, of each table in a frontier, what shards lack, and what one has added again."""
    return {
        name: (
            of_json(found["lacking"]),
            [
                (column, Version(shard, seq, timestamp_us, None, None))
                for column, shard, seq, timestamp_us in found["again"]
            ],
        )
        for name, found in json.loads(text).items()
    }


def _rewritten(
    target: StateTarget,
    place: TablePlace,
    visible: StoredTable,
    gone: Collection[str],
    left: Sequence[Dropped],
    marks: Mapping[str, int],
) -> bool:
    """Rewrite a table if columns, or values from before changes, are to go; return whether so."""
    if not gone and not left:
        return False
    hidden = open_table(place.hidden, target.storage)
    tables = [table for table in (hidden, visible) if table is not None]
    if not gone and not any(_has_older(table, each) for table in tables for each in left):
        return False
    known = known_table(place, visible)
    schema = visible_schema(without(known, gone))
    # The table of visible rows comes last: it shows whether the other one is done.
    rewrite(place.hidden, target.storage, hidden_schema(schema), {}, dropped=left)
    rewrite(place.visible, target.storage, schema, {}, dropped=left, marks=marks)
    return True


def _has_older(table: StoredTable, dropped: Dropped) -> bool:
    """Tell whether rows have values in a column from before it was dropped."""
    column, at = dropped
    if column not in table.schema.names:
        return False
    for bucket in range(table.snapshot.buckets):
        rows = table.read(table.everything([bucket]), (HOME, SHARD, SEQ, TIME, column))
        older: pa.Array = pc.and_(is_before(rows, at), pc.is_valid(rows[column].combine_chunks()))
        if pc.any(older, min_count=0).as_py():
            return True
    return False


def commit_batch(target: StateTarget, works: Sequence[TableWork], batch: PlannedBatch) -> None:
    """Commit what the tasks of a batch did, unless the target has it.

    TargetConflict: see `frontiers`. Retry: the batch must be run again; nothing of it is lost.
    """
    frontiers = Frontiers(target.path, target.storage, target.origin)
    if frontiers.is_replay(batch):
        return
    by_place: dict[TablePlace, list[TableWork]] = {}
    for work in works:
        by_place.setdefault(work.place, []).append(work)
    newest = frontiers.newest()
    _check_versions(target, by_place, newest)
    check_kept(target.path, newest, target.options)
    drops = drop_columns(target, newest)
    if drops.is_rewritten:  # a batch was cut off between its frontier and this
        raise Retry(f"{target.path}: a column was dropped, and the batch is run again")
    changed = [place for place, of in by_place.items() if not _prepare(target, place, of)]
    if changed:
        names = ", ".join(f"{place.database}.{place.table}" for place in changed)
        raise Retry(
            f"{target.path}: columns of {names} have got another type or name; the tables were "
            f"rewritten, and the batch is run again"
        )
    versions = drops.versions(target)
    rows: dict[str, int] = {}
    for place, of in by_place.items():
        snapshots = _commit_table(place, of, batch, target)
        versions |= {name: snapshot.version for name, snapshot in snapshots.items()}
        rows[place.name] = live_rows(snapshots[place.name])
    lacking = lacking_after(target, works, drops.lacking, batch.end.shards)
    left_out = left_out_after(target.path, newest, target.options)
    same_keys = _same_keys(target, works, newest)
    frontiers.add(batch, versions, rows, same_keys, lacking, left_out=left_out)
    if lacking is not None:
        drop_columns(target, frontiers.newest())
    frontiers.tidy()


def _same_keys(
    target: StateTarget, works: Sequence[TableWork], newest: Frontier | None
) -> tuple[SameKey, ...]:
    if target.options.on_same_key is OnSameKey.NEWEST:
        return ()
    settled = {
        (f"{work.place.database}.{work.place.table}", key): shards
        for work in works
        for key, shards in work.settled
    }
    found = [SameKey(*name, shards) for name, shards in settled.items() if len(shards) > 1]
    return known_after(newest.same_keys if newest else (), settled, found)


def _check_versions(
    target: StateTarget, places: Collection[TablePlace], newest: Frontier | None
) -> None:
    """Halt if a table is at an earlier version than its target: what came since would be lost."""
    for place in places:
        for name, url in ((place.name, place.visible), (place.history_name, place.history)):
            had = newest.tables.get(name) if newest else None
            if had is not None:
                _check_version(url, target, had)


def _check_version(url: str, target: StateTarget, had: int) -> None:
    table = open_table(url, target.storage)
    if table is None or table.snapshot.version < had:
        found = "removed" if table is None else f"restored to version {table.snapshot.version}"
        raise Halt(
            f"{url} was {found}, but the target has its version {had}: rows would be missing. Put "
            f"it back as it was, or start a new target"
        )


def live_rows(snapshot: TableVersion) -> int:
    """Return the number of rows of a table."""
    return sum(file.rows - file.dead for file in snapshot.files.values())


def _prepare(target: StateTarget, place: TablePlace, works: Sequence[TableWork]) -> bool:
    """Give the tables the columns of a batch; return whether what was staged fits them."""
    shapes = [work.shape for work in works if work.shape.columns]
    if not shapes:
        return True
    stored = open_table(place.visible, target.storage)
    known = known_table(place, stored)
    after, lost = evolved(known, shapes, works[0].renames, target.options.on_type_change)
    schema = visible_schema(after)
    tables = _tables(target, place, schema)
    if stored is None:
        _create(target, tables)
        return _fit(shapes, schema)
    if lost or not is_readable_as(stored.schema, schema):
        for url, columns in tables:
            rewrite(url, target.storage, columns, lost)
        return False
    if set(schema.names) - set(stored.schema.names):
        for url, columns in tables:
            add_columns(url, target.storage, columns)
    return _fit(shapes, schema)


def _create(target: StateTarget, tables: Sequence[tuple[str, pa.Schema]]) -> None:
    """Create tables, that of the visible rows last: while it is missing, none has rows."""
    for url, columns in tables:
        left = open_table(url, target.storage)
        if left is not None and left.schema != columns:
            # A batch was cut off here, and the one that begins in its place has other columns.
            rewrite(url, target.storage, columns, {})
        create_table(url, target.storage, columns, target.options.new_buckets)


def _tables(
    target: StateTarget, place: TablePlace, schema: pa.Schema
) -> list[tuple[str, pa.Schema]]:
    """Return the tables of a place and their columns, that of the visible rows last.

    That one shows a batch that is run again what has been done.
    """
    found = [(place.hidden, hidden_schema(schema)), (place.visible, schema)]
    if place.source in target.options.history:
        found.insert(0, (place.history, history_schema(schema)))
    return found


def _fit(shapes: Sequence[TableShape], schema: pa.Schema) -> bool:
    """Tell whether the files of all tasks have the names and types of the table's columns."""
    return all(is_readable_as(visible_schema(KnownTable(shape)), schema) for shape in shapes)


def _commit_table(
    place: TablePlace, works: Sequence[TableWork], batch: PlannedBatch, target: StateTarget
) -> dict[str, TableVersion]:
    """Commit the tables of a place, that of the visible rows last; return their versions by name.

    The history comes first and gets every batch: it needs the other two as they were before. Its
    marks show what it has of a batch, also if another one is run instead.
    """
    hidden_table, table = _opened(place.hidden, target), _opened(place.visible, target)
    tables = {place.hidden_name: hidden_table, place.name: table}
    if place.source in target.options.history:
        tables[place.history_name] = _opened(place.history, target)
    visible = [work.visible for work in works if work.visible is not None]
    if visible:
        marks = {shard_mark(shard): at.seq for shard, at in batch.end.shards.items()}
        marks[query_mark(batch.query_id)] = batch.batch_id
        info = batch_info(batch.batch_id, batch.end)
        history = [work.history for work in works if work.history is not None]
        if history:
            into = tables[place.history_name]
            floor = {FLOOR_MARK: batch.end.frontier_us}
            commit(into, history, _greatest(into.snapshot, marks | floor), info)
        hidden = [work.hidden for work in works if work.hidden is not None]
        if any(each.added or each.deleted or each.rewritten for each in hidden):
            commit(hidden_table, hidden, marks, info)
        commit(table, visible, marks, info)
    return {name: each.snapshot for name, each in tables.items()}


def _greatest(snapshot: TableVersion, marks: Mapping[str, int]) -> dict[str, int]:
    """Return marks that never go back: another query may run a smaller batch than was cut off."""
    return {mark: max(at, snapshot.marks.get(mark, at)) for mark, at in marks.items()}


def _opened(url: str, target: StateTarget) -> StoredTable:
    found = open_table(url, target.storage)
    if found is None:
        raise Halt(f"{url} is not there any more: it was removed while a batch was written to it")
    return found
