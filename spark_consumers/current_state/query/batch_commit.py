"""Commits a batch on the driver: the tables one by one, and then the frontier that they reach.

Of each table its history comes first, then the hidden rows, then the visible ones. A batch that is
cut off between two commits is run again: its tables tell by their marks what they have.
"""

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from event_token.errors import Halt, Retry
from spark_consumers.applying.changes import KnownTable
from spark_consumers.current_state.commit import Entry, commit
from spark_consumers.current_state.create import add_columns, create_table, open_table
from spark_consumers.current_state.history.columns import history_schema
from spark_consumers.current_state.history.staging import FLOOR_MARK
from spark_consumers.current_state.log import Snapshot
from spark_consumers.current_state.query.columns import (
    evolved,
    hidden_schema,
    is_readable_as,
    known_table,
    visible_schema,
)
from spark_consumers.current_state.query.dropping import drop_columns, lacking_after
from spark_consumers.current_state.query.frontiers import Frontier, Frontiers
from spark_consumers.current_state.query.kept_tables import check_kept, left_out_after
from spark_consumers.current_state.query.layout import (
    BATCH_KEY,
    FRONTIER_KEY,
    POSITION_KEY,
    TablePlace,
    query_mark,
    shard_mark,
)
from spark_consumers.current_state.query.rewriting import rewrite
from spark_consumers.current_state.query.task import TableWork, Target
from spark_consumers.current_state.stored_table import StoredTable
from spark_consumers.sink_query.resume import PlannedBatch
from spark_consumers.sink_query.same_keys import OnSameKey, SameKey, known_after
from topics.records.table_shape import TableShape


def commit_batch(target: Target, works: Sequence[TableWork], batch: PlannedBatch) -> None:
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
    histories = {".".join(name) for name in target.histories}
    check_kept(target.path, newest, target.tables, histories)
    held = drop_columns(target, newest)
    if held.is_rewritten:  # a batch was cut off between its frontier and this
        raise Retry(f"{target.path}: a column was dropped, and the batch is run again")
    changed = [place for place, of in by_place.items() if not _prepare(target, place, of)]
    if changed:
        names = ", ".join(f"{place.database}.{place.table}" for place in changed)
        raise Retry(
            f"{target.path}: columns of {names} have got another type or name; the tables were "
            f"rewritten, and the batch is run again"
        )
    versions = held.versions(target)
    rows: dict[str, int] = {}
    for place, of in by_place.items():
        snapshots = _commit_table(place, of, batch, target)
        versions |= {name: snapshot.version for name, snapshot in snapshots.items()}
        rows[place.name] = live_rows(snapshots[place.name])
    lacking = lacking_after(target, works, held.lacking, batch.end.shards)
    left_out = left_out_after(target.path, newest, target.tables)
    same_keys = _same_keys(target, works, newest)
    frontiers.add(batch, versions, rows, same_keys, lacking, left_out=left_out)
    if lacking is not None:
        drop_columns(target, frontiers.newest())
    frontiers.tidy()


def _same_keys(
    target: Target, works: Sequence[TableWork], newest: Frontier | None
) -> tuple[SameKey, ...]:
    """Return the keys that have several live rows after a batch."""
    if target.on_same_key is OnSameKey.NEWEST:
        return ()
    settled = {
        (f"{work.place.database}.{work.place.table}", key): shards
        for work in works
        for key, shards in work.settled
    }
    found = [SameKey(*name, shards) for name, shards in settled.items() if len(shards) > 1]
    return known_after(newest.same_keys if newest else (), settled, found)


def _check_versions(
    target: Target, places: Collection[TablePlace], newest: Frontier | None
) -> None:
    """Halt if a table is at an earlier version than its target: what came since would be lost."""
    for place in places:
        for name, url in ((place.name, place.visible), (place.history_name, place.history)):
            had = newest.tables.get(name) if newest else None
            if had is not None:
                _check_version(url, target, had)


def _check_version(url: str, target: Target, had: int) -> None:
    table = open_table(url, target.storage)
    if table is None or table.snapshot.version < had:
        found = "removed" if table is None else f"restored to version {table.snapshot.version}"
        raise Halt(
            f"{url} was {found}, but the target has its version {had}: rows would be missing. Put "
            f"it back as it was, or start a new target"
        )


