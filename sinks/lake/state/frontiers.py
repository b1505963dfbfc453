"""The table `_shardstream_frontiers` of a target: one row per batch, after its last table.

Delta has no transaction over several tables. A row names the version of each table at which the
target is as the databases were at one frontier, and the position from which a query goes on. A
batch without a row was cut off; it, or another query from the same position, is run again.

A query may leave out tables that the target has. These lack its changes for good, so no later query
follows them, and no frontier has them any more.

What a target does not need any more is removed here too: old tombstones, and files that no version
uses.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from event_token.errors import Halt, Retry, ShardstreamError, UsageError
from event_token.position import StreamPosition
from sinks.errors import LakeConflict, StaleBatch
from sinks.lake.delta.commit import TRIES, commit, vacuum
from sinks.lake.delta.log import FORMAT_MARK
from sinks.lake.delta.storage import dataset_of, written_by_delta_rs
from sinks.lake.delta.stored_table import open_table
from sinks.lake.state.layout import FRONTIERS, HIDDEN, HISTORY, TablePlace, place_of
from sinks.lake.state.options import StateOptions
from sinks.resume import BatchStep, HeldBatch, Origin, PlannedBatch, step_of
from sinks.rule.homes import DELETED, HOME, KEY, SEQ, SHARD, TIME
from sinks.same_keys import SameKey, same_keys_of, same_keys_text

FORMAT = 1
NUMBER_MARK = "shardstream.number"
SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("query", pa.string(), nullable=False),
        pa.field("batch_id", pa.int64(), nullable=False),
        pa.field("frontier_us", pa.int64(), nullable=False),
        pa.field("position", pa.string(), nullable=False),
        pa.field("tables", pa.map_(pa.string(), pa.int64()), nullable=False),
        pa.field("rows", pa.map_(pa.string(), pa.int64()), nullable=False),
        pa.field("same_keys", pa.string(), nullable=False),  # as JSON
        # By the clock of the driver, as its commits' times.
        pa.field("written_us", pa.int64(), nullable=False),
        pa.field("lacking", pa.string()),  # as JSON; null where no shard lacks a column
        pa.field("left_out", pa.string()),  # as JSON; null where no table was left out
    ]
)
# Rows, and so files and commits, after which the files are joined and the log gets a checkpoint.
ROWS_PER_CHECKPOINT = 50
# Files of this size are not joined again, so that a row is not copied for ever.
FILE_BYTES = 1024 * 1024
# Removals in the logs of tables have times in whole milliseconds.
_REMOVAL_STEP_US = 1_000
# Files that were joined stay for readers that have just looked for them.
JOINED_FILES_H = 24
# Nobody reads earlier versions of this table. Its log is listed in each batch, and a file system
# lists all of it.
SETTINGS = {"delta.logRetentionDuration": "interval 1 hours"}
# `tidy` does what is due.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True, slots=True)
class Frontier:
    """A moment at which the tables of a target agree.

    `number` counts the rows of the target from 1. By place below the target, `tables` has the
    version of each table, also of those of hidden rows and of histories, `rows` the number of
    visible rows. `same_keys`: some of the keys that have several live rows. `lacking`: which
    columns shards lack, as `batch_commit` writes it. `written_us`: 0 before it is written.
    `left_out`: tables that the target had, and that a query did not follow: they lack its changes,
    and are not in `tables` any more.
    """

    number: int
    query: str
    batch_id: int
    frontier_us: int
    position: StreamPosition
    tables: Mapping[str, int]
    rows: Mapping[str, int]
    same_keys: tuple[SameKey, ...] = ()
    lacking: str | None = None
    written_us: int = 0
    left_out: frozenset[str] = frozenset()

    @property
    def visible(self) -> Mapping[str, int]:
        """The versions of the tables of visible rows."""
        tables = self.tables.items()
        return {name: v for name, v in tables if not name.startswith(HIDDEN)}

    @property
    def histories(self) -> Mapping[str, int]:
        """The versions of histories, by the places of their tables of visible rows."""
        prefix = f"{HISTORY}/"
        return {n.removeprefix(prefix): v for n, v in self.tables.items() if n.startswith(prefix)}


class Frontiers:
    """The frontiers of a target."""

    def __init__(
        self, target: str, storage: Mapping[str, str], origin: Origin | None = None
    ) -> None:
        """`origin`: of the stream that is written; TargetConflict if the target has another one."""
        self._target = target
        self._origin = origin
        self._path = f"{target}/{FRONTIERS}"
        self._storage = dict(storage)
        self._table: DeltaTable | None = None

    def newest(self) -> Frontier | None:
        """Return the newest frontier, None for a target that has none. Halt: unknown format."""
        table = self._open()
        if table is None:
            return None
        actions = pa.table(table.get_add_actions(flatten=True))
        if not actions.num_rows:  # killed before the first frontier
            return None
        newest = pc.max(actions["max.number"]).as_py()
        return None if newest is None else self._row(actions, newest)

    def before(self, timestamp_us: int) -> Frontier | None:
        """Return the newest of the frontiers at or before a time, None if all are later."""
        table = self._open()
        if table is None:
            return None
        actions = pa.table(table.get_add_actions(flatten=True))
        only = pc.field("frontier_us") <= timestamp_us
        number = pc.max(self._dataset(actions).to_table(["number"], filter=only)["number"]).as_py()
        return None if number is None else self._row(actions, number)

    def state(self) -> HeldBatch | None:
        """Return the last batch that the target holds."""
        last = self.newest()
        return None if last is None else HeldBatch(last.query, last.batch_id, last.position)

    def is_replay(self, batch: PlannedBatch) -> bool:
        """Tell whether the target holds a batch. TargetConflict: see `sinks.resume`."""
        return step_of(self._target, self.state(), batch) is BatchStep.REPLAY

    def add(
        self,
        batch: PlannedBatch,
        tables: Mapping[str, int],
        rows: Mapping[str, int],
        same_keys: tuple[SameKey, ...] = (),
        lacking: str | None = None,
        *,
        left_out: Collection[str] = (),
    ) -> None:
        """Add the frontier at the end of a batch; `tables`, `rows`: of what it wrote.

        `left_out`: the tables that lack the batch, or an earlier one. TargetConflict as
        `is_replay`; Retry if another query was quicker.
        """
        if self.is_replay(batch):
            return
        last = self.newest()
        gone = {f"{part}{name}" for name in left_out for part in ("", f"{HIDDEN}/", f"{HISTORY}/")}
        versions = {**({} if last is None else last.tables), **tables}
        counts = {**({} if last is None else last.rows), **rows}
        self._write(
            Frontier(
                1 if last is None else last.number + 1,
                batch.query_id,
                batch.batch_id,
                batch.end.frontier_us,
                batch.end,
                {name: at for name, at in versions.items() if name not in gone},
                {name: count for name, count in counts.items() if name not in gone},
                same_keys,
                lacking,
                left_out=frozenset(left_out),
            )
        )

    def _open(self) -> DeltaTable | None:
        if self._table is not None:
            self._table.update_incremental()
            return self._table
        try:
            table = DeltaTable(self._path, storage_options=self._storage)
        except TableNotFoundError:
            return None
        found = table.transaction_version(FORMAT_MARK)
        if found != FORMAT:
            raise Halt(
                f"{self._path}: format {found} of the current state is not known: use the release "
                f"that wrote it"
            )
        if self._origin is not None:
            self._origin.check(table.metadata().configuration, self._target)
        self._table = table
        return table

    def _create(self, marks: list[Transaction]) -> None:
        DeltaTable.create(
            self._path,
            SCHEMA,
            mode="ignore",
            name="frontiers",
            description="The versions of the tables that belong together",
            configuration=SETTINGS | ({} if self._origin is None else self._origin.properties()),
            storage_options=self._storage,
            commit_properties=CommitProperties(app_transactions=marks),
            raise_if_key_not_exists=False,
        )

    def _row(self, actions: pa.Table, number: int) -> Frontier:
        """Return a row. The bounds of files show which of them may have it."""
        may_have_it = pc.and_(
            pc.less_equal(actions["min.number"], number),
            pc.greater_equal(actions["max.number"], number),
        )
        files = self._dataset(actions.filter(pc.fill_null(may_have_it, True)))
        [row] = files.to_table(filter=pc.field("number") == number).to_pylist()
        return _frontier(row)

    def _dataset(self, actions: pa.Table) -> ds.Dataset:
        return dataset_of(self._path, self._storage, actions["path"].to_pylist(), SCHEMA)

    def _write(self, frontier: Frontier) -> None:
        row = {
            "number": frontier.number,
            "query": frontier.query,
            "batch_id": frontier.batch_id,
            "frontier_us": frontier.frontier_us,
            "position": frontier.position.to_string(),
            "tables": list(frontier.tables.items()),
            "rows": list(frontier.rows.items()),
            "same_keys": same_keys_text(frontier.same_keys),
            "written_us": time.time_ns() // 1_000,
            "lacking": frontier.lacking,
            "left_out": json.dumps(sorted(frontier.left_out)) if frontier.left_out else None,
        }
        rows = pa.Table.from_pylist([row], schema=SCHEMA)
        # Of two queries that write the same mark at once, the second one fails.
        marks = [Transaction(FORMAT_MARK, FORMAT), Transaction(NUMBER_MARK, frontier.number)]
        with written_by_delta_rs(self._path):
            if frontier.number == 1:
                self._create(marks[:1])
            write_deltalake(
                self._path,
                rows,
                mode="append",
                storage_options=self._storage,
                commit_properties=CommitProperties(app_transactions=marks),
                post_commithook_properties=_NO_HOOKS,
            )

    def tidy(self) -> None:
        """Join the files, and shorten the log, once in ROWS_PER_CHECKPOINT rows."""
        table = self._open()
        if table is not None and table.version() % ROWS_PER_CHECKPOINT == 0:
            # Where `prune` removes rows at this moment, the files are joined another time.
            with written_by_delta_rs(self._path), suppress(CommitFailedError):
                table.optimize.compact(target_size=FILE_BYTES)
                table.create_checkpoint()
                table.cleanup_metadata()

    def prune(self, since_us: int) -> tuple[int, int]:
        """Remove the frontiers that were written before a time, but the newest.

        Of a frontier that was written later, a vacuum that keeps the files since then has left all:
        they were removed from their tables by later batches. Returns the number of frontiers, and
        of files of this table that are not needed. Retry: another program was quicker.
        """
        table = self._open()
        if table is None:
            return 0, 0
        with written_by_delta_rs(self._path):
            gone = self._prune(table, since_us)
            files = table.vacuum(
                JOINED_FILES_H, dry_run=False, enforce_retention_duration=False, full=True
            )
        return gone, len(files)

    def _prune(self, table: DeltaTable, since_us: int) -> int:
        actions = pa.table(table.get_add_actions(flatten=True))
        rows = self._dataset(actions).to_table(columns=["number", "written_us"])
        late = rows.filter(pc.greater_equal(rows["written_us"], since_us + _REMOVAL_STEP_US))
        first = pc.min(late["number"]) if late.num_rows else pc.max(rows["number"])
        gone = pc.sum(pc.less(rows["number"], first)).as_py() if rows.num_rows else 0
        if gone:
            table.delete(f"number < {first}")
        return int(gone)


def _frontier(row: Mapping[str, Any]) -> Frontier:
    return Frontier(
        row["number"],
        row["query"],
        row["batch_id"],
        row["frontier_us"],
        StreamPosition.from_string(row["position"]),
        dict(row["tables"]),
        dict(row["rows"]),
        same_keys_of(row["same_keys"]),
        row["lacking"],
        row["written_us"],
        frozenset(json.loads(row["left_out"] or "[]")),
    )


def check_kept(target: str, newest: Frontier | None, options: StateOptions) -> None:
    """UsageError if a query follows a table that lacks changes, or one without its history."""
    if newest is None:
        return
    gone = _written(target, (name for name in newest.left_out if _follows(target, name, options)))
    if gone:
        others = (name for name in newest.visible if _follows(target, name, options))
        named = " ".join(f"--table {name}" for name in _written(target, others))
        raise UsageError(
            f"{target}: an earlier run left out {', '.join(gone)}, so changes are missing there "
            f"for good. Go on with the others ({named or 'there are none'}), and follow these in a "
            f"new target"
        )
    kept = (name for name in newest.histories if _follows(target, name, options))
    for name in _written(target, kept):
        if name not in options.history:
            raise UsageError(
                f"{target} has the history of {name}, which would miss the changes of this run: "
                f"pass --history {name}"
            )


def left_out_after(target: str, newest: Frontier | None, options: StateOptions) -> frozenset[str]:
    """Return the tables, by their places below the target, that lack changes after a batch."""
    if newest is None:
        return frozenset()
    missed = (name for name in newest.visible if not _follows(target, name, options))
    return newest.left_out.union(missed)


def _follows(target: str, name: str, options: StateOptions) -> bool:
    place = place_of(target, name)
    return options.follows((place.database, place.table))


def _written(target: str, names: Iterable[str]) -> list[str]:
    places = (place_of(target, name) for name in names)
    return sorted(place.source for place in places)


# Columns that order the changes, which readers of a table do not need.
_ORDER = frozenset({KEY, HOME, SHARD, SEQ, TIME})


@dataclass(frozen=True, slots=True)
class TableAsOf:
    """A table as of `frontier_us`: it has all changes before that time, and none from then on."""

    frontier_us: int
    rows: pa.Table


def table_as_of(
    target: str,
    table: str,
    timestamp_us: int,
    storage_options: Mapping[str, str] | None = None,
) -> TableAsOf:
    """Return a table (`database.table`) as it was at the last frontier at or before a time.

    A frontier is where a batch ends, so the rows are exact as of the time that is returned. Tables
    that are read for one time are consistent with each other, over all shards. UsageError: the
    target or the table does not exist, or did not at that time.
    """
    target, storage = target.rstrip("/"), dict(storage_options or {})
    database, dot, name = table.partition(".")
    if not dot:
        raise UsageError(f"{table!r} is not database.table")
    place = TablePlace(target, database, name)
    frontiers = Frontiers(target, storage)
    frontier = frontiers.before(timestamp_us)
    if frontier is None and frontiers.newest() is None:
        raise UsageError(f"{target} holds no current state: name the target of `shardstream state`")
    if frontier is None:
        raise UsageError(f"{target} holds no current state of that time: its frontiers begin later")
    version = frontier.tables.get(place.name)
    if version is None:
        places = (place_of(target, there) for there in frontier.visible)
        known = ", ".join(sorted(f"{each.database}.{each.table}" for each in places)) or "none"
        raise UsageError(f"{target} had no table {table} then; it had: {known}")
    found = DeltaTable(place.visible, version=version, storage_options=storage)
    columns = [field.name for field in found.schema().fields if field.name not in _ORDER]
    return TableAsOf(frontier.frontier_us, pa.table(found.scan(columns=columns)))


# Delta's checkpoints have removed files, and when they were removed, for this long.
KEEP_S_MAX = 7 * 24 * 3600
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed from one table; `frontiers`: from that of the frontiers alone."""

    table: str
    tombstones: int
    files: int
    frontiers: int = 0


