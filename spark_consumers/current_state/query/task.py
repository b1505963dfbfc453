"""What a task of the query does: it reduces its changes, merges them with stored rows, stages both.

A task owns whole buckets of each table. Worker processes outlive tasks and keep their tables, so
that of a table's log only new commits are read, and keys are looked up in memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from event_token.errors import UsageError
from spark_consumers.applying.batch_statements import BatchStatements
from spark_consumers.applying.changes import (
    HOME,
    KEY,
    NOTHING_TOLD,
    SEQ,
    SHARD,
    TIME,
    KnownTable,
    TableChanges,
    Told,
)
from spark_consumers.applying.on_truncate import OnTruncate
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.applying.removals import removed
from spark_consumers.applying.shard_columns import told_of
from spark_consumers.applying.tables import Removal
from spark_consumers.applying.task_changes import Following, changes_of
from spark_consumers.applying.unlogged import Unlogged, stop_at_unlogged
from spark_consumers.current_state.create import new_table, open_table
from spark_consumers.current_state.history.columns import history_schema
from spark_consumers.current_state.history.staging import stage_history
from spark_consumers.current_state.history.steps import KeysBefore
from spark_consumers.current_state.key_index import IndexMemory
from spark_consumers.current_state.query.columns import (
    evolved,
    hidden_schema,
    is_readable_as,
    known_table,
    visible_schema,
)
from spark_consumers.current_state.query.frontiers import Frontiers
from spark_consumers.current_state.query.layout import TablePlace, place_of, query_mark, shard_mark
from spark_consumers.current_state.query.merging import StoredRows, merge
from spark_consumers.current_state.stored_table import (
    INDEX_MEMORY_BYTES,
    Found,
    Staged,
    StoredTable,
)
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.decoding.on_partial import OnPartial
from spark_consumers.decoding.record_decoder import RecordDecoder
from spark_consumers.sink_query.origin import Origin
from spark_consumers.sink_query.same_keys import OnSameKey
from topics.records.table_shape import TableShape

Flags = npt.NDArray[np.bool_]
Indexes = npt.NDArray[np.int64]
_ORDER = (HOME, SHARD, SEQ, TIME)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a query writes, and how new tables are laid out.

    `buckets` and `partitions` are powers of two; a table has at least as many buckets as the query
    has partitions. `accept_skip`: GTIDs of skipped transactions without which the tables are right.
    `tables`: (database, table) of those that are kept, None: all. `on_type_change`: what follows a
    type that cannot be widened. `on_truncate`: what follows a TRUNCATE or DROP. `histories`:
    (database, table) of those whose history is kept, and the columns whose changes begin a version,
    none for all. `key_scope`: that of the source. `origin`: what the target keeps of the stream.
    `on_same_key`: what follows a key that keeps live rows on several shards.
    `on_partial`: what follows a partial image that meets no stored row. `drop_columns`: columns
    that no shard has any more are dropped, but not where a history is kept.
    """

    path: str
    storage: Mapping[str, str]
    partitions: int
    buckets: int
    deletion_vectors: bool = True
    accept_skip: frozenset[str] = frozenset()
    tables: frozenset[tuple[str, str]] | None = None
    on_type_change: OnTypeChange = OnTypeChange.HALT
    on_truncate: OnTruncate = OnTruncate.APPLY
    histories: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    key_scope: KeyScope = KeyScope.KEYSPACE
    origin: Origin | None = None
    on_same_key: OnSameKey = OnSameKey.STOP
    on_partial: OnPartial = OnPartial.STOP
    drop_columns: bool = False


SettledKey = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class TableWork:
    """What a task did for one table.

    `shape`, `renames`: of the batch. `visible`, `hidden`, `history`: what it staged; without
    `visible` the table has the batch at version `version`, or, if that is None, must be rewritten
    with other types or names before the batch can be merged. `settled`: the keys whose rows it
    compared, and the shards of the live ones. `told`: which columns the shards have.
    """

    place: TablePlace
    shape: TableShape
    renames: tuple[tuple[str, str, str], ...] = ()
    visible: Staged | None = None
    hidden: Staged | None = None
    history: Staged | None = None
    version: int | None = None
    settled: tuple[SettledKey, ...] = ()
    told: Told = NOTHING_TOLD


