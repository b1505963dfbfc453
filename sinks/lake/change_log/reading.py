"""Reads change logs without Spark: to check them, and as tables as of a time.

`Applier` applies the changes of a log in any order.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from event_token.errors import UsageError
from sinks.lake.change_log.delta_commit import hopped_mark, open_table, partial_mark
from sinks.lake.delta.storage import dataset_of
from sinks.rule.batch_statements import STATEMENT_COLUMNS, STATEMENT_TYPES, Statements
from sinks.rule.homes import Version, add_version, live_homes, version_at
from topics.errors import CannotApply
from topics.records.vevent import Op

# A record of the log, by column names of the change log.
Change = Mapping[str, Any]
Row = dict[str, object]

CHANGE_COLUMNS = (
    *("type", "database", "table", "before", "after", "key", "old_key", "absent"),
    *("keyspace_id_before", "keyspace_id_after", "shard", "seq", "timestamp_us", "token"),
    "present_op",
)


@dataclass
class AppliedTable:
    """A table as the changes leave it.

    `versions`: by the JSON text of the key. `without_key`: of a table that has no primary key, how
    many rows of each JSON text.
    """

    versions: dict[str, list[Version]] = field(default_factory=dict)
    without_key: Counter[str] = field(default_factory=Counter)

    def by_key(self) -> dict[str, Version]:
        """Return the visible row of each key."""
        found = {key: live_homes(versions) for key, versions in self.versions.items()}
        return {key: homes[0] for key, homes in found.items() if homes}

    def live(self) -> list[Version]:
        """Return the rows of all live homes, also those that a newer home of their key hides."""
        return [home for versions in self.versions.values() for home in live_homes(versions)]

    def rows(self) -> list[Row]:
        """Return all visible rows, parsed."""
        texts = [str(version.row) for version in self.by_key().values()]
        return [json.loads(text) for text in (*texts, *self.without_key.elements())]


class Applier:
    """Applies the row changes of a log whose statements are known."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self.tables: dict[tuple[str, str], AppliedTable] = {}

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply row changes, in any order; each change once.

        CannotApply when an image has only part of its columns.
        """
        for change in changes:
            name = (str(change["database"]), str(change["table"]))
            into = self.tables.setdefault(name, AppliedTable())
            op = change.get("present_op")
            # A system-versioned table ends a row by an UPDATE, and keeps it as history.
            if op == Op.NONE.value:
                continue
            if op == Op.DELETE.value:
                change = {**change, "after": None, "keyspace_id_after": None}  # noqa: PLW2901
            _check_whole(change)
            if change["key"] is None:
                self._apply_without_key(name, change, into)
                continue
            for key, version in _versions_of(change):
                if not self._statements.is_removed(name, version):
                    add_version(into.versions.setdefault(key, []), version)

    def _apply_without_key(self, name: tuple[str, str], change: Change, into: AppliedTable) -> None:
        for image, count in (("before", -1), ("after", 1)):
            text = change[image]
            if text is None:
                continue
            version = version_at(change, _home(change, image), str(text))
            if not self._statements.is_removed(name, version):
                into.without_key[str(text)] += count

    def finish(self) -> dict[tuple[str, str], AppliedTable]:
        """Return the tables. CannotApply if a statement changed one in a way that is not logged."""
        self._statements.check(self.tables.keys())
        return self.tables


def _versions_of(change: Change) -> Iterable[tuple[str, Version]]:
    """Yield what a change leaves, with its key as JSON text: an upsert, a tombstone, or both.

    An update that changes the key or the home leaves a tombstone at the old one.
    """
    key = str(change["key"])
    home_before, home_after = _home(change, "before"), _home(change, "after")
    if change["after"] is None:
        yield key, version_at(change, home_before)
        return
    yield key, version_at(change, home_after, str(change["after"]))
    if change["old_key"] is not None:
        yield str(change["old_key"]), version_at(change, home_before)
    elif None not in {home_before, home_after} and home_before != home_after:
        yield key, version_at(change, home_before)


def _check_whole(change: Change) -> None:
    if change["absent"] is not None:
        raise CannotApply(
            f"{change['database']}.{change['table']}, shard {change['shard']}, seq "
            f"{change['seq']}: a row image has only part of its columns; applying changes needs "
            f"binlog_row_image=FULL"
        )


def _home(change: Change, image: str) -> bytes | None:
    """Return the keyspace id of an image; a log of chosen columns may lack it."""
    found = change.get(f"keyspace_id_{image}")
    return None if found is None else bytes(found)  # Spark gives a bytearray


# The columns that every change log has: the order of the merged stream, and what shows a repeat.
PLACE_COLUMNS = ("timestamp_us", "shard", "seq", "offset")
# Rows taken from a file at a time.
_BATCH_ROWS = 65_536


def open_changelog(target: str, storage_options: Mapping[str, str]) -> DeltaTable:
    """Open the newest version of a change log.

    UsageError when there is none, or another Delta table, whose files mean something else; Halt on
    a format of another release.
    """
    try:
        table = open_table(target, storage_options)
    except TableNotFoundError as error:
        raise UsageError(
            f"{target} is not a Delta table: no change log was written there"
        ) from error
    missing = set(PLACE_COLUMNS) - {field.name for field in table.schema().fields}
    if missing:
        raise UsageError(
            f"{target} is a Delta table, but no change log: it has no column "
            f"{', '.join(sorted(missing))}. Name the --target of `shardstream changelog`"
        )
    return table


def read_batches(
    table: DeltaTable,
    storage_options: Mapping[str, str],
    columns: Sequence[str],
    only: ds.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows, in any order; columns that a file lacks are null."""
    paths = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    schema = pa.schema(table.schema().to_arrow())
    wanted = [name for name in columns if name in schema.names]
    found = dataset_of(table.table_uri, storage_options, paths, schema)
    yield from found.to_batches(columns=wanted, filter=only, batch_size=_BATCH_ROWS)


