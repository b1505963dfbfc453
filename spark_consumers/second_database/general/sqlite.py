"""SQLite 3.39 or newer: one file on this machine, with many readers and one writer."""

import fcntl
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection as FileConnection
from typing import Any, Final, TextIO

import sqlalchemy as sa
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from event_token.errors import ShardstreamError, UsageError
from spark_consumers.applying.changes import ABSENT
from spark_consumers.second_database.dialect import Dialect, run
from spark_consumers.second_database.general.dialect import GeneralDialect
from spark_consumers.second_database.general.types import TYPES, SqlType
from spark_consumers.second_database.names import TargetTable
from topics.records.table_shape import Column, ValueKind

# How long one that writes may keep others waiting: a batch takes seconds.
BUSY_MS_MAX = 60_000
_SESSION = (
    # First: what follows waits for others too.
    f"PRAGMA busy_timeout = {BUSY_MS_MAX}",
    # Readers see the last commit while a batch is written.
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
)
# Its numbers have 64 bits: what is longer is kept as text.
_TEXT = sa.Text()
_TYPES: Final[Mapping[ValueKind, SqlType]] = {
    **TYPES,
    ValueKind.LONG: sa.Integer(),
    ValueKind.BIT: sa.Integer(),
    ValueKind.TIME: sa.Integer(),
    ValueKind.DOUBLE: sa.REAL(),
    ValueKind.UNSIGNED_LONG: _TEXT,
    ValueKind.BIT64: _TEXT,
}
_TRANSIENT = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_PROTOCOL")
_REFUSED = ("SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")


class SqliteDialect(GeneralDialect):
    """A database file."""

    folds_case = True
    types = _TYPES
    number_type = "INTEGER PRIMARY KEY"

    def __init__(self, url: URL) -> None:
        """Keep the URL. UsageError if it names no file."""
        super().__init__(url)
        if not url.database or url.database == ":memory:":
            raise UsageError("--to names no file: sqlite:////var/lib/reports.db")
        self._file = Path(url.database)
        self._locks: list[TextIO] = []

    def open_engine(self) -> Engine:
        """Return an engine whose transactions begin with the first statement, DDL too."""
        engine = super().open_engine()
        event.listen(engine, "connect", _connect)
        event.listen(engine, "begin", _begin)
        return engine

    def sql_type(self, column: Column) -> SqlType:
        """Return the type of a column."""
        return _TEXT if column.kind is ValueKind.DECIMAL else super().sql_type(column)

    def claim(self, connection: Connection, follower: str) -> bool:  # noqa: ARG002 - as of others
        """Lock a file beside the database, which ends with the process."""
        digest = hashlib.sha256(follower.encode()).hexdigest()[:16]
        lock = self._file.with_name(f"{self._file.name}-{digest}.lock").open("w")
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._locks.append(lock)
            return True
        lock.close()
        return False

    def release_claims(self, connection: Connection) -> None:  # noqa: ARG002 - as of others
        """Unlock; the file stays, as another process may be about to lock it."""
        while self._locks:
            self._locks.pop().close()

    def upsert(
        self,
        connection: Connection,
        table: TargetTable,
        stage: str,
        columns: Sequence[str],
        kept: Sequence[str],
    ) -> int:
        """UPDATE the rows that are there, INSERT the others: SQLite has no MERGE."""
        place, given = self.table(table.schema, table.name), [*columns, *kept]
        whole = f"{self.in_bulk()} AND s.{self.quote(ABSENT)} IS NULL"
        same = self.same_key("t", "s", table.key)
        updated = run(
            connection,
            f"UPDATE {place} AS t SET {self.assignments(table, columns, kept, 's')} "
            f"FROM {self.internal(stage)} s "
            f"WHERE {same} AND {whole} AND {self.same_home('t', 's')}",
        )
        return updated + run(
            connection,
            f"INSERT INTO {place} ({self.listed(given)}) SELECT {self.listed(given, 's.')} "
            f"FROM {self.internal(stage)} s "
            f"WHERE {whole} AND NOT EXISTS (SELECT 1 FROM {place} t WHERE {same})",
        )

    # Not the MERGE of the general way, which SQLite lacks.
    update_from = Dialect.update_from

    def translated(self, error: DBAPIError) -> ShardstreamError:
        """Say that the file cannot be used, which does not end by itself."""
        name = _name_of(error)
        if name.startswith(_REFUSED):
            return UsageError(f"{self.place}: {error.orig} ({name})")
        return super().translated(error)

    def _is_transient(self, error: DBAPIError) -> bool:
        """Tell by SQLite's own name: its driver has one class for most errors."""
        return _name_of(error).startswith(_TRANSIENT)


def _name_of(error: DBAPIError) -> str:
    return str(getattr(error.orig, "sqlite_errorname", ""))


def _connect(connection: FileConnection, _record: Any) -> None:
    # The driver would commit before DDL, and begin before some statements only.
    connection.isolation_level = None
    for statement in _SESSION:
        connection.execute(statement)


def _begin(connection: Connection) -> None:
    # Waits for the other writer here. A transaction that reads first and writes later is refused at
    # once, however long it may wait, if another has committed in between.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
