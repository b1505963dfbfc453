"""The history of a table: every version of its rows, and when it was visible.

A task turns a batch into steps, moments after which other rows may be visible, and these into
versions that end and begin. Steps that leave a row as it was begin no version. A version has the
time of the change that made it visible, but never one before the frontier up to which the history
has the changes: a row that arrives late takes effect where the history ended then, so versions of a
key never overlap and ended ones never change.

No batch reads or marks the files of closed rows. A task adds one file per batch. Small ones are
joined as part of a batch, each row as often as the size of a full file has digits; full ones stay.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from event_token.errors import UsageError
from sinks.lake.delta.commit import commit
from sinks.lake.delta.log import CLOSED, SHARD_MARK, DataFile
from sinks.lake.delta.stored_table import (
    FILES_OF_A_SIZE_MAX,
    StagedFiles,
    StoredTable,
    create_table,
    is_same,
    open_table,
    read_file,
    write_file,
)
from sinks.lake.state.layout import (
    FROM,
    FROM_TOKEN,
    TO,
    TablePlace,
    history_schema,
    own_columns,
)
from sinks.lake.state.options import StateTarget
from sinks.rule.homes import (
    DELETED,
    KEY,
    META,
    OP,
    SEQ,
    SHARD,
    TIME,
    TOKEN,
    Version,
    apply_change,
    in_order,
    removes,
    version_of,
    visible_of,
)
from sinks.rule.policy import table_name
from sinks.rule.task_changes import TableChanges
from sinks.rule.upserts import (
    Flags,
    KeysBefore,
    Layers,
    Numbers,
    Overlay,
    VersionsOfKeys,
    as_schema,
    flags_of,
    is_doubtful,
    laid_over,
    merged_order,
)

# Files of this size are full. As many smaller ones as are joined fit a worker's memory.
FULL_BYTES = 16 * 1024 * 1024


def with_closed(
    table: StoredTable, staged: StagedFiles, rows: pa.Table, part: tuple[int, int]
) -> StagedFiles:
    """Add closed rows to what a task staged. `part`: (this task, number of tasks)."""
    if not rows.num_rows:
        return staged
    due = due_closed(table.snapshot.closed.values(), part)
    parts = [read_file(table.storage, file.path, table.schema) for file in due]
    joined = pa.concat_tables([*parts, as_schema(rows, table.schema)])
    order = pc.sort_indices(joined, [(KEY, "ascending"), (FROM, "ascending")])
    file = write_file(table.storage, *part, joined.take(order), CLOSED)
    rewritten = {**staged.rewritten, **dict.fromkeys((f.path for f in due), 0)}
    return replace(staged, added=(*staged.added, file), rewritten=rewritten, data_change=True)


def due_closed(files: Iterable[DataFile], part: tuple[int, int]) -> list[DataFile]:
    """Return the files of a task that are joined into one: some of about the same size."""
    sizes: Mapping[int, list[DataFile]] = defaultdict(list)
    for file in files:
        if file.bucket == part and file.size < FULL_BYTES:
            sizes[int(math.log(max(file.size, 1), FILES_OF_A_SIZE_MAX))].append(file)
    full = [found for _, found in sorted(sizes.items()) if len(found) >= FILES_OF_A_SIZE_MAX]
    return full[0] if full else []


_STATEMENT = "DDL"


@dataclass(frozen=True, slots=True)
class Steps:
    """Moments after which other rows may be visible, in merged order within each key.

    `values`: rows with the table's own columns. One entry per step have: `key`, an index; `row`,
    the visible row, an index into `values`, -1: none; `time_us`, `token` and `op`, of the change.
    """

    values: pa.Table
    key: Numbers
    row: Numbers
    time_us: Numbers
    token: pa.Array
    op: pa.Array


@dataclass(frozen=True, slots=True)
class _Step:
    """What a change leaves of its key: the visible row."""

    key: int
    row: Layers
    time_us: int
    token: str | None
    op: str


def visible_steps(
    changes: TableChanges, before: KeysBefore, done: Mapping[str, int], own: pa.Schema
) -> Steps:
    """Return the steps of a batch that a history lacks.

    `done`: the last seq of each shard that the history has. `own`: the table's own columns.
    CannotApply: see `sinks.rule.homes.no_stored_row`.
    """
    batch = _Batch(changes, before.keys, done)
    walked = batch.walked(before)
    all_of = VersionsOfKeys(batch.rows, before, walked, own)
    walk = _Walk(batch, all_of)
    found = [step for key in np.flatnonzero(walked) for step in walk.steps(int(key))]
    layered = sorted({step.row for step in found if len(step.row) > 1})
    numbers = {layers: all_of.rows.num_rows + i for i, layers in enumerate(layered)}
    shown = [(s, numbers.get(s.row, s.row[0]) if s.row else -1) for s in found]
    values = pa.concat_tables([all_of.rows, laid_over(all_of.rows, layered, all_of.absent)])
    return _joined(values.combine_chunks(), batch, batch.plain(walked), shown)


class _Batch:
    """The changes of a batch, sorted by key and then in merged order."""

    def __init__(self, changes: TableChanges, keys: pa.Array, done: Mapping[str, int]) -> None:
        if changes.versions is None:
            raise ValueError("a history needs the versions of a batch")
        self.name = f"{changes.database}.{changes.table}"
        self.removals = changes.removals
        self.keys = keys
        self.done = done
        rows = changes.versions.combine_chunks()
        key_of = pc.index_in(rows[KEY].combine_chunks(), keys).to_numpy().astype(np.int64)
        order = merged_order(rows, key_of)
        self.rows = rows.take(pa.array(order))
        self.key_of = key_of[order]
        self.starts = np.searchsorted(self.key_of, np.arange(len(keys) + 1))

    def walked(self, before: KeysBefore) -> Flags:
        """Tell of each key whether it must be followed step by step."""
        found = before.has_hidden | bool(self.removals)
        first = self.starts[self.key_of]
        found[self.key_of[is_doubtful(self.rows, first)]] = True
        is_first = first == np.arange(len(first))
        key_of = self.key_of[is_first]
        found[key_of[before.is_contested(self.rows.filter(pa.array(is_first)), key_of)]] = True
        return found

    def plain(self, walked: Flags) -> Numbers:
        """Return the changes of the other keys that the history lacks."""
        shards = pc.dictionary_encode(self.rows[SHARD].combine_chunks())
        last = np.array([self.done.get(s, -1) for s in shards.dictionary.to_pylist()], np.int64)
        is_new = self.rows[SEQ].to_numpy() > last[shards.indices.to_numpy()]
        return np.flatnonzero(is_new & ~walked[self.key_of])


class _Walk:
    """Follows keys one by one. A version's row is its layers."""

    def __init__(self, batch: _Batch, all_of: VersionsOfKeys) -> None:
        self._batch = batch
        self._stored = all_of.stored

    def steps(self, key: int) -> Iterator[_Step]:
        """Yield what the changes of a key leave, one by one, as far as the history lacks them."""
        kept: list[Version] = []
        for version in in_order(each.version for each in self._stored.get(key, ())):
            apply_change(kept, version)
        overlay = Overlay(self._batch.name, self._batch.keys[key].as_py())
        events = [*self._changes(key), *((at, True, _STATEMENT) for at in self._batch.removals)]
        events.sort(key=lambda event: event[0].order)
        # An UPDATE that moves a row leaves two versions.
        for _, grouped in groupby(events, key=lambda event: event[0].order):
            group = list(grouped)
            for version, is_removal, _ in group:
                if is_removal:
                    kept = [each for each in kept if not removes(version, each)]
                else:
                    apply_change(kept, version, overlay)
            at, _, op = group[-1]
            if at.seq > self._batch.done.get(at.shard, -1):
                visible = visible_of(in_order(kept)[::-1])
                row = () if visible is None else cast("Layers", visible.row)
                yield _Step(key, row, at.timestamp_us, at.token, op)

    def _changes(self, key: int) -> Iterator[tuple[Version, bool, str]]:
        start, end = self._batch.starts[key], self._batch.starts[key + 1]
        rows = self._batch.rows.slice(start, end - start).select([*META.names, OP]).to_pylist()
        for number, row in enumerate(rows, int(start)):
            yield version_of(row, number), False, row[OP]


