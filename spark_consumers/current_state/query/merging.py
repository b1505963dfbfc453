"""Merges the changes of a batch with the stored rows of a table. No I/O of its own.

Nearly every change replaces the stored row of its key, and nothing of that row is read. Keys that
have, or get, versions in several homes go through the rule of `spark_consumers.applying` one by
one, as do changes that may be older than what is stored and rows that lack columns.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.changes import (
    ABSENT,
    DELETED,
    HOME,
    KEY,
    SEQ,
    SHARD,
    version_of,
)
from spark_consumers.applying.homes import LayOver, Version
from spark_consumers.applying.settle import Settled, contested, no_stored_row, settle
from spark_consumers.decoding.on_partial import OnPartial

Row = dict[str, Any]
Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The stored rows of some keys in one table.

    `key_of`: the index of each row's key among those asked for. `known`: columns _home and _shard.
    `read` returns some of the rows, by their indexes, in that order.
    """

    key_of: Indexes
    known: pa.Table
    read: Callable[[Indexes], pa.Table]


class TableEdit:
    """What happens to one table: stored rows that go, by index, and rows that are added."""

    def __init__(self, gone: Indexes, added: pa.Table) -> None:
        self._gone: list[int] = gone.tolist()
        self._bulk = added
        self._added: list[Row] = []

    def remove(self, index: int) -> None:
        """Remove a stored row."""
        self._gone.append(index)

    def add(self, row: Row) -> None:
        """Add a row."""
        self._added.append(row)

    @property
    def gone(self) -> Indexes:
        """The stored rows that go."""
        return np.array(sorted(self._gone), np.int64)

    def added(self, schema: pa.Schema) -> pa.Table:
        """Return all added rows with the columns of a schema; columns that they lack are null."""
        found = pa.Table.from_pylist(self._added, schema=schema)
        return pa.concat_tables([conformed(self._bulk, schema), found])


