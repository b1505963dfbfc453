"""Reads a change log back: the tables that it makes, and whether it is whole. Needs no Spark.

Works file by file, in any order: every row of a keyed table ends as its last change left it, and in
a table without a key inserts and deletes cancel out. Memory: the rows of the result; for the check
24 bytes a change.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from event_token.errors import Halt, UsageError
from spark_consumers.change_log.delta_commit import hopped_mark

_COLUMNS = ["type", "database", "table", "before", "after", "key", "old_key", "absent"]
_COLUMNS += ["shard", "seq", "timestamp_us"]
# Rows taken from a file at a time.
_BATCH_ROWS = 65_536

Row = dict[str, object]
_Order = tuple[int, str, int]  # the merged order: timestamp_us, shard, seq
_FIRST: _Order = (-1, "", 0)


@dataclass(frozen=True, slots=True, order=True)
class ShardTable:
    """A table on one shard."""

    shard: str
    database: str
    table: str


@dataclass
class ReplayedTable:
    """A table as the change log leaves it.

    `by_key`: rows by the JSON text of their key. `without_key`: of a table that has no primary
    key, how many rows of each JSON text.
    """

    by_key: dict[str, str] = field(default_factory=dict)
    without_key: Counter[str] = field(default_factory=Counter)

    def rows(self) -> list[Row]:
        """All rows, parsed."""
        texts = [*self.by_key.values(), *self.without_key.elements()]
        return [json.loads(text) for text in texts]


@dataclass(frozen=True, slots=True)
class ChangeLogReport:
    """What was found: `lost` and `repeated` count seqs, `out_of_order` neighbours in the order."""

    changes: int
    lost: int
    repeated: int
    out_of_order: int


def replay_changelog(
    target: str,
    *,
    until_us: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    place_of: Callable[[str], str] = str,
) -> dict[ShardTable, ReplayedTable]:
    """Return each shard's tables as they were before `until_us` (None: at the log's end).

    `place_of` puts shards together under one name, as the sources and targets of a reshard,
    between which rows went; there a key's newest change is the last in the merged order.
    The log must begin with the tables empty or copied. Halt where it holds partial row images
    (binlog_row_image other than FULL): what those leave cannot be told from them alone.
    """
    tables: dict[ShardTable, ReplayedTable] = {}
    newest: dict[tuple[ShardTable, str], _Order] = {}
    for batch in _batches(target, storage_options or {}):
        for change in batch.to_pylist():
            if change["type"] == "ROW" and (until_us is None or change["timestamp_us"] < until_us):
                _apply(change, place_of(str(change["shard"])), tables, newest)
    return tables


def _apply(
    change: Row,
    shard: str,
    tables: dict[ShardTable, ReplayedTable],
    newest: dict[tuple[ShardTable, str], "_Order"],
) -> None:
    place = ShardTable(shard, str(change["database"]), str(change["table"]))
    if change["absent"] is not None:
        raise Halt(
            f"{place.database}.{place.table}, shard {place.shard}, seq {change['seq']}: a row "
            f"image has only part of its columns; a replay needs binlog_row_image=FULL"
        )
    table = tables.setdefault(place, ReplayedTable())
    if change["key"] is None:
        if change["before"] is not None:
            table.without_key[str(change["before"])] -= 1
        if change["after"] is not None:
            table.without_key[str(change["after"])] += 1
        return
    # A row that moves to another key leaves its old one empty.
    ends = [(change["old_key"], None), (change["key"], change["after"])]
    order = (int(str(change["timestamp_us"])), str(change["shard"]), int(str(change["seq"])))
    for key, after in ends:
        if key is None or newest.get((place, str(key)), _FIRST) >= order:
            continue
        newest[place, str(key)] = order
        if after is None:
            table.by_key.pop(str(key), None)
        else:
            table.by_key[str(key)] = str(after)


def check_changelog(
    target: str, storage_options: Mapping[str, str] | None = None
) -> ChangeLogReport:
    """Count what is lost, repeated and out of order in the change log.

    Each shard's seqs must be a chain without gap or repeat, in which offsets and times rise.
    Behind a hop without marks holes are no loss: what was seen before is left out.
    """
    options = storage_options or {}
    seqs: dict[str, list[np.ndarray]] = {}
    for batch in _batches(target, options, ["shard", "seq", "offset", "timestamp_us"]):
        shards = batch["shard"].to_numpy(zero_copy_only=False)
        numbers = np.stack([batch[n].to_numpy() for n in ("seq", "offset", "timestamp_us")])
        for shard in set(shards):
            seqs.setdefault(str(shard), []).append(numbers[:, shards == shard])
    table = _open(target, options)
    changes = lost = repeated = out_of_order = 0
    for shard, parts in seqs.items():
        seq, offset, time_us = _sorted_by_seq(parts)
        step = np.diff(seq)
        changes += len(seq)
        if table.transaction_version(hopped_mark(shard)) is None:
            lost += int((step[step > 1] - 1).sum())
        repeated += int((step == 0).sum())
        fresh = step > 0
        backwards = (np.diff(offset) <= 0) | (np.diff(time_us) < 0)
        out_of_order += int((backwards & fresh).sum())
    return ChangeLogReport(changes, lost, repeated, out_of_order)


def _sorted_by_seq(parts: list[np.ndarray]) -> np.ndarray:
    numbers = np.concatenate(parts, axis=1)
    return numbers[:, np.argsort(numbers[0], kind="stable")]


def _batches(
    target: str, storage_options: Mapping[str, str], columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    table = _open(target, storage_options)
    filesystem = fs.PyFileSystem(DeltaStorageHandler(target, dict(storage_options)))
    for path in table.get_add_actions(flatten=True)["path"].to_pylist():
        with filesystem.open_input_file(path) as file:
            parquet = pq.ParquetFile(file)
            yield from parquet.iter_batches(_BATCH_ROWS, columns=columns or _COLUMNS)


def _open(target: str, storage_options: Mapping[str, str]) -> DeltaTable:
    try:
        return DeltaTable(target, storage_options=dict(storage_options))
    except TableNotFoundError as error:
        raise UsageError(
            f"{target} is not a Delta table: no change log was written there"
        ) from error
