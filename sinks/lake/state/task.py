"""What a task of the query does: it reduces its changes, merges them with stored rows, stages both.

A task owns whole buckets of each table. Worker processes outlive tasks and keep their tables, so
that of a table's log only new commits are read, and keys are looked up in memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from event_token.errors import UsageError
from sinks.lake.delta.log import query_mark, shard_mark
from sinks.lake.delta.stored_table import (
    INDEX_MEMORY_BYTES,
    FoundRows,
    IndexMemory,
    StagedFiles,
    StoredTable,
    new_table,
    open_table,
)
from sinks.lake.state.frontiers import Frontiers
from sinks.lake.state.history import stage_history
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
from sinks.rule.batch_statements import BatchStatements
from sinks.rule.columns import NO_REPORT, ColumnReport, column_reports
from sinks.rule.homes import HOME, KEY, SEQ, SHARD, TIME, Version
from sinks.rule.policy import OnPartial
from sinks.rule.statements import Unlogged, stop_at_unlogged
from sinks.rule.task_changes import FollowedTables, TableChanges, changes_of
from sinks.rule.upserts import Flags, KeysBefore, Numbers, StoredRows, merge, removed
from topics.arrow.decoders import TableDecoder
from topics.records.table_shape import TableShape

_ORDER = (HOME, SHARD, SEQ, TIME)


SettledKey = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class TableWork:
    """What a task did for one table.

    `shape`, `renames`: of the batch. `visible`, `hidden`, `history`: what it staged; without
    `visible` the table has the batch at version `version`, or, if that is None, must be rewritten
    with other types or names before the batch can be merged. `settled`: the keys whose rows it
    compared, and the shards of the live ones. `report`: which columns the shards have.
    """

    place: TablePlace
    shape: TableShape
    renames: tuple[tuple[str, str, str], ...] = ()
    visible: StagedFiles | None = None
    hidden: StagedFiles | None = None
    history: StagedFiles | None = None
    version: int | None = None
    settled: tuple[SettledKey, ...] = ()
    report: ColumnReport = NO_REPORT


class TaskTables:
    """The tables of a target in one worker process."""

    def __init__(
        self,
        target: StateTarget,
        on_unlogged: Callable[[Sequence[Unlogged]], None] = stop_at_unlogged,
    ) -> None:
        """`on_unlogged`: see `FollowedTables`."""
        self.target = target
        self.options = target.options
        self.on_unlogged = on_unlogged
        self._open: dict[str, StoredTable] = {}
        self._memory = IndexMemory(INDEX_MEMORY_BYTES)

    def work(
        self, rows: pa.Table, decoder: TableDecoder, batch: tuple[str, int], task: int
    ) -> list[TableWork]:
        """Merge the rows of a task (`sink_query.routed`) and stage the result.

        `batch`: query and batch id. CannotApply, ShapeConflict: see `sinks.rule.task_changes`.
        """
        tables = self._tables(rows)
        names = {(place.database, place.table): place for place in tables}
        fresh = _without_replays(rows, {name: tables[place] for name, place in names.items()})
        known = {name: known_table(place, tables[place]) for name, place in names.items()}
        found = changes_of(
            fresh,
            decoder,
            partitions=self.options.partitions,
            task=task,
            followed=FollowedTables(known, self.options, self.options.history, self.on_unlogged),
        )
        works: dict[TablePlace, TableWork] = {}
        if fresh.num_rows < rows.num_rows:
            works = {place: _done(place, table) for place, table in tables.items()}
        for changes in found:
            work = self._work(changes, batch, task)
            if work is not None:
                works[work.place] = work
        if self.options.drop_columns:
            self._report_columns(rows, decoder, tables, works)
        return [*works.values()]

    def _report_columns(
        self,
        rows: pa.Table,
        decoder: TableDecoder,
        tables: Mapping[TablePlace, StoredTable],
        works: dict[TablePlace, TableWork],
    ) -> None:
        """Add which columns shards have, also by rows that tables have already."""
        statements = BatchStatements.of(rows, self.options.accept_skip)
        for name, report in column_reports(rows, decoder, statements).items():
            place = TablePlace(self.target.path, *name)
            is_there = place in works or place in tables
            if is_there and self.options.follows(name):
                work = works.get(place) or _done(place, tables[place])
                works[place] = replace(work, report=report)

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
        found = self._open.get(url)
        if found is not None:
            found.refresh()
            return found
        found = open_table(url, self.target.storage, self._memory)
        if found is None:
            return None
        if found.snapshot.buckets < self.options.partitions:
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
        on_type_change = self.options.on_type_change
        known = known_table(place, visible)
        after, lost = evolved(known, [changes.shape], changes.renames, on_type_change)
        schema = visible_schema(after)
        work = TableWork(place, changes.shape, changes.renames)
        if visible is not None and (lost or not is_readable_as(visible.schema, schema)):
            return work
        if not changes.has_rows and not changes.removals:
            return None
        hidden = self._table(place.hidden)
        part = (task, self.options.partitions)
        both = _both_tables(
            changes,
            self._prepared(place.visible, visible, schema),
            self._prepared(place.hidden, hidden, hidden_schema(schema)),
            part,
        )
        if changes.versions is not None:
            work = replace(work, history=self._history(place, changes, both, batch, part))
        staged, settled = _merged(changes, both, part, self.options.on_partial)
        skip_hidden = hidden is not None and _has(hidden, batch)
        hidden_rows = None if skip_hidden else staged[1]
        return replace(work, visible=staged[0], hidden=hidden_rows, settled=settled)

    def _history(
        self,
        place: TablePlace,
        changes: TableChanges,
        both: "_BothTables",
        batch: tuple[str, int],
        part: tuple[int, int],
    ) -> StagedFiles | None:
        """Stage what changes in a history, unless it has the batch, as the first of its tables."""
        table = self._table(place.history)
        if table is not None and _has(table, batch):
            return None
        schema = history_schema(both.visible.table.schema)
        prepared = self._prepared(place.history, table, schema)
        visible, hidden = both.visible, both.hidden
        every = visible.rows(visible.every), hidden.rows(hidden.every)
        before = KeysBefore(both.keys, *every)
        tracked = self.options.history[place.source]
        return stage_history(prepared, tracked, changes, before, part)

    def _prepared(self, url: str, table: StoredTable | None, schema: pa.Schema) -> StoredTable:
        if table is None:
            return new_table(url, self.target.storage, schema, self.options.new_buckets)
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
    found: FoundRows
    key_of: Numbers
    removed: Flags

    @property
    def left(self) -> Numbers:
        return np.flatnonzero(~self.removed & (self.key_of >= 0))

    @property
    def every(self) -> Numbers:
        """All of the batch's keys, also those that statements remove."""
        return np.flatnonzero(self.key_of >= 0)

    def rows(self, chosen: Numbers) -> StoredRows:
        return StoredRows(
            self.key_of[chosen],
            self.found.stored.take(pa.array(chosen)),
            lambda some: self.table.read(self.found.where(self._mask(chosen[some]))),
        )

    def gone(self, merged: Numbers) -> FoundRows:
        return self.found.where(self.removed | self._mask(self.left[merged]))

    def _mask(self, indexes: Numbers) -> Flags:
        mask = np.zeros(len(self.key_of), np.bool_)
        mask[indexes] = True
        return mask