@dataclass(frozen=True, slots=True)
class Merged:
    """What changes do to the table of visible rows and to that of hidden ones.

    `settled`: of each key that was settled, the shards of its live rows.
    """

    visible: TableEdit
    hidden: TableEdit
    settled: dict[str, tuple[str, ...]] = field(default_factory=dict)


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema: cast where types differ, null where the rows lack them."""
    present = set(rows.column_names)
    columns = [
        rows[field.name].cast(field.type)
        if field.name in present
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def merge(
    name: str,
    rows: pa.Table,
    keys: pa.Array,
    visible: StoredRows,
    hidden: StoredRows,
    *,
    on_partial: OnPartial = OnPartial.STOP,
) -> Merged:
    """Merge changes (`applying.changes`), at most one per key and home, into a table.

    `keys`: those of `rows`, and others whose visible row is gone. `visible` and `hidden` are all
    that is stored of them. CannotApply when a row lacks columns and no stored row has them; `name`
    is the table's, for that message; `on_partial` may accept it.
    """
    key_of = pc.index_in(rows[KEY].combine_chunks(), keys).to_numpy().astype(np.int64)
    place = np.full(len(keys), -1, np.int64)
    place[visible.key_of] = np.arange(len(visible.key_of))
    has_hidden = np.zeros(len(keys), np.bool_)
    has_hidden[hidden.key_of] = True
    is_settled = has_hidden.copy()
    is_settled[key_of[_contested(rows, place[key_of], visible, has_hidden[key_of])]] = True
    is_plain = ~is_settled[key_of]
    is_deleted = rows[DELETED].to_numpy()
    replaced = place[key_of[is_plain]]
    merged = Merged(
        TableEdit(replaced[replaced >= 0], rows.filter(pa.array(is_plain & ~is_deleted))),
        TableEdit(np.empty(0, np.int64), rows.filter(pa.array(is_plain & is_deleted))),
    )
    if is_settled.any():
        _settle_keys(
            partial(_laid_over, name, on_partial),
            merged,
            _by_key(rows.filter(pa.array(~is_plain)), key_of[~is_plain]),
            _stored_by_key(visible, is_settled),
            _stored_by_key(hidden, is_settled),
        )
    return merged


def _contested(
    rows: pa.Table, at: Indexes, visible: StoredRows, hidden: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    stored = pa.array(at, mask=at < 0)
    homes = visible.known[HOME].combine_chunks().take(stored)
    shards = visible.known[SHARD].combine_chunks().take(stored)
    found = contested(rows, homes, shards, pa.array(hidden)).to_numpy(zero_copy_only=False)
    return np.asarray(found | rows[ABSENT].is_valid().to_numpy())


def _by_key(rows: pa.Table, key_of: Indexes) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for key, row in zip(key_of.tolist(), rows.to_pylist(), strict=True):
        found.setdefault(key, []).append(row)
    return found


def _stored_by_key(
    stored: StoredRows, wanted: npt.NDArray[np.bool_]
) -> dict[int, list[tuple[int, Row]]]:
    chosen = np.flatnonzero(wanted[stored.key_of])
    found: dict[int, list[tuple[int, Row]]] = {}
    rows = stored.read(chosen).to_pylist() if len(chosen) else []
    for index, row in zip(chosen.tolist(), rows, strict=True):
        found.setdefault(int(stored.key_of[index]), []).append((index, row))
    return found


# Tells the versions of one key from each other: shard, seq, whether it is a tombstone. An UPDATE
# that moves a row leaves two versions with one seq.
_Identity = tuple[str, int, bool]


@dataclass(slots=True)
class _Image:
    """A row, and where it is stored: its index in the visible table and in the hidden one."""

    row: Row
    visible: int | None = None
    hidden: int | None = None


def _settle_keys(
    lay_over: LayOver,
    merged: Merged,
    changes: dict[int, list[Row]],
    visible: dict[int, list[tuple[int, Row]]],
    hidden: dict[int, list[tuple[int, Row]]],
) -> None:
    for key in sorted(changes.keys() | visible.keys() | hidden.keys()):
        images: dict[_Identity, _Image] = {}
        for index, row in visible.get(key, ()):
            images.setdefault(_identity_of(row), _Image(row)).visible = index
        for index, row in hidden.get(key, ()):
            images.setdefault(_identity_of(row), _Image(row)).hidden = index
        stored = [version_of(image.row, image.row) for image in images.values()]
        for row in changes.get(key, ()):
            images.setdefault(_identity_of(row), _Image(row))
        text = next(iter(images.values())).row[KEY]
        settled = settle(
            stored,
            [version_of(row, row) for row in changes.get(key, ())],
            lay_over,
        )
        live = [version.shard for version in settled.versions if version.row is not None]
        merged.settled[text] = tuple(sorted(live))
        _apply(merged, images, settled)


def _apply(merged: Merged, images: dict[_Identity, _Image], settled: Settled) -> None:
    """Change the two tables to what was settled.

    A hidden row that becomes visible stays where it was until the next change of its key: the
    hidden rows are committed first, and until the visible ones are, it must not be lost.
    """
    stays_hidden = set()
    if settled.visible is not None:
        image = images.pop(_identity(settled.visible))
        if image.visible is None:
            merged.visible.add(_row(settled.visible, image))
        elif image.hidden is not None:
            merged.hidden.remove(image.hidden)
    for version in settled.others:
        image = images[_identity(version)]
        stays_hidden.add(_identity(version))
        if image.hidden is None:
            merged.hidden.add(_row(version, image))
    for identity, image in images.items():
        if image.visible is not None:
            merged.visible.remove(image.visible)
        if image.hidden is not None and identity not in stays_hidden:
            merged.hidden.remove(image.hidden)


def _row(version: Version, image: _Image) -> Row:
    """Return what is stored of a version."""
    row = cast("Row", image.row if version.row is None else version.row)
    return {**row, HOME: version.home, DELETED: version.row is None}


def _laid_over(name: str, on_partial: OnPartial, base: Version | None, change: Version) -> Version:
    row = cast("Row", change.row)
    stored: Row = {}
    if base is not None and base.row is not None:
        stored = cast("Row", base.row)
    elif on_partial is OnPartial.STOP:
        raise no_stored_row(name, row[KEY], change)
    absent = {column: stored.get(column) for column in row[ABSENT]}
    return replace(change, row={**row, **absent, ABSENT: None}, is_partial=False)


def _identity(version: Version) -> _Identity:
    return version.shard, version.seq, version.row is None


def _identity_of(row: Row) -> _Identity:
    return row[SHARD], row[SEQ], bool(row.get(DELETED))
