"""Applies a window of a change log to a table of a target, by the rule of `applying.homes`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.changes import (
    DELETED,
    HOME,
    KEY,
    SEQ,
    SHARD,
    TIME,
    KnownTable,
)
from spark_consumers.applying.homes import Version
from spark_consumers.applying.removals import removed
from spark_consumers.applying.settle import settle
from spark_consumers.applying.unlogged import Unlogged
from spark_consumers.current_state.query.json_images import typed_images
from spark_consumers.current_state.query.log_window import LoggedImage, LogWindow
from spark_consumers.errors import CannotApply

Flags = npt.NDArray[np.bool_]
_ORDER = (KEY, HOME, SHARD, SEQ, TIME)


@dataclass(frozen=True, slots=True)
class StoredVersions:
    """All that a target has of a table: its visible and its hidden rows, with equal columns."""

    known: KnownTable
    visible: pa.Table
    hidden: pa.Table


def replayed(
    stored: StoredVersions, window: LogWindow, accept_skip: Collection[str] = ()
) -> pa.Table:
    """Return the visible rows after the changes of a window, with the table's own columns.

    CannotApply: see `replay_changelog`.
    """
    shape = stored.known.shape
    table = (shape.database, shape.table)
    logged = window.statements(accept_skip)
    statements = logged.statements
    statements.check({table})
    _check_values(table, logged.unlogged)
    changes = {
        key: [each for each in versions if not statements.is_removed(*table, each)]
        for key, versions in window.versions(*table).items()
    }
    is_visible = pa.repeat(pa.scalar(value=False), stored.visible.num_rows)
    visible = stored.visible.append_column(DELETED, is_visible)
    both = pa.concat_tables([visible, _before(window, stored.hidden)])
    removals = statements.removals.get(shape.database, ())
    gone = removed((each for each in removals if each.what.table in {None, shape.table}), both)
    keys = pa.array([*changes], pa.string())
    keys = pa.concat_arrays([keys, both[KEY].filter(gone).combine_chunks()]).unique()
    is_concerned = _flags(pc.is_in(both[KEY], value_set=keys))
    left = _by_key(both, np.flatnonzero(is_concerned & ~_flags(gone)))
    rows = np.flatnonzero(~is_concerned[: visible.num_rows]).tolist()
    images: list[LoggedImage] = []
    for key in keys.to_pylist():
        found = settle(left.get(key, ()), changes.get(key, ())).visible
        row = None if found is None else found.row
        if isinstance(row, LoggedImage):
            images.append(row)
        elif row is not None:
            rows.append(cast("int", row))
    typed = typed_images(
        stored.known, [each.text for each in images], [each.invalid_dates for each in images]
    )
    untouched = both.select(typed.column_names).take(pa.array(rows, pa.int64()))
    return pa.concat_tables([untouched, typed])


def _check_values(table: tuple[str, str], unlogged: Sequence[Unlogged]) -> None:
    """CannotApply behind a statement whose values only the copy that follows it brings."""
    for each in unlogged:
        if (each.what.database, each.what.table) == table:
            raise CannotApply(
                f"{each.place}: this statement changed values of rows without logging them, so the "
                f"change log does not have them yet at that time. Ask without a change log: the "
                f"answer is then that of the batch before. If the statement changed no value, "
                f"accept it with --accept-skip"
            )


def _before(window: LogWindow, hidden: pa.Table) -> pa.Table:
    """Leave out what a batch after the window's begin left that was cut off, and never ended."""
    shards = window.begin.shards
    known = pa.array([*shards], pa.string())
    seqs = pa.array([at.seq for at in shards.values()], pa.int64())
    last = seqs.take(pc.index_in(hidden[SHARD].combine_chunks(), known))
    return hidden.filter(pc.fill_null(pc.less_equal(hidden[SEQ], last), True))


def _by_key(rows: pa.Table, chosen: npt.NDArray[np.int64]) -> dict[str, list[Version]]:
    """Return the chosen rows as versions; a live one has its number as its row."""
    found: dict[str, list[Version]] = {}
    columns = rows.select([*_ORDER, DELETED]).take(pa.array(chosen)).to_pylist()
    for number, row in zip(chosen.tolist(), columns, strict=True):
        version = Version(
            row[SHARD], row[SEQ], row[TIME], row[HOME], None if row[DELETED] else number
        )
        found.setdefault(row[KEY], []).append(version)
    return found


def _flags(flags: pa.Array | pa.ChunkedArray) -> Flags:
    return np.asarray(flags.to_numpy(zero_copy_only=False), np.bool_)
