"""`SqlDatabase`: applies batches of changes to tables of another database, each exactly once.

Tasks stage their changes side by side (`stage`); the driver applies all of them in one transaction
that also moves the position (`apply`). Nothing here needs Spark.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from credentials.per_process import PerProcess
from event_token.errors import Retry, ShardstreamError, UsageError
from sinks.database.catalog import FollowerCatalog
from sinks.database.dialect import Dialect, TargetTable
from sinks.database.options import WHOLE, DatabaseOptions
from sinks.database.staging import (
    StagedChanges,
    by_table,
    first_of_tables,
    stage,
    stage_prefix,
)
from sinks.database.table_changes import TableWriter
from sinks.database.target_tables import TargetTables
from sinks.database.urls import dialect_of
from sinks.errors import DatabaseRefuses, DuplicateValue, TargetConflict
from sinks.resume import BatchStep, HeldBatch, PlannedBatch, step_of
from sinks.rule.columns import KnownTable
from sinks.rule.policy import OnSameKey, OnTypeChange
from sinks.rule.task_changes import TableChanges
from sinks.same_keys import SAME_KEYS_MAX, SameKey
from topics.arrow.key_scope import KeyScope
from topics.errors import ShapeConflict

# Tombstones are looked through after this many batches: the table of homes has no index for it.
EXPIRE_EVERY = 500

_KEPT_TOO = ", or let it leave out the rows that are deleted (_deleted), which keep their values"


class SqlDatabase:
    """A database that follows the stream. It can be pickled; each process connects by itself."""

    def __init__(self, url: str, options: DatabaseOptions) -> None:
        """Keep URL and options; nothing is connected yet. UsageError: URL or follower is wrong."""
        if not options.follower:
            raise UsageError("follower: name the follower, e.g. after its keyspace")
        self._url = url
        self._options = options
        self._dialect: Dialect = dialect_of(url, replaces_nul=options.nul_text == "replace")
        self._catalog = FollowerCatalog(self._dialect, options.follower)
        self._tables = TargetTables(self._dialect, self._catalog, options)
        digest = hashlib.sha256(options.follower.encode()).hexdigest()[:16]
        self._prefix = stage_prefix(digest)

    def __reduce__(self) -> tuple[type["SqlDatabase"], tuple[str, DatabaseOptions]]:
        """Support pickle, which cannot handle connections."""
        return type(self), (self._url, self._options)

    def prepare(self) -> None:
        """Create the follower's own missing tables. UsageError: the database cannot be a target."""
        with suppress(DuplicateValue):  # another first start was quicker
            return self._prepare()
        return self._prepare()

    def _prepare(self) -> None:
        with self._transaction() as connection:
            self._catalog.create(connection)
            begun = {"deletes": self._options.deletes, "schema": self._options.schema or ""}
            if self._options.key_scope is KeyScope.SHARD:
                begun["key_scope"] = KeyScope.SHARD
            if self._options.key_range != WHOLE:
                begun["key_range"] = str(self._options.key_range)
            self._catalog.settle_options(connection, begun)

    def held(self, *, locked: bool = False) -> HeldBatch | None:
        """Return what the target holds of the follower, None if nothing.

        `locked`: after waiting for a transaction that moves the position, such as a COMMIT whose
        answer was lost and that still runs.
        """
        with self._transaction() as connection:
            return self._catalog.held(connection, locked=locked)

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
                self._tables.drop(connection, begun_only=True)
        self.drop_columns()

    def drop_stages(self) -> None:
        """Drop the staging tables of batches that were cut off; they take the target's room."""
        with self._transaction() as connection:
            for name in self._dialect.stages(connection, self._prefix):
                self._dialect.drop_stage(connection, name)

    def drop_columns(self) -> bool:
        """Drop the columns that no shard has any more; return whether there were some.

        It is done between batches: what tasks have staged does not know of it.
        """
        if not self._options.drop_columns:
            return False
        with self._transaction() as connection:
            return self._tables.drop(connection)

    def stage(self, changes: Iterable[TableChanges]) -> list[StagedChanges]:
        """Stage the changes of one task. BadValue names the first value that does not fit."""
        rejects = self._options.on_bad_row == "table"
        with self._transaction() as connection:
            return [
                stage(connection, self._dialect, each, self._prefix, rejects=rejects)
                for each in changes
            ]

    def apply(self, batch: PlannedBatch, staged: Sequence[StagedChanges]) -> bool:
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
            if self._options.on_type_change is OnTypeChange.STOP:
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

    def _apply_replacing(self, batch: PlannedBatch, staged: Sequence[StagedChanges]) -> bool:
        try:
            return self._apply(batch, staged, replace=True)
        except DuplicateValue as error:
            raise DatabaseRefuses(
                f"{error}. The rows of the sources have a value twice that a unique "
                f"index of the target allows once, as rows of two shards may: drop that index"
                f"{_KEPT_TOO if self._options.is_soft else ''}"
            ) from None

    def apply_arrow(self, batch: PlannedBatch, changes: Iterable[TableChanges]) -> bool:
        """Stage and apply the changes of a batch from one process, without Spark."""
        return self.apply(batch, self.stage(changes))

    def _apply(
        self, batch: PlannedBatch, staged: Sequence[StagedChanges], *, replace: bool
    ) -> bool:
        is_ending = False
        try:
            with self._dialect.errors(), self._open().connect() as connection:
                if not self._catalog.move(connection, batch, sum(each.rows for each in staged)):
                    return False
                self._apply_tables(connection, batch, staged, replace=replace)
                is_ending = True
                _commit(connection)
        except ShardstreamError:
            # An error of COMMIT, whichever it is, does not say whether the server has committed.
            if not is_ending or not self._has(batch):
                raise
        return True

    def _has(self, batch: PlannedBatch) -> bool:
        return self.held(locked=True) == HeldBatch(batch.query_id, batch.batch_id, batch.end)

    def _apply_tables(
        self,
        connection: Connection,
        batch: PlannedBatch,
        staged: Sequence[StagedChanges],
        *,
        replace: bool,
    ) -> None:
        frontier_us = batch.end.frontier_us
        ended = self._ended(connection, staged)
        for source, table, stages in self._fitted(connection, staged):
            removals = tuple(dict.fromkeys(r for each in stages for r in each.removals))
            writer = TableWriter(connection, self._dialect, table, self._options)
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
            self._catalog.add_ended_copies(connection, source, shards)
        if self._options.drop_columns:
            self._tables.follow(connection, staged, batch.end.shards)
        else:  # what it remembers is not kept up to date; a query that only tried changes nothing
            self._catalog.forget_lacking(connection)
        self._catalog.leave(connection, self._options.left)
        if batch.batch_id % EXPIRE_EVERY == EXPIRE_EVERY - 1:
            for known in self._catalog.tables(connection).values():
                writer = TableWriter(connection, self._dialect, known.table, self._options)
                writer.expire(frontier_us - self._options.tombstones_us)

    def _ended(
        self, connection: Connection, staged: Iterable[StagedChanges]
    ) -> dict[tuple[str, str], set[str]]:
        """Return the shards whose copies have ended in a batch, or before the table's first row."""
        before = self._catalog.ended_copies(connection)
        found: dict[tuple[str, str], set[str]] = {}
        for source, stages in by_table(staged).items():
            ended = {shard for each in stages for shard in each.ended_copies}
            if ended or source in before:
                found[source] = ended | before.get(source, set())
                self._catalog.remove_ended_copies(connection, source)
        return found

    def _fit_before(self, batch: PlannedBatch, staged: Sequence[StagedChanges]) -> None:
        """Fit the tables. Retry if another follower registered a table at the same moment."""
        try:
            self._fit_tables(batch, staged)
        except DuplicateValue as error:
            raise Retry(f"{error}: another follower was quicker, the batch is run again") from None

    def _fit_tables(self, batch: PlannedBatch, staged: Sequence[StagedChanges]) -> None:
        """Fit the tables before the batch's transaction, which DDL would end.

        A batch that is cut off leaves columns without values, which the next try finds.
        """
        with self._transaction() as connection:
            if step_of(self.where, self._catalog.held(connection), batch) is BatchStep.APPLY:
                list(self._fitted(connection, staged))

    def _fitted(
        self, connection: Connection, staged: Iterable[StagedChanges]
    ) -> Iterator[tuple[tuple[str, str], TargetTable, list[StagedChanges]]]:
        """Yield the tables of a batch by their source, with all columns that the batch has."""
        known = self._catalog.tables(connection)
        for source, stages in sorted(by_table(staged).items()):
            there = known.get(source)
            shapes = [each.shape for each in stages if each.shape.columns]
            if there is None and not shapes:
                continue
            renames = tuple(dict.fromkeys(name for each in stages for name in each.renames))
            table = self._tables.fit(connection, source, there, shapes=shapes, renames=renames)
            yield source, table, stages

    def _drop(self, staged: Iterable[StagedChanges]) -> None:
        """Drop staging tables; what a crash leaves is dropped at the next start."""
        with self._transaction() as connection:
            for each in staged:
                if each.stage is not None:
                    self._dialect.drop_stage(connection, each.stage)

    def _open(self) -> Engine:
        return _engine_of(self._url)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._dialect.errors(), self._open().connect() as connection:
            yield connection
            _commit(connection)


def _commit(connection: Connection) -> None:
    """Commit. After an error the connection is closed, with all that may be open on it.

    Otherwise it would return to the pool as it is, and who looks for the transaction could see it
    from within.
    """
    try:
        connection.commit()
    except DBAPIError:
        connection.invalidate()
        raise


def _engine_of(url: str) -> Engine:
    """One pool of connections per process: tasks come with objects of their own."""
    return _ENGINES.here()(url)


_ENGINES: PerProcess[Callable[[str], Engine]] = PerProcess(
    lambda: lru_cache(maxsize=16)(lambda url: dialect_of(url).open_engine())
)