class TaskTables:
    """The tables of a target in one worker process."""

    def __init__(
        self, target: Target, on_unlogged: Callable[[Sequence[Unlogged]], None] = stop_at_unlogged
    ) -> None:
        """`on_unlogged`: see `Following`."""
        self.target = target
        self.on_unlogged = on_unlogged
        self._open: dict[str, StoredTable] = {}
        self._memory = IndexMemory(INDEX_MEMORY_BYTES)

    def work(
        self, rows: pa.Table, decoder: RecordDecoder, batch: tuple[str, int], task: int
    ) -> list[TableWork]:
        """Merge the rows of a task (`sink_query.frame`) and stage the result.

        `batch`: query and batch id. CannotApply, ShapeConflict: see `applying.task_changes`.
        """
        tables = self._tables(rows)
        names = {(place.database, place.table): place for place in tables}
        fresh = _without_replays(rows, {name: tables[place] for name, place in names.items()})
        known = {name: known_table(*name, tables[place].schema) for name, place in names.items()}
        found = changes_of(
            fresh,
            decoder,
            partitions=self.target.partitions,
            task=task,
            following=Following(
                self.target.tables,
                known,
                self.target.accept_skip,
                self.target.on_type_change,
                self.target.on_truncate,
                self.target.histories,
                self.target.on_partial,
                self.target.drop_columns,
                self.on_unlogged,
            ),
        )
        works: dict[TablePlace, TableWork] = {}
        if fresh.num_rows < rows.num_rows:
            works = {place: _done(place, table) for place, table in tables.items()}
        for changes in found:
            work = self._work(changes, batch, task)
            if work is not None:
                works[work.place] = work
        if self.target.drop_columns:
            self._tell(rows, decoder, tables, works)
        return [*works.values()]

    def _tell(
        self,
        rows: pa.Table,
        decoder: RecordDecoder,
        tables: Mapping[TablePlace, StoredTable],
        works: dict[TablePlace, TableWork],
    ) -> None:
        """Add what a batch tells of columns, also by rows that tables have already."""
        statements = BatchStatements.of(rows, self.target.accept_skip)
        for name, told in told_of(rows, decoder, statements).items():
            place = TablePlace(self.target.path, *name)
            is_there = place in works or place in tables
            if is_there and Following(self.target.tables).follows(name):
                work = works.get(place) or _done(place, tables[place])
                works[place] = replace(work, told=told)

    def _tables(self, rows: pa.Table) -> dict[TablePlace, StoredTable]:
        """Return the tables that rows and statements may concern, as far as the target has them."""
        path = self.target.path
        is_row = pc.equal(rows["type"], "ROW")
        named = rows.filter(is_row).group_by(["database", "table"]).aggregate([])
        places = {TablePlace(path, each["database"], each["table"]) for each in named.to_pylist()}
        if not pc.all(is_row, min_count=0).as_py():
            newest = Frontiers(path, self.target.storage).newest()
            places |= {place_of(path, name) for name in (newest.visible if newest else ())}
        found = {place: self._table(place.visible) for place in sorted(places)}
        return {place: table for place, table in found.items() if table is not None}

    def _table(self, url: str) -> StoredTable | None:
        """Return the newest version of a table, None if there is none."""
        found = self._open.get(url)
        if found is not None:
            found.refresh()
            return found
        found = open_table(url, self.target.storage, self._memory)
        if found is None:
            return None
        if found.snapshot.buckets < self.target.partitions:
            raise UsageError(
                f"{url} has {found.snapshot.buckets} buckets, fewer than the query has "
                f"partitions: set --partitions {found.snapshot.buckets}"
            )
        self._open[url] = found
        return found

    def _work(self, changes: TableChanges, batch: tuple[str, int], task: int) -> TableWork | None:
        place = TablePlace(self.target.path, changes.database, changes.table)
        visible = self._open.get(place.visible)
        if not changes.shape.columns or not (visible or changes.has_rows):
            return None
        if visible is not None and _has(visible, batch):
            return _done(place, visible)
        on_type_change = self.target.on_type_change
        known = KnownTable(TableShape(changes.database, changes.table, ()))
        if visible is not None:
            known = known_table(changes.database, changes.table, visible.schema)
        after, lost = evolved(known, [changes.shape], changes.renames, on_type_change)
        schema = visible_schema(after)
        work = TableWork(place, changes.shape, changes.renames)
        if visible is not None and (lost or not is_readable_as(visible.schema, schema)):
            return work
        if not changes.has_rows and not changes.removals:
            return None
        hidden = self._table(place.hidden)
        part = (task, self.target.partitions)
        concerned = _concerned(
            changes,
            self._prepared(place.visible, visible, schema),
            self._prepared(place.hidden, hidden, hidden_schema(schema)),
            part,
        )
        if changes.versions is not None:
            work = replace(work, history=self._history(place, changes, concerned, batch, part))
        staged, settled = _merged(changes, concerned, part, self.target.on_partial)
        skip_hidden = hidden is not None and _has(hidden, batch)
        hidden_rows = None if skip_hidden else staged[1]
        return replace(work, visible=staged[0], hidden=hidden_rows, settled=settled)

    def _history(
        self,
        place: TablePlace,
        changes: TableChanges,
        concerned: "_Concerned",
        batch: tuple[str, int],
        part: tuple[int, int],
    ) -> Staged | None:
        """Stage what changes in a history, unless it has the batch, as the first of its tables."""
        table = self._table(place.history)
        if table is not None and _has(table, batch):
            return None
        schema = history_schema(concerned.visible.table.schema)
        prepared = self._prepared(place.history, table, schema)
        before = KeysBefore(concerned.keys, concerned.visible.every(), concerned.hidden.every())
        tracked = self.target.histories[place.database, place.table]
        return stage_history(prepared, tracked, changes, before, part)

    def _prepared(self, url: str, table: StoredTable | None, schema: pa.Schema) -> StoredTable:
        if table is None:
            return new_table(url, self.target.storage, schema, self.target.buckets)
        table.schema = schema
        return table