def live_rows(snapshot: Snapshot) -> int:
    """Return the number of rows of a table."""
    return sum(file.rows - file.dead for file in snapshot.files.values())


def _prepare(target: Target, place: TablePlace, works: Sequence[TableWork]) -> bool:
    """Give the tables the columns of a batch; tell whether what was staged fits them."""
    shapes = [work.shape for work in works if work.shape.columns]
    if not shapes:
        return True
    stored = open_table(place.visible, target.storage)
    known = KnownTable(TableShape(place.database, place.table, ()))
    if stored is not None:
        known = known_table(place.database, place.table, stored.schema)
    after, lost = evolved(known, shapes, works[0].renames, target.on_type_change)
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


def _create(target: Target, tables: Sequence[tuple[str, pa.Schema]]) -> None:
    """Create tables, that of the visible rows last: while it is missing, none has rows."""
    for url, columns in tables:
        left = open_table(url, target.storage)
        if left is not None and left.schema != columns:
            # A batch was cut off here, and the one that begins in its place has other columns.
            rewrite(url, target.storage, columns, {})
        create_table(
            url,
            target.storage,
            columns,
            target.buckets,
            deletion_vectors=target.deletion_vectors,
        )


def _tables(target: Target, place: TablePlace, schema: pa.Schema) -> list[tuple[str, pa.Schema]]:
    """Return the tables of a place and their columns, that of the visible rows last.

    It is the one by which a batch that is run again tells what has been done.
    """
    found = [(place.hidden, hidden_schema(schema)), (place.visible, schema)]
    if (place.database, place.table) in target.histories:
        found.insert(0, (place.history, history_schema(schema)))
    return found


def _fit(shapes: Sequence[TableShape], schema: pa.Schema) -> bool:
    """Tell whether the files of all tasks have the names and types of the table's columns."""
    return all(is_readable_as(visible_schema(KnownTable(shape)), schema) for shape in shapes)


def _commit_table(
    place: TablePlace, works: Sequence[TableWork], batch: PlannedBatch, target: Target
) -> dict[str, Snapshot]:
    """Commit the tables of a place, that of the visible rows last; return their versions by name.

    The history comes first and is told of every batch: what it needs is in the other two, as they
    were before. Its marks tell what of a batch it has, also if another one is run instead.
    """
    hidden_table, table = _opened(place.hidden, target), _opened(place.visible, target)
    tables = {place.hidden_name: hidden_table, place.name: table}
    if (place.database, place.table) in target.histories:
        tables[place.history_name] = _opened(place.history, target)
    visible = [work.visible for work in works if work.visible is not None]
    if visible:
        marks = {shard_mark(shard): at.seq for shard, at in batch.end.shards.items()}
        marks[query_mark(batch.query_id)] = batch.batch_id
        info = {
            BATCH_KEY: str(batch.batch_id),
            FRONTIER_KEY: str(batch.end.frontier_us),
            POSITION_KEY: batch.end.to_string(),
        }
        history = [work.history for work in works if work.history is not None]
        if history:
            into = tables[place.history_name]
            floor = {FLOOR_MARK: batch.end.frontier_us}
            commit(into, history, Entry(_greatest(into.snapshot, marks | floor), info))
        hidden = [work.hidden for work in works if work.hidden is not None]
        if any(each.added or each.deleted or each.rewritten for each in hidden):
            commit(hidden_table, hidden, Entry(marks, info))
        commit(table, visible, Entry(marks, info))
    return {name: each.snapshot for name, each in tables.items()}


def _greatest(snapshot: Snapshot, marks: Mapping[str, int]) -> dict[str, int]:
    """Return marks that never go back: another query may run a smaller batch than was cut off."""
    return {mark: max(at, snapshot.marks.get(mark, at)) for mark, at in marks.items()}


def _opened(url: str, target: Target) -> StoredTable:
    found = open_table(url, target.storage)
    if found is None:
        raise Halt(f"{url} is not there any more: it was removed while a batch was written to it")
    return found
