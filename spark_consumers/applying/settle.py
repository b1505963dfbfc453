"""Applies changes of one key to its stored versions, and finds the keys that need that. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.changes import COMPARE, HOME, KEY, SHARD
from spark_consumers.applying.homes import (
    LayOver,
    Version,
    apply_change,
    in_order,
    range_of,
)
from spark_consumers.errors import CannotApply


@dataclass(frozen=True, slots=True)
class Settled:
    """What a key has after its changes.

    `visible`: the newest live row. `others`: live rows of other homes, which it hides, and
    tombstones; the newest first. `dropped`: the number of changes that were not applied, because
    what is stored is newer.
    """

    visible: Version | None
    others: tuple[Version, ...]
    dropped: int = 0

    @property
    def versions(self) -> tuple[Version, ...]:
        """All versions."""
        return self.others if self.visible is None else (self.visible, *self.others)


def settle(
    stored: Iterable[Version], changes: Iterable[Version], lay_over: LayOver | None = None
) -> Settled:
    """Apply changes of one key, in any order, to all its stored versions, tombstones included.

    It may be done again with the same changes, as a replay does. `lay_over` makes whole rows of
    changes that are partial; without it a partial change stands for itself.
    """
    kept: list[Version] = []
    for version in in_order(stored):
        apply_change(kept, version)
    dropped = sum(not apply_change(kept, change, lay_over) for change in in_order(changes))
    newest_first = in_order(kept)[::-1]
    live = [version for version in newest_first if version.row is not None]
    visible = live[0] if live else None
    others = tuple(version for version in newest_first if version is not visible)
    return Settled(visible, others, dropped)


def no_stored_row(table: str, key: str, change: Version) -> CannotApply:
    """Return the error of a partial row image that meets no stored row."""
    return CannotApply(
        f"{table}, key {key}, shard {change.shard}, seq {change.seq}: the row image has only part "
        f"of its columns, and the target has no row to take the others from. Copy the table again "
        f"(`shardstream copy start`) into a new target, or set binlog_row_image=FULL and start "
        f"from a position after that. To store NULL in the others, start again with "
        f"--partial insert-nulls, which a --history does not allow. Or leave the table out, with "
        f"its history, by naming the others with --table"
    )


def contested(
    rows: pa.Table,
    stored_home: pa.Array,
    stored_shard: pa.Array,
    hidden: pa.Array | None = None,
) -> pa.Array:
    """Tell of each change whether its key must be settled; the others are applied in bulk.

    `rows`: of `TableChanges`. Of the visible row that is stored of each row's key: `stored_home`
    and `stored_shard`, null where there is none. `hidden`: whether the key has a live row of
    another home, which the visible row hides.

    A key is contested if it has more than one home, or a change must be compared.
    """
    found = (
        _flags(rows[COMPARE])
        | _is_repeated(rows[KEY])
        | _has_moved(rows, stored_home, stored_shard)
    )
    if hidden is not None:
        found |= _flags(hidden)
    if not found.any():
        return pa.array(found)
    # All changes of a key are settled together.
    keys = rows[KEY].combine_chunks()
    return pc.is_in(keys, value_set=keys.filter(pa.array(found)))


def _is_repeated(keys: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    codes = pc.dictionary_encode(keys.combine_chunks()).indices.to_numpy()
    return np.asarray(np.bincount(codes)[codes] > 1)


def _has_moved(
    rows: pa.Table, stored_home: pa.Array, stored_shard: pa.Array
) -> npt.NDArray[np.bool_]:
    """Tell whether the visible row is at another home than the change."""
    is_stored = _flags(pc.is_valid(stored_shard))
    home = rows[HOME].combine_chunks()
    differs = pc.not_equal(home, stored_home)
    moved = is_stored & _flags(pc.fill_null(differs, False))
    # Without both ids the key ranges of the shards decide.
    for i in np.flatnonzero(is_stored & ~_flags(pc.is_valid(differs))):
        own, other = rows[SHARD][i].as_py(), stored_shard[i].as_py()
        moved[i] = own != other and not range_of(own).overlaps(range_of(other))
    return moved


def _flags(flags: pa.Array) -> npt.NDArray[np.bool_]:
    return np.array(flags.to_numpy(zero_copy_only=False), dtype=np.bool_)