def _has(table: StoredTable, batch: tuple[str, int]) -> bool:
    query, batch_id = batch
    return table.snapshot.marks.get(query_mark(query), -1) >= batch_id


def _done(place: TablePlace, table: StoredTable) -> TableWork:
    shape = TableShape(place.database, place.table, ())
    return TableWork(place, shape, version=table.snapshot.version)


def _without_replays(rows: pa.Table, tables: Mapping[tuple[str, str], StoredTable]) -> pa.Table:
    """Leave out the rows that their table has, by the seqs up to which it has each shard."""
    columns = ["database", "table", "shard"]
    is_row = pc.equal(rows["type"], "ROW")
    for first in rows.filter(is_row).group_by(columns).aggregate([("seq", "min")]).to_pylist():
        table = tables.get((first["database"], first["table"]))
        mark = None if table is None else table.snapshot.marks.get(shard_mark(first["shard"]))
        if mark is None or mark < first["seq_min"]:
            continue
        is_stored = pc.and_(pc.equal(rows["type"], "ROW"), pc.less_equal(rows["seq"], mark))
        for name in columns:
            is_stored = pc.and_(is_stored, pc.equal(rows[name], first[name]))
        rows = rows.filter(pc.invert(pc.fill_null(is_stored, False)))
    return rows