def maintain_state(
    target: str,
    *,
    tombstones_s: int,
    keep_s: int,
    storage_options: Mapping[str, str] | None = None,
) -> list[Removed]:
    """Remove old tombstones, frontiers and files; a query may write to the target meanwhile.

    Tombstones of deletions of more than `tombstones_s` seconds ago are removed: a change from
    before such a deletion that arrives later is applied again. Frontiers go that were written
    more than `keep_s` seconds ago, but the newest, and files that no version since then has; who
    reads an older version misses them. Commits in logs go after 30 days. UsageError: there is no
    current state at `target`, or `keep_s` is longer than KEEP_S_MAX.
    """
    if keep_s > KEEP_S_MAX:
        raise UsageError(
            f"--keep {keep_s} s: at most {KEEP_S_MAX} s (7d): after that, the logs of the tables "
            f"do not show which versions had a file"
        )
    target, storage = target.rstrip("/"), dict(storage_options or {})
    frontiers = Frontiers(target, storage)
    newest = frontiers.newest()
    if newest is None:
        raise UsageError(f"{target} holds no current state: name the target of `shardstream state`")
    since_s = time.time() - keep_s
    before_us = int((time.time() - tombstones_s) * 1_000_000)
    # Before the files that they need. The query may join the files of frontiers meanwhile.
    prune = partial(frontiers.prune, int(since_s * 1_000_000))
    pruned, joined = _tried(prune, Retry)
    # A table may have been rewritten after it, for a column that was dropped; the times of
    # removals are whole milliseconds.
    since_s = min(since_s, newest.written_us // 1_000 / 1_000)
    found = [Removed(FRONTIERS, 0, joined, pruned)]
    for place in (place_of(target, name) for name in sorted(newest.visible)):
        # A batch, or an OPTIMIZE, may be committed meanwhile.
        remove = partial(_remove_tombstones, place.hidden, storage, before_us)
        tombstones = _tried(remove, LakeConflict, StaleBatch)
        urls = [place.hidden, place.visible]
        if place.history_name in newest.tables:
            urls.append(place.history)
        files = [path for url in urls for path in vacuum(url, storage, since_s)]
        found.append(Removed(f"{place.database}.{place.table}", tombstones, len(files)))
    return found


def _tried(attempt: Callable[[], _T], *conflicts: type[ShardstreamError]) -> _T:
    """Return what one of TRIES attempts returns: another program may write at the same moment."""
    for _ in range(TRIES - 1):
        with suppress(*conflicts):
            return attempt()
    return attempt()


def _remove_tombstones(url: str, storage: Mapping[str, str], before_us: int) -> int:
    table = open_table(url, storage)
    if table is None:
        return 0
    stored = table.everything(range(table.snapshot.buckets))
    rows = table.read(stored, (DELETED, TIME))
    is_old = pc.and_(rows[DELETED], pc.less(rows[TIME], before_us)).to_numpy()
    if is_old.any():
        gone = table.stage(stored.where(is_old), table.schema.empty_table(), compact=False)
        commit(table, [gone])
    return int(is_old.sum())