def _joined(
    values: pa.Table, batch: _Batch, plain: Numbers, walked: Sequence[tuple[_Step, int]]
) -> Steps:
    """Return the steps of all keys, by key. `walked`: steps, and the row that is visible then."""
    rows = batch.rows.take(pa.array(plain))
    found = [(step.key, row, step.time_us) for step, row in walked]
    keys, shown, times = np.array(found, np.int64).reshape(-1, 3).T
    key = np.concatenate([batch.key_of[plain], keys])
    row = np.concatenate([np.where(flags_of(rows[DELETED]), -1, plain), shown])
    time_us = np.concatenate([rows[TIME].to_numpy(), times])
    order = np.argsort(key, kind="stable")
    taken = pa.array(order)
    tokens = pa.array([step.token for step, _ in walked], pa.string())
    ops = pa.array([step.op for step, _ in walked], pa.string())
    return Steps(
        values,
        key[order],
        row[order],
        time_us[order],
        pa.concat_arrays([rows[TOKEN].combine_chunks(), tokens]).take(taken),
        pa.concat_arrays([rows[OP].combine_chunks(), ops]).take(taken),
    )


def edited(
    steps: Steps,
    keys: pa.Array,
    stored: tuple[pa.Table, Numbers],
    floor_us: int,
    tracked: Collection[str],
) -> tuple[Numbers, pa.Table, pa.Table]:
    """Return the open rows that go, by index, and the rows that are added: open ones, closed ones.

    `stored`: the open rows of the steps' keys, and the key of each. `tracked`: columns whose
    changes begin a version; a change of others is written into the version that is open.
    """
    schema = stored[0].schema
    entries = _Entries.of(steps, *stored, floor_us)
    first, last = entries.versions(tracked)
    has_next = np.append(entries.key[first[1:]] == entries.key[first[:-1]], [False])[: len(first)]
    ends = np.append(entries.from_us[first[1:]], [0])[: len(first)]
    is_live = entries.row[last] >= 0
    is_stored = (entries.stored[first] >= 0) & is_live
    is_kept = is_stored & ~has_next & entries.are_same(first, last)
    gone = entries.stored[first[is_stored & ~is_kept]]
    written = is_live & ~is_kept
    begin = pa.array(first[written])
    kept = {
        KEY: keys.take(pa.array(entries.key[first[written]])),
        FROM: pa.array(entries.from_us[first[written]]),
        TO: pa.array(ends[written], mask=~has_next[written]),
        FROM_TOKEN: entries.token.take(begin),
        OP: entries.op.take(begin),
    }
    rows = entries.values.take(pa.array(entries.row[last[written]]))
    columns = [kept[name] if name in kept else rows[name] for name in schema.names]
    found = pa.table(columns, schema=schema)
    is_open = pc.is_null(found[TO])
    return np.sort(gone), found.filter(is_open), found.filter(pc.invert(is_open))