@dataclass(frozen=True, slots=True)
class _BothTables:
    """What is stored of the keys of a batch, and of those that its statements remove.

    `uncovered`: keys of hidden rows that are removed.
    """

    keys: pa.Array
    visible: _Stored
    hidden: _Stored
    uncovered: tuple[str, ...] = ()


def _both_tables(
    changes: TableChanges, visible: StoredTable, hidden: StoredTable, part: tuple[int, int]
) -> _BothTables:
    rows = changes.rows if changes.versions is None else changes.versions
    keys = rows[KEY].combine_chunks().unique()
    if not changes.removals:
        return _BothTables(keys, _looked_up(visible, keys), _looked_up(hidden, keys))
    stored = [_all_of(table, changes.removals, part) for table in (visible, hidden)]
    emptied, uncovered = (each.found.stored[KEY].filter(pa.array(each.removed)) for each in stored)
    keys = pa.concat_arrays([keys, emptied.combine_chunks()]).unique()
    first, second = (replace(each, key_of=_key_of(each.found, keys)) for each in stored)
    return _BothTables(keys, first, second, tuple(uncovered.unique().to_pylist()))


def _merged(
    changes: TableChanges, both: _BothTables, part: tuple[int, int], on_partial: OnPartial
) -> tuple[list[StagedFiles], tuple[SettledKey, ...]]:
    visible, hidden = both.visible, both.hidden
    left = visible.rows(visible.left), hidden.rows(hidden.left)
    before = KeysBefore(both.keys, *left)
    name = f"{changes.database}.{changes.table}"
    edits = merge(name, changes.rows, before, hidden.table.schema, on_partial)
    staged = [
        stored.table.stage(stored.gone(edit.gone), edit.added, part=part)
        for stored, edit in ((visible, edits.visible), (hidden, edits.hidden))
    ]
    settled = {**dict.fromkeys(both.uncovered, ()), **edits.settled}
    return staged, tuple(settled.items())


def _looked_up(table: StoredTable, keys: pa.Array) -> _Stored:
    found = table.find(keys)
    return _Stored(table, found, found.change, np.zeros(len(found.change), np.bool_))


def _all_of(table: StoredTable, removals: Sequence[Version], part: tuple[int, int]) -> _Stored:
    task, partitions = part
    found = table.everything(range(task, table.snapshot.buckets, partitions))
    gone = removed(removals, table.read(found, _ORDER)).to_numpy(zero_copy_only=False)
    return _Stored(table, found, found.change, np.asarray(gone))


def _key_of(found: FoundRows, keys: pa.Array) -> Numbers:
    indexes = pc.index_in(found.stored[KEY].combine_chunks(), keys)
    return np.asarray(pc.fill_null(indexes, -1).to_numpy().astype(np.int64))
