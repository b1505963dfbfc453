"""The table `_shardstream_frontiers` of a target: one row per batch, after its last table.

Delta has no transaction over several tables. A row names the version of each table at which the
target is as the databases were at one frontier, and the position from which a query goes on. A
batch without a row was cut off; it, or another query from the same position, is run again.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from event_token.errors import Halt
from event_token.position import StreamPosition
from spark_consumers.current_state.query.layout import FRONTIERS, HIDDEN, HISTORY
from spark_consumers.current_state.storage import written_by_delta_rs
from spark_consumers.sink_query.origin import Origin
from spark_consumers.sink_query.resume import PlannedBatch, Step, TargetState, step_of
from spark_consumers.sink_query.same_keys import SameKey, same_keys_of, same_keys_text

FORMAT = 1
FORMAT_MARK = "shardstream.format"
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
        pa.field("same_keys", pa.string()),  # as JSON; this and the next: null in 0.1.0's rows
        pa.field("written_us", pa.int64()),  # by the clock of the driver, as its commits' times
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
    columns shards lack, as `dropping` writes it. `written_us`: None before it is written, and in
    rows of 0.1.0. `left_out`: tables that the target had, and that a query did not follow: they
    lack its changes, and are not in `tables` any more.
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
    written_us: int | None = None
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
        return self._found(pc.field("frontier_us") <= timestamp_us, pc.max)

    def first_at(self, timestamp_us: int) -> Frontier | None:
        """Return the first of the frontiers at or after a time, None if all are earlier."""
        return self._found(pc.field("frontier_us") >= timestamp_us, pc.min)

    def _found(
        self, only: ds.Expression, choose: Callable[[pa.ChunkedArray], pa.Scalar]
    ) -> Frontier | None:
        """Return the frontier whose number is chosen of some; all other columns are read of it."""
        table = self._open()
        if table is None:
            return None
        actions = pa.table(table.get_add_actions(flatten=True))
        number = choose(self._dataset(actions).to_table(["number"], filter=only)["number"]).as_py()
        return None if number is None else self._row(actions, number)

    def state(self) -> TargetState | None:
        """Return the last batch that the target holds."""
        last = self.newest()
        return None if last is None else TargetState(last.query, last.batch_id, last.position)

    def is_replay(self, batch: PlannedBatch) -> bool:
        """Tell whether the target holds a batch. TargetConflict: see `sink_query.resume`."""
        return step_of(self._target, self.state(), batch) is Step.REPLAY

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

    @property
    def kept_origin(self) -> Mapping[str, str]:
        """What the target keeps of the stream with which it was begun."""
        table = self._open()
        return {} if table is None else table.metadata().configuration

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
        """Return a row. Files tell by their bounds which of them may have it."""
        may_have_it = pc.and_(
            pc.less_equal(actions["min.number"], number),
            pc.greater_equal(actions["max.number"], number),
        )
        files = self._dataset(actions.filter(pc.fill_null(may_have_it, True)))
        [row] = files.to_table(filter=pc.field("number") == number).to_pylist()
        return _frontier(row)

    def _dataset(self, actions: pa.Table) -> ds.Dataset:
        handler: Any = DeltaStorageHandler(self._path, self._storage)
        return ds.dataset(
            actions["path"].to_pylist(),
            schema=SCHEMA,
            format="parquet",
            filesystem=fs.PyFileSystem(handler),
        )

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
                schema_mode="merge",
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
        known = rows.filter(pc.is_valid(rows["written_us"]))
        late = known.filter(pc.greater_equal(known["written_us"], since_us + _REMOVAL_STEP_US))
        # Rows that do not tell are those before the first that does, or of a release put back.
        first = pc.min(late["number"]) if late.num_rows else pc.max(known["number"])
        gone = pc.sum(pc.less(rows["number"], first)).as_py() if known.num_rows else 0
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
        row.get("written_us"),
        frozenset(json.loads(row["left_out"] or "[]")),
    )