@dataclass(frozen=True, slots=True)
class _Entries:
    """What each key shows: the open row that is stored, or none, and then its steps."""

    values: pa.Table
    key: Numbers
    row: Numbers
    from_us: Numbers
    token: pa.Array
    op: pa.Array
    # The index of the open row; -1 for a step.
    stored: Numbers

    @classmethod
    def of(cls, steps: Steps, rows: pa.Table, key_of: Numbers, floor_us: int) -> "_Entries":
        keys = np.unique(steps.key)
        opened = np.full(int(keys.max(initial=-1)) + 1, -1, np.int64)
        known = key_of < len(opened)
        opened[key_of[known]] = np.flatnonzero(known)
        at = opened[keys]
        before = pa.array(at, mask=at < 0)
        own = own_columns(rows.schema)
        times = pc.fill_null(rows[FROM].combine_chunks().take(before), 0).to_numpy()
        from_us = np.concatenate([times, np.maximum(steps.time_us, floor_us)])
        key = np.concatenate([keys, steps.key])
        order = np.argsort(key, kind="stable")
        taken = pa.array(order)
        offset = steps.values.num_rows
        row = np.concatenate([np.where(at < 0, -1, at + offset), steps.row])
        return cls(
            pa.concat_tables([steps.values, rows.select(own.names)]).combine_chunks(),
            key[order],
            row[order],
            from_us[order],
            _in_order_of(rows[FROM_TOKEN].combine_chunks().take(before), steps.token, taken),
            _in_order_of(rows[OP].combine_chunks().take(before), steps.op, taken),
            np.concatenate([at, np.full(len(steps.key), -1, np.int64)])[order],
        )

    def versions(self, tracked: Collection[str]) -> tuple[Numbers, Numbers]:
        """Divide the entries into versions; return the first and the last entry of each."""
        count = len(self.key)
        numbers = np.arange(count)
        begins = np.ones(count, np.bool_)
        if count:
            same = self.are_same(numbers[:-1], numbers[1:], tracked)
            begins[1:] = (self.key[1:] != self.key[:-1]) | ~same
        first = np.flatnonzero(begins)
        return first, np.append(first[1:], [count])[: len(first)] - 1

    def are_same(
        self, some: Numbers, others: Numbers, names: Collection[str] | None = None
    ) -> Flags:
        """Tell which pairs of entries show the same row, as far as the columns `names` go."""
        a, b = self.row[some], self.row[others]
        same: Flags = a == b
        differ = np.flatnonzero((a >= 0) & (b >= 0) & ~same & (self.key[some] == self.key[others]))
        equal: Flags = np.ones(len(differ), np.bool_)
        for name in self.values.column_names if names is None else names:
            column = self.values[name]
            one, other = (column.take(pa.array(rows[differ])) for rows in (a, b))
            if pa.types.is_nested(column.type):
                pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
                equal &= np.array([x == y for x, y in pairs], np.bool_)
            else:
                equal &= is_same(one, other)
        same[differ] = equal
        return same


