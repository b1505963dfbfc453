"""Commits a batch on the driver: the tables one by one, and then the frontier that they reach.

Of each table the hidden rows come first. A batch that is cut off between two commits is run again:
its tables tell by their marks what they have.
"""

from collections.abc import Collection, Sequence

import pyarrow as pa

from event_token.errors import Halt, Retry
from spark_consumers.applying.changes import KnownTable
from spark_consumers.current_state.commit import Entry, commit
from spark_consumers.current_state.create import add_columns, create_table, open_table
from spark_consumers.current_state.log import Snapshot
from spark_consumers.current_state.query.columns import (
    evolved,
    hidden_schema,
    is_readable_as,
    known_table,
    visible_schema,
)
from spark_consumers.current_state.query.frontiers import Frontier, Frontiers
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
from topics.records.table_shape import TableShape


def commit_batch(target: Target, works: Sequence[TableWork], batch: PlannedBatch) -> None:
    """Commit what the tasks of a batch did, unless the target has it.

    TargetConflict: see `frontiers`. Retry: the batch must be run again; nothing of it is lost.
    """
    frontiers = Frontiers(target.path, target.storage)
    if frontiers.is_replay(batch):
        return
    by_place: dict[TablePlace, list[TableWork]] = {}
    for work in works:
        by_place.setdefault(work.place, []).append(work)
    _check_versions(target, by_place, frontiers.newest())
    changed = [place for place, of in by_place.items() if not _prepare(target, place, of)]
    if changed:
        names = ", ".join(f"{place.database}.{place.table}" for place in changed)
        raise Retry(
            f"{target.path}: columns of {names} have got another type or name; the tables were "
            f"rewritten, and the batch is run again"
        )
    versions: dict[str, int] = {}
    rows: dict[str, int] = {}
    for place, of in by_place.items():
        hidden, visible = _commit_table(place, of, batch, target)
        versions |= {place.hidden_name: hidden.version, place.name: visible.version}
        rows[place.name] = live_rows(visible)
    frontiers.add(batch, versions, rows)
    frontiers.tidy()


def _check_versions(
    target: Target, places: Collection[TablePlace], newest: Frontier | None
) -> None:
    """Halt if a table is at an earlier version than its target: what came since would be lost."""
    for place in places:
        had = newest.tables.get(place.name) if newest else None
        if had is None:
            continue
        table = open_table(place.visible, target.storage)
        if table is None or table.snapshot.version < had:
            found = "removed" if table is None else f"restored to version {table.snapshot.version}"
            raise Halt(
                f"{place.visible} was {found}, but the target has its version {had}: rows would be "
                f"missing. Put it back as it was, or start a new target"
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
    if stored is None:
        for url, columns in ((place.visible, schema), (place.hidden, hidden_schema(schema))):
            create_table(
                url,
                target.storage,
                columns,
                target.buckets,
                deletion_vectors=target.deletion_vectors,
            )
        return _fit(shapes, schema)
    if lost or not is_readable_as(stored.schema, schema):
        rewrite(place.hidden, target.storage, hidden_schema(schema), lost)
        rewrite(place.visible, target.storage, schema, lost)
        return False
    _add_columns(target, place, stored.schema, schema)
    return _fit(shapes, schema)


def _fit(shapes: Sequence[TableShape], schema: pa.Schema) -> bool:
    """Tell whether the files of all tasks have the names and types of the table's columns."""
    return all(is_readable_as(visible_schema(KnownTable(shape)), schema) for shape in shapes)


def _add_columns(target: Target, place: TablePlace, stored: pa.Schema, wanted: pa.Schema) -> None:
    if set(wanted.names) - set(stored.names):
        add_columns(place.hidden, target.storage, hidden_schema(wanted))
        add_columns(place.visible, target.storage, wanted)


def _commit_table(
    place: TablePlace, works: Sequence[TableWork], batch: PlannedBatch, target: Target
) -> tuple[Snapshot, Snapshot]:
    """Commit both tables; return their versions, that of the hidden rows first."""
    hidden_table, table = _opened(place.hidden, target), _opened(place.visible, target)
    visible = [work.visible for work in works if work.visible is not None]
    if not visible:
        return hidden_table.snapshot, table.snapshot
    marks = {shard_mark(shard): at.seq for shard, at in batch.end.shards.items()}
    marks[query_mark(batch.query_id)] = batch.batch_id
    info = {
        BATCH_KEY: str(batch.batch_id),
        FRONTIER_KEY: str(batch.end.frontier_us),
        POSITION_KEY: batch.end.to_string(),
    }
    hidden = [work.hidden for work in works if work.hidden is not None]
    if any(each.added or each.deleted or each.rewritten for each in hidden):
        commit(hidden_table, hidden, Entry(marks, info))
    commit(table, visible, Entry(marks, info))
    return hidden_table.snapshot, table.snapshot


def _opened(url: str, target: Target) -> StoredTable:
    found = open_table(url, target.storage)
    if found is None:
        raise Halt(f"{url} is not there any more: it was removed while a batch was written to it")
    return found