@dataclass(frozen=True, slots=True)
class ChangeLogReport:
    """What a check found: `lost` and `repeated` count seqs, `out_of_order` adjacent changes."""

    changes: int
    lost: int
    repeated: int
    out_of_order: int


def check_changelog(
    target: str, storage_options: Mapping[str, str] | None = None
) -> ChangeLogReport:
    """Count changes of the log that are lost, repeated or out of order.

    The seqs of each shard must have no gap and no repeat, and offsets and times must rise with
    them. Gaps are no loss after a hop without marks, where rows read before the hop are left out,
    and in a shard of which the log has a key range only.
    """
    options = storage_options or {}
    table = open_changelog(target, options)
    seqs: dict[str, list[np.ndarray]] = {}
    for batch in read_batches(table, options, PLACE_COLUMNS):
        shards = batch["shard"].to_numpy(zero_copy_only=False)
        numbers = np.stack([batch[n].to_numpy() for n in ("seq", "offset", "timestamp_us")])
        for shard in set(shards):
            seqs.setdefault(str(shard), []).append(numbers[:, shards == shard])
    changes = lost = repeated = out_of_order = 0
    for shard, parts in seqs.items():
        seq, offset, time_us = _sorted_by_seq(parts)
        step = np.diff(seq)
        changes += len(seq)
        marks = (hopped_mark(shard), partial_mark(shard))
        if all(table.transaction_version(mark) is None for mark in marks):
            lost += int((step[step > 1] - 1).sum())
        repeated += int((step == 0).sum())
        fresh = step > 0
        backwards = (np.diff(offset) <= 0) | (np.diff(time_us) < 0)
        out_of_order += int((backwards & fresh).sum())
    return ChangeLogReport(changes, lost, repeated, out_of_order)


def _sorted_by_seq(parts: list[np.ndarray]) -> np.ndarray:
    numbers = np.concatenate(parts, axis=1)
    return numbers[:, np.argsort(numbers[0], kind="stable")]


def replay_changelog(
    target: str,
    *,
    until_us: int | None = None,
    accept_skip: Collection[str] = (),
    storage_options: Mapping[str, str] | None = None,
) -> dict[tuple[str, str], AppliedTable]:
    """Return the tables of the keyspace, by database and name, as they were before `until_us`.

    None: at the end of the log. The log must begin with the tables empty or copied. CannotApply
    (a Halt) when the log does not show what became of a table: it holds partial row images
    (binlog_row_image other than FULL), a statement such as RENAME TABLE, or a SKIP whose GTID is
    not in `accept_skip`.
    """
    options = storage_options or {}
    table = open_changelog(target, options)
    is_before = ds.scalar(value=True) if until_us is None else ds.field("timestamp_us") < until_us
    statements = Statements(accept_skip)
    is_statement = is_before & ds.field("type").isin(STATEMENT_TYPES)
    for batch in read_batches(table, options, STATEMENT_COLUMNS, is_statement):
        for record in batch.to_pylist():
            statements.add(record)
    applier = Applier(statements)
    is_row = is_before & (ds.field("type") == "ROW")
    for batch in read_batches(table, options, CHANGE_COLUMNS, is_row):
        applier.apply(batch.to_pylist())
    return applier.finish()