@dataclass(frozen=True, slots=True)
class _Stored:
    """Stored rows that may concern a batch; `removed`: by its statements."""

    table: StoredTable
    found: Found
    key_of: Indexes
    removed: Flags

    @property
    def left(self) -> Indexes:
        """Those of the batch's keys that statements left."""
        return np.flatnonzero(~self.removed & (self.key_of >= 0))

    def rows(self) -> StoredRows:
        """Return those that are left."""
        left = self.left
        return StoredRows(
            self.key_of[left],
            self.found.stored.take(pa.array(left)),
            lambda chosen: self.table.read(self.found.where(self._mask(left[chosen]))),
        )

    def every(self) -> StoredRows:
        """Return all of the batch's keys, also those that statements remove."""
        chosen = np.flatnonzero(self.key_of >= 0)
        return StoredRows(
            self.key_of[chosen],
            self.found.stored.take(pa.array(chosen)),
            lambda some: self.table.read(self.found.where(self._mask(chosen[some]))),
        )

    def gone(self, merged: Indexes) -> Found:
        """Return all that go; `merged`: those of the ones that are left."""
        return self.found.where(self.removed | self._mask(self.left[merged]))

    def _mask(self, indexes: Indexes) -> Flags:
        mask = np.zeros(len(self.key_of), np.bool_)
        mask[indexes] = True
        return mask


@dataclass(frozen=True, slots=True)
class _Concerned:
    """What is stored of the keys of a batch, and of those that its statements remove.

    `uncovered`: keys of hidden rows that are removed.
    """

    keys: pa.Array
    visible: _Stored
    hidden: _Stored
    uncovered: tuple[str, ...] = ()


def _concerned(
    changes: TableChanges, visible: StoredTable, hidden: StoredTable, part: tuple[int, int]
) -> _Concerned:
    rows = changes.rows if changes.versions is None else changes.versions
    keys = rows[KEY].combine_chunks().unique()
    if not changes.removals:
        return _Concerned(keys, _looked_up(visible, keys), _looked_up(hidden, keys))
    both = [_all_of(table, changes.removals, part) for table in (visible, hidden)]
    emptied, uncovered = (each.found.stored[KEY].filter(pa.array(each.removed)) for each in both)
    keys = pa.concat_arrays([keys, emptied.combine_chunks()]).unique()
    first, second = (replace(each, key_of=_key_of(each.found, keys)) for each in both)
    return _Concerned(keys, first, second, tuple(uncovered.unique().to_pylist()))


def _merged(
    changes: TableChanges, concerned: _Concerned, part: tuple[int, int], on_partial: OnPartial
) -> tuple[list[Staged], tuple[SettledKey, ...]]:
    both = (concerned.visible, concerned.hidden)
    name = f"{changes.database}.{changes.table}"
    stored = (both[0].rows(), both[1].rows())
    edits = merge(name, changes.rows, concerned.keys, *stored, on_partial=on_partial)
    staged = [
        stored.table.stage(stored.gone(edit.gone), edit.added(stored.table.schema), part=part)
        for stored, edit in zip(both, (edits.visible, edits.hidden), strict=True)
    ]
    settled = dict.fromkeys(concerned.uncovered, ()) | edits.settled
    return staged, tuple(settled.items())


def _looked_up(table: StoredTable, keys: pa.Array) -> _Stored:
    found = table.find(keys)
    return _Stored(table, found, found.change, np.zeros(len(found.change), np.bool_))


def _all_of(table: StoredTable, removals: Sequence[Removal], part: tuple[int, int]) -> _Stored:
    task, partitions = part
    found = table.everything(range(task, table.snapshot.buckets, partitions))
    gone = removed(removals, table.read(found, _ORDER)).to_numpy(zero_copy_only=False)
    return _Stored(table, found, found.change, np.asarray(gone))


def _key_of(found: Found, keys: pa.Array) -> Indexes:
    indexes = pc.index_in(found.stored[KEY].combine_chunks(), keys)
    return np.asarray(pc.fill_null(indexes, -1).to_numpy().astype(np.int64))
