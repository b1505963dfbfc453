"""What a batch changes in a history: versions that end, and versions that begin. Pure.

Steps that leave a row as it was begin no version. A version has the time of the change that made
it visible, but never one before `floor_us`: a row that arrives late takes effect where the history
ended then, so versions of a key never overlap and ended ones never change.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.changes import KEY, OP
from spark_consumers.current_state.history.columns import FROM, FROM_TOKEN, TO, own_columns
from spark_consumers.current_state.history.steps import Steps
from spark_consumers.current_state.key_index import is_same

Indexes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class OpenRows:
    """The rows of a history that are visible, at most one per key; `key_of`: the key of each."""

    key_of: Indexes
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class HistoryEdit:
    """Open rows that go, by index, rows that are added and stay open, and rows that are closed."""

    gone: Indexes
    opened: pa.Table
    closed: pa.Table


def edited(
    steps: Steps,
    keys: pa.Array,
    stored: OpenRows,
    floor_us: int,
    tracked: Collection[str],
) -> HistoryEdit:
    """Return what the steps of a batch change.

    `stored`: the open rows of the steps' keys. `tracked`: columns whose changes begin a version; a
    change of others is written into the version that is open.
    """
    schema = stored.rows.schema
    entries = _Entries.of(steps, stored, floor_us, own_columns(schema))
    runs = entries.runs(tracked)
    has_next = np.append(entries.key[runs.first[1:]] == entries.key[runs.first[:-1]], [False])
    has_next = has_next[: len(runs.first)]
    ends = np.append(entries.from_us[runs.first[1:]], [0])[: len(runs.first)]
    is_live = entries.row[runs.last] >= 0
    is_stored = entries.is_stored[runs.first] & is_live
    is_kept = is_stored & ~has_next & entries.are_same(runs.first, runs.last)
    gone = entries.stored[runs.first[is_stored & ~is_kept]]
    written = is_live & ~is_kept
    first, last = pa.array(runs.first[written]), entries.row[runs.last[written]]
    kept = {
        KEY: keys.take(pa.array(entries.key[runs.first[written]])),
        FROM: pa.array(entries.from_us[runs.first[written]]),
        TO: pa.array(ends[written], mask=~has_next[written]),
        FROM_TOKEN: entries.token.take(first),
        OP: entries.op.take(first),
    }
    rows = entries.values.take(pa.array(last))
    columns = [kept[name] if name in kept else rows[name] for name in schema.names]
    found = pa.table(columns, schema=schema)
    is_open = pc.is_null(found[TO])
    return HistoryEdit(np.sort(gone), found.filter(is_open), found.filter(pc.invert(is_open)))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Entries that make one version: its first and its last one."""

    first: Indexes
    last: Indexes


@dataclass(frozen=True, slots=True)
class _Entries:
    """What each key shows: the open row that is stored, or none, and then its steps."""

    values: pa.Table
    key: Indexes
    row: Indexes
    from_us: Indexes
    token: pa.Array
    op: pa.Array
    # The index of the open row; -1 for a step.
    stored: Indexes

    @classmethod
    def of(cls, steps: Steps, stored: OpenRows, floor_us: int, own: pa.Schema) -> "_Entries":
        keys = np.unique(steps.key)
        opened = np.full(int(keys.max(initial=-1)) + 1, -1, np.int64)
        known = stored.key_of < len(opened)
        opened[stored.key_of[known]] = np.flatnonzero(known)
        at = opened[keys]
        before = pa.array(at, mask=at < 0)
        rows = stored.rows
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
            _joined(rows[FROM_TOKEN].combine_chunks().take(before), steps.token, taken),
            _joined(rows[OP].combine_chunks().take(before), steps.op, taken),
            np.concatenate([at, np.full(len(steps.key), -1, np.int64)])[order],
        )

    @property
    def is_stored(self) -> Flags:
        """Which entries are open rows that are stored."""
        return self.stored >= 0

    def runs(self, tracked: Collection[str]) -> _Runs:
        """Divide the entries into versions."""
        count = len(self.key)
        numbers = np.arange(count)
        begins = np.ones(count, np.bool_)
        if count:
            same = self.are_same(numbers[:-1], numbers[1:], tracked)
            begins[1:] = (self.key[1:] != self.key[:-1]) | ~same
        first = np.flatnonzero(begins)
        return _Runs(first, np.append(first[1:], [count])[: len(first)] - 1)

    def are_same(
        self, some: Indexes, others: Indexes, names: Collection[str] | None = None
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


def _joined(stored: pa.Array, steps: pa.Array, order: pa.Array) -> pa.Array:
    return pa.concat_arrays([stored, steps]).take(order)
