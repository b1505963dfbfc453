"""Which row of each key is visible after each change of a batch. Pure.

The changes of nearly every key follow each other at one home, so each is visible until the next.
Keys with versions in several homes, or changes that may be older than what is stored or lack
columns, go through the rule of `spark_consumers.applying.homes` step by step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.changes import (
    ABSENT,
    COMPARE,
    DELETED,
    HOME,
    KEY,
    META,
    OP,
    SEQ,
    SHARD,
    TIME,
    TOKEN,
    TableChanges,
    version_of,
)
from spark_consumers.applying.homes import Version, apply_change, in_order
from spark_consumers.applying.reduce import Layers, rank_codes
from spark_consumers.applying.settle import contested, no_stored_row
from spark_consumers.applying.tables import Removal, removes
from spark_consumers.current_state.query.merging import StoredRows, conformed

Indexes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_ORDER = (SHARD, SEQ, TIME, HOME)
_STATEMENT = "DDL"


@dataclass(frozen=True, slots=True)
class KeysBefore:
    """All that was stored of some keys before a batch.

    `keys`: those of its changes, and those of which one of its statements removes a row.
    """

    keys: pa.Array
    visible: StoredRows
    hidden: StoredRows


@dataclass(frozen=True, slots=True)
class Steps:
    """Moments after which other rows may be visible, in merged order within each key.

    `values`: rows with the table's own columns. One entry per step have: `key`, an index; `row`,
    the visible row, an index into `values`, -1: none; `time_us`, `token` and `op`, of the change.
    """

    values: pa.Table
    key: Indexes
    row: Indexes
    time_us: Indexes
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
    CannotApply: see `applying.settle`.
    """
    batch = _Batch(changes, before.keys, done)
    walked = batch.walked(before.visible, before.hidden)
    stored = [_chosen(each, walked) for each in (before.visible, before.hidden)]
    values = [conformed(batch.rows, own), *(conformed(each.rows, own) for each in stored)]
    walk = _Walk(batch, stored)
    found = [step for key in np.flatnonzero(walked) for step in walk.steps(int(key))]
    made = pa.concat_tables(values).combine_chunks()
    layered = sorted({step.row for step in found if len(step.row) > 1})
    numbers = {layers: made.num_rows + i for i, layers in enumerate(layered)}
    shown = [(s, numbers.get(s.row, s.row[0]) if s.row else -1) for s in found]
    values = [made, _laid_over(made, layered, walk.absent)]
    return _joined(pa.concat_tables(values).combine_chunks(), batch, batch.plain(walked), shown)


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
        seq, time_us = rows[SEQ].to_numpy(), rows[TIME].to_numpy()
        order = np.lexsort((seq, rank_codes(rows, SHARD), time_us, key_of))
        self.rows = rows.take(pa.array(order))
        self.key_of = key_of[order]
        bounds = np.arange(len(keys) + 1)
        self.starts = np.searchsorted(self.key_of, bounds)

    def walked(self, visible: StoredRows, hidden: StoredRows) -> Flags:
        """Tell of each key whether it must be followed step by step."""
        found = np.full(len(self.keys), bool(self.removals), np.bool_)
        found[hidden.key_of] = True
        home, shard = rank_codes(self.rows, HOME), rank_codes(self.rows, SHARD)
        first = self.starts[self.key_of]
        doubtful = _flags(self.rows[COMPARE]) | _flags(self.rows[ABSENT].is_valid())
        doubtful |= home != home[first]
        doubtful |= (home < 0) & (shard != shard[first])
        place = np.full(len(self.keys), -1, np.int64)
        place[visible.key_of] = np.arange(len(visible.key_of))
        is_first = first == np.arange(len(first))
        at = place[self.key_of[is_first]]
        stored = pa.array(at, mask=at < 0)
        moved = contested(
            self.rows.filter(pa.array(is_first)),
            visible.known[HOME].combine_chunks().take(stored),
            visible.known[SHARD].combine_chunks().take(stored),
        )
        found[self.key_of[doubtful]] = True
        found[self.key_of[is_first][_flags(moved)]] = True
        return found

    def plain(self, walked: Flags) -> Indexes:
        """Return the changes of the other keys that the history lacks."""
        shards = pc.dictionary_encode(self.rows[SHARD].combine_chunks())
        last = np.array([self.done.get(s, -1) for s in shards.dictionary.to_pylist()], np.int64)
        is_new = self.rows[SEQ].to_numpy() > last[shards.indices.to_numpy()]
        return np.flatnonzero(is_new & ~walked[self.key_of])


