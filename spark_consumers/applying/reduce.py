"""Reduces the changes of a batch to the last one of each key and home. Pure.

Keys whose changes have one home are reduced in bulk. The few others go one by one through the rule
of `homes`: rows that move, rows without a keyspace id on several shards, late rows beside others,
and partial row images that lie over each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

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
    SEQ,
    SHARD,
    TIME,
    TOKEN,
)
from spark_consumers.applying.homes import Version
from spark_consumers.applying.removals import removed
from spark_consumers.applying.settle import no_stored_row, settle
from spark_consumers.applying.tables import Removal
from spark_consumers.decoding.on_partial import OnPartial

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
# The numbers of the changes that a row is made of, the newest first: one, unless it was partial.
Layers = tuple[int, ...]
# Ends the layers of a partial row that follows a DELETE and is to be stored with NULLs.
_NULLS = -1


def reduce_changes(
    table: str,
    changes: pa.Table,
    removals: Sequence[Removal] = (),
    on_partial: OnPartial = OnPartial.STOP,
) -> pa.Table:
    """Return the last change of each key and home, without those that a statement removed.

    `changes`: META, then columns of the table; in any order. CannotApply: a partial row image
    follows the DELETE of its row, unless `on_partial` accepts it. `table`: its name for that error.
    """
    if removals:
        changes = changes.filter(pc.invert(removed(removals, changes)))
    changes = changes.combine_chunks()
    codes = pc.dictionary_encode(changes[KEY].combine_chunks()).indices.to_numpy()
    is_alone = np.bincount(codes)[codes] == 1 if len(codes) else np.zeros(0, np.bool_)
    if is_alone.all():
        return changes
    several = np.flatnonzero(~is_alone)
    last, mixed = _last_of_each(changes.take(several), codes[several])
    kept = np.concatenate([np.flatnonzero(is_alone), several[last]])
    whole = changes.take(np.sort(kept))
    if not mixed:
        return whole
    settled = (_settled(table, changes, several[numbers], on_partial) for numbers in mixed)
    rows = [each for of_key in settled for each in of_key]
    return pa.concat_tables([whole, _laid_over(changes, rows)])


def _last_of_each(changes: pa.Table, codes: npt.NDArray[np.int32]) -> tuple[Numbers, list[Numbers]]:
    """Return the last change of each key that has one home, and all changes of each other key."""
    home = rank_codes(changes, HOME)
    shard = rank_codes(changes, SHARD)
    order = np.lexsort((changes[SEQ].to_numpy(), shard, changes[TIME].to_numpy(), codes))
    codes, home, shard = codes[order], home[order], shard[order]
    starts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    ends = np.r_[starts[1:], len(codes)]

    def is_one(values: Numbers) -> Flags:
        found = np.minimum.reduceat(values, starts) == np.maximum.reduceat(values, starts)
        return np.asarray(found)

    def has_any(flags: pa.ChunkedArray) -> Flags:
        chosen = np.asarray(flags.to_numpy(), dtype=np.bool_)[order]
        return np.asarray(np.logical_or.reduceat(chosen, starts))

    one_shard = is_one(shard)
    is_simple = (
        is_one(home)
        & (one_shard | ((home[starts] >= 0) & ~has_any(changes[COMPARE])))
        & ~has_any(pc.is_valid(changes[ABSENT]))
    )
    mixed = [order[starts[i] : ends[i]] for i in np.flatnonzero(~is_simple)]
    return order[ends[is_simple] - 1], mixed


def rank_codes(changes: pa.Table, name: str) -> Numbers:
    """Number the values of a column by their order; -1 for null."""
    encoded = pc.dictionary_encode(changes[name].combine_chunks())
    ranks = np.argsort(pc.sort_indices(encoded.dictionary).to_numpy()).astype(np.int64)
    indices = pc.fill_null(encoded.indices, -1).to_numpy()
    return np.where(indices < 0, -1, ranks[indices] if len(ranks) else -1)


def _settled(
    table: str, changes: pa.Table, numbers: Numbers, on_partial: OnPartial
) -> list[Layers]:
    """Return the changes that make up each row and tombstone that the changes of one key leave."""
    rows = changes.select(META.names).take(numbers).to_pylist()
    key = rows[0][KEY]
    versions = [_version(row, int(number)) for row, number in zip(rows, numbers, strict=True)]
    # A record leaves at most one tombstone at a key.
    deleted = {
        (row[SHARD], row[SEQ]): (int(number),)
        for row, number in zip(rows, numbers, strict=True)
        if row[DELETED]
    }

    def lay_over(base: Version | None, change: Version) -> Version:
        if base is None:
            return change
        if base.row is None and on_partial is OnPartial.INSERT_NULLS:
            return replace(change, row=(*cast("Layers", change.row), _NULLS), is_partial=False)
        if base.row is None:
            raise no_stored_row(table, key, change)
        layers = (*cast("Layers", change.row), *cast("Layers", base.row))
        return replace(change, row=layers, is_partial=base.is_partial)

    return [
        deleted[v.shard, v.seq] if v.row is None else cast("Layers", v.row)
        for v in settle((), versions, lay_over).versions
    ]


def _version(row: Mapping[str, Any], number: int) -> Version:
    return Version(
        row[SHARD],
        row[SEQ],
        row[TIME],
        row[HOME],
        None if row[DELETED] else (number,),
        row[TOKEN],
        is_partial=row[ABSENT] is not None,
    )


def _laid_over(changes: pa.Table, rows: Sequence[Layers]) -> pa.Table:
    """Return the rows that changes leave where they lie over each other."""
    newest = changes.take([layers[0] for layers in rows])
    numbers = sorted({number for layers in rows for number in layers} - {_NULLS})
    own = changes.select([ABSENT, COMPARE]).take(numbers).to_pylist()
    absent = {i: row[ABSENT] for i, row in zip(numbers, own, strict=True)}
    compared = {i for i, row in zip(numbers, own, strict=True) if row[COMPARE]}

    def still_absent(layers: Layers) -> list[str] | None:
        if layers[-1] == _NULLS or absent[layers[-1]] is None:
            return None
        return [n for n in absent[layers[0]] if all(n in absent[layer] for layer in layers)]

    def source(layers: Layers, name: str) -> int | None:
        found = (i for i in layers if i == _NULLS or name not in (absent[i] or ()))
        number = next(found, layers[0])
        return None if number == _NULLS else number

    made = {
        COMPARE: [not compared.isdisjoint(layers) for layers in rows],
        ABSENT: [still_absent(layers) for layers in rows],
    }
    columns = []
    for field in changes.schema:
        if field.name in made:
            columns.append(pa.array(made[field.name], field.type))
        elif field.name in META.names:
            columns.append(newest[field.name].combine_chunks())
        else:
            taken = [source(layers, field.name) for layers in rows]
            numbered = pa.array(taken, pa.int64())
            columns.append(changes[field.name].take(numbered).combine_chunks())
    return pa.Table.from_arrays(columns, schema=changes.schema)