def _in_order_of(stored: pa.Array, steps: pa.Array, order: pa.Array) -> pa.Array:
    return pa.concat_arrays([stored, steps]).take(order)


# The mark that holds the frontier up to which a history has the changes of its table.
FLOOR_MARK = "shardstream.history_us"


def stage_history(
    table: StoredTable,
    tracked: Sequence[str],
    changes: TableChanges,
    before: KeysBefore,
    part: tuple[int, int],
) -> StagedFiles:
    """Stage the versions that begin and end.

    `tracked`: the columns whose changes begin a version, none for all. `part`: (this
    task, number of tasks). UsageError if the table lacks a column that is tracked.
    """
    marks = table.snapshot.marks
    done = {
        mark.removeprefix(SHARD_MARK): seq
        for mark, seq in marks.items()
        if mark.startswith(SHARD_MARK)
    }
    own, keys = own_columns(table.schema), before.keys
    columns = tracked_columns(tracked, own, f"{changes.database}.{changes.table}")
    steps = visible_steps(changes, before, done, own)
    found = table.find(keys)
    rows = table.read(found)
    # Another program may have joined files, closed rows among them.
    is_open = pc.is_null(rows[TO]).to_numpy()
    found = found.where(is_open)
    stored = rows.filter(pa.array(is_open)), found.change
    indexes, opened, closed = edited(steps, keys, stored, marks.get(FLOOR_MARK, 0), columns)
    gone = np.zeros(len(found.change), np.bool_)
    gone[indexes] = True
    staged = table.stage(found.where(gone), opened, part=part)
    return with_closed(table, staged, closed, part)


def tracked_columns(tracked: Sequence[str], own: pa.Schema, table: str) -> list[str]:
    """Return the columns that are tracked, as the table spells them. UsageError if one is not."""
    names = {name.lower(): name for name in own.names}
    unknown = [name for name in tracked if name.lower() not in names]
    if unknown:
        raise UsageError(
            f"--track: {table} has no column '{unknown[0]}', but {', '.join(own.names)}"
        )
    return [names[name.lower()] for name in tracked] or own.names


def begin_histories(target: StateTarget) -> None:
    """Fill the new histories of tables that have rows already, each visible since its change.

    UsageError if such a table lacks a column that is tracked.
    """
    for name, tracked in target.options.history.items():
        place = TablePlace(target.path, *table_name(name))
        visible = open_table(place.visible, target.storage)
        if visible is not None:
            own = own_columns(history_schema(visible.schema))
            tracked_columns(tracked, own, name)
            _begin(place, visible, target)


def _begin(place: TablePlace, visible: StoredTable, target: StateTarget) -> None:
    stored = open_table(place.history, target.storage)
    if stored is not None and stored.snapshot.marks:
        return
    schema, buckets = history_schema(visible.schema), visible.snapshot.buckets
    create_table(place.history, target.storage, schema, buckets)
    history = open_table(place.history, target.storage)
    if history is None:
        raise UsageError(f"{place.history} was removed while it was begun: start again")
    staged, floor_us = [], 0
    for bucket in range(buckets):
        rows = visible.read(visible.everything([bucket]))
        floor_us = max(floor_us, pc.max(rows[TIME]).as_py() or 0)
        opened = as_schema(rows.append_column(FROM, rows[TIME]), schema)
        staged.append(history.stage(None, opened, compact=False))
    commit(history, staged, {**visible.snapshot.marks, FLOOR_MARK: floor_us})