@dataclass(frozen=True, slots=True)
class _Stored:
    """Stored rows of keys that are walked, and the key of each."""

    key_of: Indexes
    rows: pa.Table


def _chosen(stored: StoredRows, walked: Flags) -> _Stored:
    chosen = np.flatnonzero(walked[stored.key_of])
    return _Stored(stored.key_of[chosen], stored.read(chosen))


class _Walk:
    """Follows keys one by one. A version's row is its layers."""

    def __init__(self, batch: _Batch, stored: Sequence[_Stored]) -> None:
        self._batch = batch
        self._stored: dict[int, list[Version]] = {}
        # The columns that a partial row lacks, by its number.
        self.absent: dict[int, Sequence[str]] = {}
        number = batch.rows.num_rows
        for each in stored:
            names = [name for name in (*_ORDER, DELETED) if name in each.rows.column_names]
            rows = each.rows.select(names).to_pylist()
            for key, row in zip(each.key_of.tolist(), rows, strict=True):
                self._stored.setdefault(key, []).append(version_of(row, (number,)))
                number += 1

    def steps(self, key: int) -> Iterator[_Step]:
        """Yield what the changes of a key leave, one by one, as far as the history lacks them."""
        kept: list[Version] = []
        for version in in_order(self._stored.get(key, ())):
            apply_change(kept, version)
        text = self._batch.keys[key].as_py()
        events = [*self._changes(key), *((r.at, r, _STATEMENT) for r in self._batch.removals)]
        events.sort(key=lambda event: event[0].order)
        # An UPDATE that moves a row leaves two versions.
        for _, grouped in groupby(events, key=lambda event: event[0].order):
            group = list(grouped)
            for version, removal, _ in group:
                if removal is not None:
                    kept = [each for each in kept if not removes(version, each)]
                else:
                    apply_change(
                        kept, version, lambda b, c: _lay_over(self._batch.name, text, b, c)
                    )
            at, _, op = group[-1]
            if at.seq > self._batch.done.get(at.shard, -1):
                shown = next((v for v in in_order(kept)[::-1] if v.row is not None), None)
                row = () if shown is None else cast("Layers", shown.row)
                yield _Step(key, row, at.timestamp_us, at.token, op)

    def _changes(self, key: int) -> Iterator[tuple[Version, Removal | None, str]]:
        start, end = self._batch.starts[key], self._batch.starts[key + 1]
        rows = self._batch.rows.slice(start, end - start).select([*META.names, OP]).to_pylist()
        for number, row in enumerate(rows, int(start)):
            if row[ABSENT] is not None:
                self.absent[number] = row[ABSENT]
            yield version_of(row, (number,)), None, row[OP]


def _lay_over(name: str, key: str, base: Version | None, change: Version) -> Version:
    if base is None or base.row is None:
        raise no_stored_row(name, key, change)
    layers = (*cast("Layers", change.row), *cast("Layers", base.row))
    return replace(change, row=layers, is_partial=False)


def _laid_over(
    values: pa.Table, rows: Sequence[Layers], absent: Mapping[int, Sequence[str]]
) -> pa.Table:
    """Return rows that are made of several ones: each column is that of the newest with it."""
    columns = [
        values[name].take(
            pa.array(
                [next(i for i in layers if name not in absent.get(i, ())) for layers in rows],
                pa.int64(),
            )
        )
        for name in values.column_names
    ]
    return pa.table(columns, schema=values.schema)


def _joined(
    values: pa.Table, batch: _Batch, plain: Indexes, walked: Sequence[tuple[_Step, int]]
) -> Steps:
    """Return the steps of all keys, by key. `walked`: steps, and the row that is visible then."""
    rows = batch.rows.take(pa.array(plain))
    found = [(step.key, row, step.time_us) for step, row in walked]
    keys, shown, times = np.array(found, np.int64).reshape(-1, 3).T
    key = np.concatenate([batch.key_of[plain], keys])
    row = np.concatenate([np.where(_flags(rows[DELETED]), -1, plain), shown])
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


def _flags(flags: pa.ChunkedArray | pa.Array) -> Flags:
    return np.array(flags.to_numpy(zero_copy_only=False), dtype=np.bool_)
