"""`SqlDatabase`: applies batches of changes to tables of another database, each exactly once.

Tasks stage their changes side by side (`stage`); the driver applies all of them in one transaction
that also moves the position (`apply`). Nothing here needs Spark.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from event_token import KeyRange
from event_token.errors import Retry, UsageError
from spark_consumers.applying.changes import KnownTable, TableChanges
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.decoding.on_partial import OnPartial
from spark_consumers.errors import DatabaseRefuses, DuplicateValue, ShapeConflict, TargetConflict
from spark_consumers.second_database.catalog import FOLLOWING, Catalog
from spark_consumers.second_database.columns.dropping import ColumnDropper
from spark_consumers.second_database.dialect import Dialect
from spark_consumers.second_database.ended_copies import EndedCopies
from spark_consumers.second_database.names import TargetTable
from spark_consumers.second_database.staging import (
    Staged,
    by_table,
    carry,
    first_of_tables,
    stage,
    stage_prefix,
)
from spark_consumers.second_database.table_changes import TableWriter
from spark_consumers.second_database.target_tables import TargetTables
from spark_consumers.second_database.urls import dialect_of
from spark_consumers.sink_query.resume import PlannedBatch, Step, TargetState, step_of
from spark_consumers.sink_query.same_keys import SAME_KEYS_MAX, OnSameKey, SameKey

# As long as topics are usually kept: late changes cannot be older than the log.
TOMBSTONES_US = 7 * 24 * 3600 * 1_000_000
# Tombstones are looked through after this many batches: the table of homes has no index for it.
EXPIRE_EVERY = 500

WHOLE = KeyRange.parse("-")
_KEPT_TOO = ", or let it leave out the rows that are deleted (_deleted), which keep their values"
Deletes = Literal["hard", "soft"]


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """How changes are applied.

    `follower`: the name under which the target keeps position and tables. `schema`: where all
    tables go, None: to schemas named as the source's databases. `deletes`: `soft` keeps deleted
    rows, marked in column `_deleted`. `nul_text`: what becomes of zero characters, which PostgreSQL
    cannot store. `key_range`: what the query reads. `state`: of new tables, `loading` if a copy was
    asked for. `tombstones_us`: how long a deleted key is remembered, for late changes.
    `on_bad_row`: `table` puts changes with values that the target cannot hold into the table of
    rejected ones, instead of stopping. `on_type_change`: as of the `Following` of the changes.
    `key_scope`: that of the changes' decoder; it cannot change. `on_same_key`: `stop` lists
    keys that have live rows on several shards (`SqlDatabase.same_keys`). `on_partial`,
    `drop_columns`: as of the `Following` of the changes. `left`: (database, table) of those that
    the target has and the query does not follow.
    """

    follower: str
    schema: str | None = None
    deletes: Deletes = "hard"
    nul_text: Literal["halt", "replace"] = "halt"
    key_range: KeyRange = WHOLE
    state: str = FOLLOWING
    tombstones_us: int = TOMBSTONES_US
    on_bad_row: Literal["stop", "table"] = "stop"
    on_type_change: OnTypeChange = OnTypeChange.HALT
    key_scope: KeyScope = KeyScope.KEYSPACE
    on_same_key: OnSameKey = OnSameKey.STOP
    on_partial: OnPartial = OnPartial.STOP
    drop_columns: bool = False
    left: tuple[tuple[str, str], ...] = ()


class SqlDatabase:
    """A database that follows the stream. It can be pickled; each process connects by itself."""

    def __init__(self, url: str, options: TargetOptions) -> None:
        """Keep URL and options; nothing is connected yet. UsageError: the URL is wrong."""
        self._url = url
        self._options = options
        self._dialect: Dialect = dialect_of(url, replaces_nul=options.nul_text == "replace")
        if options.on_bad_row == "table" and not self._dialect.has_savepoints:
            raise UsageError(
                f"{self._dialect.place}: the database has no savepoints, so rows that do not fit "
                f"cannot be put aside: leave out --on-bad-row"
            )
        self._catalog = Catalog(self._dialect, options.follower)
        self._ended_copies = EndedCopies(self._dialect, options.follower)
        self._dropper = ColumnDropper(self._dialect, self._catalog, options.follower)
        digest = hashlib.sha256(options.follower.encode()).hexdigest()[:16]
        self._prefix = stage_prefix(digest)

    def __reduce__(self) -> tuple[type["SqlDatabase"], tuple[str, TargetOptions]]:
        """Support pickle, which cannot handle connections."""
        return type(self), (self._url, self._options)

    def prepare_for_tasks(self) -> None:
        """Prepare; UsageError also if processes of Spark cannot use the database side by side."""
        if not self._dialect.is_shared:
            raise UsageError(
                f"{self._dialect.place}: only one process at a time can open it, and Spark has "
                f"several: use SqlDatabase in a program of your own (docs/second-database.md)"
            )
        self.prepare()

    def prepare(self) -> None:
        """Create the follower's own missing tables. UsageError: the database cannot be a target."""
        with self._dialect.errors():
            self._dialect.check_server(self._open())
        with suppress(DuplicateValue):  # another first start was quicker
            return self._prepare()
        return self._prepare()

    def _prepare(self) -> None:
        with self._transaction() as connection:
            self._catalog.create(connection)
            self._ended_copies.create(connection)
            begun = {"deletes": self._options.deletes, "schema": self._options.schema or ""}
            if self._options.key_scope is KeyScope.SHARD:
                begun["key_scope"] = KeyScope.SHARD
            if self._options.key_range != WHOLE:
                begun["key_range"] = str(self._options.key_range)
            self._catalog.settle_options(connection, begun)
            self._dropper.create(connection)

    def held(self) -> TargetState | None:
        """Return what the target holds of the follower, None if nothing."""
        with self._transaction() as connection:
            return self._catalog.held(connection)

    @property
    def where(self) -> str:
        """The target and the follower, for messages."""
        return self._catalog.where

    def applied(self) -> tuple[int, int | None, int]:
        """Return how many changes were applied, up to which frontier, and how many rejected."""
        with self._transaction() as connection:
            return self._catalog.applied(connection)

    def same_keys(self) -> tuple[int, tuple[SameKey, ...]]:
        """Return the frontier, and some keys that have live rows on several shards there."""
        with self._transaction() as connection:
            return self._catalog.same_keys(connection)

    def known(self) -> dict[tuple[str, str], KnownTable]:
        """Return the tables that the target has, for `changes_of`."""
        with self._transaction() as connection:
            return self._catalog.known(connection)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Be the only one who writes for the follower while the context lasts.

        TargetConflict if another one does. Staging tables that a crash has left are dropped.
        """
        with self._dialect.errors(), self._open().connect() as connection:
            if not self._dialect.claim(connection, self._options.follower):
                raise TargetConflict(
                    f"another query writes to {self._dialect.place} as '{self._options.follower}': "
                    f"stop it, or wait until the server has noticed its end"
                )
            connection.commit()
            self.clean_up()
            try:
                yield
            finally:
                # In the pool the connection outlives this; if it is lost, the lock is too.
                with suppress(DBAPIError):
                    self._dialect.release_claims(connection)

    def clean_up(self) -> None:
        """Do what batches that were cut off have left to be done, before tasks stage the next."""
        self.drop_stages()
        if not self._dialect.has_transactional_ddl:
            with self._transaction() as connection:
                self._dropper.drop(connection, begun_only=True)
        self.drop_columns()

    def drop_stages(self) -> None:
        """Drop the staging tables of batches that were cut off; they take the target's room."""
        with self._transaction() as connection:
            for name in self._dialect.stages(connection, self._prefix):
                self._dialect.drop_stage(connection, name)

    def drop_columns(self) -> bool:
        """Drop the columns that no shard has any more; tell whether there were some.

        It is done between batches: what tasks have staged does not know of it.
        """
        if not self._options.drop_columns:
            return False
        with self._transaction() as connection:
            return self._dropper.drop(connection)

    def stage(self, changes: Iterable[TableChanges]) -> list[Staged]:
        """Stage the changes of one task. BadValue names the first value that does not fit.

        Where only one connection can write, nothing is written yet: `apply` stages them.
        """
        if not self._dialect.stages_in_tasks:
            return [carry(self._dialect, each) for each in changes]
        with self._transaction() as connection:
            return [self._stage(connection, each) for each in changes]

    def _stage(self, connection: Connection, changes: TableChanges) -> Staged:
        rejects = self._options.on_bad_row == "table"
        return stage(connection, self._dialect, changes, self._prefix, rejects=rejects)

    def apply(self, batch: PlannedBatch, staged: Sequence[Staged]) -> bool:
        """Apply a batch in one transaction; False if the target holds it already.

        TargetConflict: the batch does not begin where the target ends. Retry: it must be staged
        again.
        """
        if self.drop_columns():  # a batch was cut off between its commit and this
            self._drop(staged)
            raise Retry(f"{self.where}: a column was dropped, and the batch is run again")
        try:
            if not self._dialect.has_transactional_ddl:
                self._fit_before(batch, staged)
            done = self._apply(batch, staged, replace=False)
        except ShapeConflict as error:
            if self._options.on_type_change is OnTypeChange.HALT:
                raise
            self._fit_tables(batch, first_of_tables(staged))
            self._drop(staged)
            raise Retry(f"{error}. The column is there now, and the batch is run again") from None
        except DuplicateValue:
            # The way to the batch's end may lead over states that unique indexes refuse; its end,
            # which the source had, does not.
            done = self._apply_replacing(batch, staged)
        self._drop(staged)
        self.drop_columns()
        return done

    def _apply_replacing(self, batch: PlannedBatch, staged: Sequence[Staged]) -> bool:
        try:
            return self._apply(batch, staged, replace=True)
        except DuplicateValue as error:
            raise DatabaseRefuses(
                f"{error}. The rows of the sources have a value twice that a unique "
                f"index of the target allows once, as rows of two shards may: drop that index"
                f"{_KEPT_TOO if self._options.deletes == 'soft' else ''}"
            ) from None

    def apply_arrow(self, batch: PlannedBatch, changes: Iterable[TableChanges]) -> bool:
        """Stage and apply the changes of a batch from one process, without Spark."""
        return self.apply(batch, self.stage(changes))

    def _apply(self, batch: PlannedBatch, staged: Sequence[Staged], *, replace: bool) -> bool:
        is_ending = False
        try:
            with self._dialect.errors(), self._open().connect() as connection:
                here = [
                    each if each.carried is None else self._stage(connection, each.carried)
                    for each in staged
                ]
                if not self._catalog.move(connection, batch, sum(each.rows for each in here)):
                    return False
                self._apply_tables(connection, batch, here, replace=replace)
                if not self._dialect.stages_in_tasks:
                    self._drop_stages(connection, here)
                is_ending = True
                connection.commit()
        except Retry:
            # Lost in COMMIT: the position tells whether the server has committed.
            if not is_ending or not self._has(batch):
                raise
        return True

    def _has(self, batch: PlannedBatch) -> bool:
        return self.held() == TargetState(batch.query_id, batch.batch_id, batch.end)

    def _apply_tables(
        self,
        connection: Connection,
        batch: PlannedBatch,
        staged: Sequence[Staged],
        *,
        replace: bool,
    ) -> None:
        soft = self._options.deletes == "soft"
        frontier_us = batch.end.frontier_us
        ended = self._ended(connection, staged)
        for source, table, stages in self._fitted(connection, staged):
            removals = tuple(dict.fromkeys(r for each in stages for r in each.removals))
            writer = TableWriter(
                *(connection, self._dialect, table), soft=soft, on_partial=self._options.on_partial
            )
            writer.apply(stages, removals, replace=replace)
            if writer.may_hide:
                is_on = self._options.on_same_key is OnSameKey.STOP
                keys = writer.same_keys(SAME_KEYS_MAX) if is_on else ()
                self._catalog.set_same_keys(connection, source, keys)
            self._catalog.reject(connection, source, (r for each in stages for r in each.rejected))
            shards = ended.pop(source, None)
            if shards:
                now = self._catalog.tables(connection)[source]
                whole = self._options.key_range
                self._catalog.end_copies(connection, now, shards, whole, frontier_us)
        for source, shards in ended.items():
            self._ended_copies.add(connection, source, shards)
        if self._options.drop_columns:
            self._dropper.follow(connection, staged, batch.end.shards, soft=soft)
        else:  # what it remembers is not kept up to date; a query that only tried changes nothing
            self._dropper.forget(connection)
        self._catalog.leave(connection, self._options.left)
        if batch.batch_id % EXPIRE_EVERY == EXPIRE_EVERY - 1:
            for known in self._catalog.tables(connection).values():
                writer = TableWriter(connection, self._dialect, known.table, soft=soft)
                writer.expire(frontier_us - self._options.tombstones_us)

    def _ended(
        self, connection: Connection, staged: Iterable[Staged]
    ) -> dict[tuple[str, str], set[str]]:
        """Return the shards whose copies have ended in a batch, or before the table's first row."""
        before = self._ended_copies.shards(connection)
        found: dict[tuple[str, str], set[str]] = {}
        for source, stages in by_table(staged).items():
            ended = {shard for each in stages for shard in each.ended_copies}
            if ended or source in before:
                found[source] = ended | before.get(source, set())
                self._ended_copies.remove(connection, source)
        return found

    def _fit_before(self, batch: PlannedBatch, staged: Sequence[Staged]) -> None:
        """Fit the tables. Retry if another follower registered a table at the same moment."""
        try:
            self._fit_tables(batch, staged)
        except DuplicateValue as error:
            raise Retry(f"{error}: another follower was quicker, the batch is run again") from None

    def _fit_tables(self, batch: PlannedBatch, staged: Sequence[Staged]) -> None:
        """Fit the tables before the batch's transaction, which DDL would end.

        A batch that is cut off leaves columns without values, which the next try finds.
        """
        with self._transaction() as connection:
            if step_of(self.where, self._catalog.held(connection), batch) is Step.APPLY:
                list(self._fitted(connection, staged))

    def _fitted(
        self, connection: Connection, staged: Iterable[Staged]
    ) -> Iterator[tuple[tuple[str, str], TargetTable, list[Staged]]]:
        """Yield the tables of a batch by their source, with all columns that the batch has."""
        soft = self._options.deletes == "soft"
        tables = TargetTables(self._dialect, self._catalog, schema=self._options.schema, soft=soft)
        known = self._catalog.tables(connection)
        for source, stages in sorted(by_table(staged).items()):
            there = known.get(source)
            shapes = [each.shape for each in stages if each.shape.columns]
            if there is None and not shapes:
                continue
            renames = tuple(dict.fromkeys(name for each in stages for name in each.renames))
            table = tables.fit(
                *(connection, source, there),
                shapes=shapes,
                renames=renames,
                state=self._options.state,
            )
            yield source, table, stages

    def _drop(self, staged: Iterable[Staged]) -> None:
        """Drop staging tables; what a crash leaves is dropped at the next start."""
        with self._transaction() as connection:
            self._drop_stages(connection, staged)

    def _drop_stages(self, connection: Connection, staged: Iterable[Staged]) -> None:
        for each in staged:
            if each.stage is not None:
                self._dialect.drop_stage(connection, each.stage)

    def _open(self) -> Engine:
        return _engine_of(self._url)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._dialect.errors(), self._open().begin() as connection:
            yield connection


@lru_cache(maxsize=16)
def _engine_of(url: str) -> Engine:
    """One pool of connections per process: tasks come with objects of their own."""
    return dialect_of(url).open_engine()
