"""MySQL 8.0.17 and MariaDB 10.5.2, or newer: rows are staged by LOAD DATA LOCAL or INSERT.

All tables lie in the database of the URL. An upsert is an UPDATE of the rows that are there and an
INSERT of the others: ON DUPLICATE KEY UPDATE would change another row, without a word, where a
second unique index has a value.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pymysql.constants import CLIENT
from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect
from sqlalchemy.exc import DBAPIError

from event_token.errors import ShardstreamError, UsageError
from spark_consumers.applying.changes import ABSENT, DELETED, KEY, TIME
from spark_consumers.second_database.dialect import Dialect, Update, rows_of, run
from spark_consumers.second_database.mysql import own_source, refusals, types
from spark_consumers.second_database.mysql.loading import LoadingConnection
from spark_consumers.second_database.mysql.staging import StagedRows
from spark_consumers.second_database.names import INTERNAL, KEPT, NUMBER, ORIGIN, TargetTable
from topics.progress.record import Progress
from topics.records.table_shape import Column, TableShape, ValueKind

CONNECT_S_MAX = 30
# An ALTER that waits for a long query keeps all later ones waiting.
LOCK_WAIT_S_MAX = 60
# The connection that holds the lock may be silent for as long as servers allow.
CLAIM_S_MAX = 31_536_000
_SESSION = (
    "SET SESSION time_zone = '+00:00', sql_safe_updates = 0, "
    f"lock_wait_timeout = {LOCK_WAIT_S_MAX}, "
    # Zero and invalid dates are values; whatever does not fit is an error.
    "sql_mode = 'STRICT_ALL_TABLES,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,"
    "NO_ENGINE_SUBSTITUTION'"
)
_KEY_INDEX_CHARS = 191
_IS_TEXT = re.compile(r"char|text")
_NUMBER_TYPE = "bigint NOT NULL AUTO_INCREMENT"


class MysqlDialect(Dialect):
    """MySQL and MariaDB."""

    name_max = 64
    name_unit = "characters"
    folds_case = True
    may_be_source = True
    has_transactional_ddl = False
    meta_types: Mapping[str, str] = types.META_TYPES

    def __init__(self, url: URL) -> None:
        """Keep the URL, whose driver is PyMySQL. UsageError if it names no database."""
        if not url.database:
            raise UsageError("--to names no database: mysql://USER@HOST/DATABASE")
        self._url = url
        self._database = url.database

    def open_engine(self) -> Engine:
        """Return an engine whose sessions speak UTC and UTF-8."""
        engine = create_engine(
            self._url.update_query_dict({"charset": "utf8mb4"}),
            pool_pre_ping=True,
            hide_parameters=True,
            # No locks on rows of staging tables that are read, nor on gaps.
            isolation_level="READ COMMITTED",
            connect_args={
                "connect_timeout": CONNECT_S_MAX,
                "init_command": _SESSION,
                "client_flag": CLIENT.FOUND_ROWS | CLIENT.LOCAL_FILES,
                "program_name": "shardstream",
            },
        )
        event.listen(engine, "do_connect", _connect)
        return engine

    def type_of(self, column: Column, *, is_key: bool = False) -> str:
        """Return the type of a column."""
        return types.type_of(column, is_key=is_key)

    def source_shard(self, connection: Connection, shards: Mapping[str, Progress]) -> str | None:
        """Ask the server who it is: a URL may name it in many ways."""
        return own_source.shard_of(connection, shards)

    def check_key(self, shape: TableShape) -> None:
        """Refuse it before anything is created: DDL commits by itself."""
        size = types.key_bytes(shape)
        if size > types.KEY_BYTES_MAX:
            raise UsageError(
                f"{shape.database}.{shape.table}: its primary key may take {size} bytes as "
                f"utf8mb4, and the target allows {types.KEY_BYTES_MAX}: leave the table out"
            )

    def schema_of(self, database: str) -> str:  # noqa: ARG002 - as of others
        """Return the database of the URL."""
        return self._database

    def internal_name(self, name: str) -> tuple[str, str]:
        """Return the database of the URL and a name with a prefix."""
        return self._database, f"{INTERNAL}_{name}"

    def quote(self, name: str) -> str:
        """Return a name in backticks."""
        doubled = name.replace("`", "``").replace(":", "\\:")
        return f"`{doubled}`"

    def claim(self, connection: Connection, follower: str) -> bool:
        """Take a lock of the session, by a name that is unique on the server."""
        run(connection, f"SET SESSION wait_timeout = {CLAIM_S_MAX}")
        digest = hashlib.sha256(f"{self._database} {follower}".encode()).hexdigest()
        name = f"shardstream {digest[:32]}"
        [(has,)] = rows_of(connection, "SELECT GET_LOCK(:name, 0)", {"name": name})
        return bool(has)

    def release_claims(self, connection: Connection) -> None:
        """Release the named locks of the session, which may be closed again when it is idle."""
        rows_of(connection, "SELECT RELEASE_ALL_LOCKS()")
        run(connection, "SET SESSION wait_timeout = DEFAULT")

    def create_schema(self, connection: Connection, name: str) -> None:
        """Create a database, unless it is there: that takes fewer rights."""
        if name not in inspect(connection).get_schema_names():
            run(connection, f"CREATE DATABASE IF NOT EXISTS {self.quote(name)}")

    def create_own(
        self, connection: Connection, place: str, columns: str, *, is_numbered: bool = False
    ) -> None:
        """Create a table whose names differ by case, whatever the database's defaults are.

        The character set may be latin1, as in MariaDB before 11.6, and the engine MyISAM.
        """
        number = f", {self.quote(NUMBER)} {_NUMBER_TYPE} PRIMARY KEY" if is_numbered else ""
        options = _options(connection)
        run(connection, f"CREATE TABLE IF NOT EXISTS {place} ({columns}{number}){options}")

    def create_table(
        self, connection: Connection, place: str, columns: Mapping[str, str], key: Sequence[str]
    ) -> None:
        """Create a table with a primary key, unless a batch that was cut off has."""
        self._create(connection, f"TABLE IF NOT EXISTS {place}", columns, key)

    def create_homes(
        self, connection: Connection, table: TargetTable, columns: Mapping[str, str]
    ) -> None:
        """Create the table, an index on `_key`, and one to find hidden rows and old tombstones."""
        deleted_at = self.listed((DELETED, TIME))
        self._create(
            connection,
            f"TABLE IF NOT EXISTS {self.internal(table.homes)}",
            _numbered(columns),
            [NUMBER],
            f", KEY ({self.quote(KEY)}({_KEY_INDEX_CHARS})), KEY ({deleted_at})",
        )

    def create_work(self, connection: Connection, table: TargetTable) -> str:
        """Create a temporary table, for which no transaction ends."""
        place = self.internal("work")
        self.drop_work(connection, place)
        columns = {column.name: self.type_of(column) for column in table.shape.columns}
        own = self.meta_columns((KEY, *KEPT)) | {ORIGIN: "smallint"}
        self._create(connection, f"TEMPORARY TABLE {place}", _numbered(columns | own), [NUMBER])
        return place

    def drop_work(self, connection: Connection, work: str) -> None:
        """Drop the temporary table."""
        run(connection, f"DROP TEMPORARY TABLE IF EXISTS {work}")

    def create_stage(self, connection: Connection, name: str, columns: Mapping[str, str]) -> None:
        """Create a table whose primary key is the order of its rows."""
        place = self.internal(name)
        self._create(connection, f"TABLE {place}", _numbered(columns), [NUMBER])

    def index_stage(self, connection: Connection, name: str, columns: Sequence[str]) -> None:
        """Add an index by ALTER TABLE: CREATE INDEX would take one more privilege."""
        index = f"ADD INDEX ({self.listed(columns)})"
        run(connection, f"ALTER TABLE {self.internal(name)} {index}")

    def differs(self, a: str, b: str) -> str:
        """Return the condition in MySQL's words."""
        return f"NOT ({a} <=> {b})"

    def converted(self, expression: str, column: Column) -> str:  # noqa: ARG002 - as of others
        """Return the expression: values of different types are compared as they are."""
        return expression

    def stage_rows(
        self, connection: Connection, name: str, rows: pa.Table, shape: TableShape
    ) -> None:
        """Stage the rows in the order of the primary key."""
        key = [(shape.columns[i].name, "ascending") for i in shape.primary_key]
        staged = StagedRows(connection, self.internal(name), rows.sort_by(key), shape)
        [(may_load,)] = rows_of(connection, "SELECT @@local_infile")
        if may_load:
            staged.load()
        else:
            staged.insert()

    def add_column(self, connection: Connection, place: str, column: Column) -> None:
        """Add a column, unless a batch that was cut off has."""
        if column.name not in _columns_of(connection, place):
            statement = f"ALTER TABLE {place} ADD COLUMN {self.quote(column.name)}"
            self._alter(connection, statement, self.type_of(column))

    def widen_column(
        self, connection: Connection, place: str, column: Column, *, is_key: bool
    ) -> None:
        """Change the type of a column, and keep the collation that somebody gave it."""
        kind = self.type_of(column, is_key=is_key)
        statement = f"ALTER TABLE {place} MODIFY COLUMN {self.quote(column.name)}"
        collation = _collations_of(connection, place)[column.name]
        more = f" COLLATE {collation}" if collation and _IS_TEXT.search(kind) else ""
        if is_key:
            run(connection, f"{statement} {kind}{more}")
        else:
            self._alter(connection, statement, kind, more)

    def rename_column(self, connection: Connection, place: str, old: str, new: str) -> None:
        """Rename a column, unless a batch that was cut off has."""
        columns = _columns_of(connection, place)
        if old in columns and new not in columns:
            super().rename_column(connection, place, old, new)

    def drop_column(self, connection: Connection, place: str, name: str) -> None:
        """Drop a column, unless that was done before and then cut off."""
        if name in _columns_of(connection, place):
            super().drop_column(connection, place, name)

    def upsert(
        self,
        connection: Connection,
        table: TargetTable,
        stage: str,
        columns: Sequence[str],
        kept: Sequence[str],
    ) -> int:
        """UPDATE the rows that are there, INSERT the others."""
        place = self.table(table.schema, table.name)
        given = [*columns, *kept]
        sets = self.assignments(table, columns, kept, "s", "t.")
        whole = f"{self.in_bulk()} AND s.{self.quote(ABSENT)} IS NULL"
        updated = run(
            connection,
            f"UPDATE {self.internal(stage)} s STRAIGHT_JOIN {place} t "
            f"ON {self.same_key('t', 's', table.key)} SET {sets} "
            f"WHERE {whole} AND {self.same_home('t', 's')}",
        )
        return updated + run(
            connection,
            f"INSERT INTO {place} ({self.listed(given)}) SELECT {self.listed(given, 's.')} "
            f"FROM {self.internal(stage)} s LEFT JOIN {place} t FORCE INDEX (PRIMARY) "
            f"ON {self.same_key('t', 's', table.key)} "
            f"WHERE {whole} AND t.{self.quote(table.key[0])} IS NULL",
        )

    def update_from(self, connection: Connection, update: Update) -> int:
        """UPDATE of a join."""
        return run(
            connection,
            f"UPDATE {self.internal(update.stage)} s STRAIGHT_JOIN {update.place} t "
            f"ON {self.same_key('t', 's', update.key)} "
            f"SET {self.taken(update.columns, 't.')} WHERE {update.where}",
            update.values,
        )

    def delete_matching(
        self,
        connection: Connection,
        place: str,
        other: str,
        where: str,
        values: Mapping[str, object] | None = None,
    ) -> int:
        """DELETE of a join, which looks up the rows by index."""
        return run(connection, f"DELETE t FROM {other} STRAIGHT_JOIN {place} t ON {where}", values)

    def translated(self, error: DBAPIError) -> ShardstreamError:
        """Map the server's number; the message has no password and no values."""
        return refusals.translated(self.place, error)

    @property
    def place(self) -> str:
        """The database, for messages."""
        return f"mysql://{self._url.host or 'localhost'}/{self._database}"

    def _create(
        self,
        connection: Connection,
        what: str,
        columns: Mapping[str, str],
        key: Sequence[str],
        indexes: str = "",
    ) -> None:
        """Create a table: `what` are kind and place."""
        declared = {name: _declared(connection, kind) for name, kind in columns.items()}
        fitting = types.fitting(declared, key)
        keys = f"PRIMARY KEY ({self.listed(key)}){indexes}"
        run(
            connection, f"CREATE {what} ({self.definitions(fitting)}, {keys}){_options(connection)}"
        )

    def _alter(self, connection: Connection, statement: str, kind: str, more: str = "") -> None:
        """Run an ALTER TABLE with a type; a long one if the row is too large for it."""
        try:
            run(connection, f"{statement} {_declared(connection, kind)}{more}")
        except DBAPIError as error:
            long = types.stored_apart(kind)
            if long is None or not refusals.is_too_wide(error):
                raise
            run(connection, f"{statement} {long}{more}")


def _declared(connection: Connection, kind: str) -> str:
    """Return the type as this server has it.

    MariaDB's JSON is a text with a CHECK that refuses what is nested deeper than 32 levels. MySQL's
    may have 100.
    """
    is_mariadb = getattr(connection.dialect, "is_mariadb", False)
    return types.TYPES[ValueKind.STRING] if kind == "json" and is_mariadb else kind


def _numbered(columns: Mapping[str, str]) -> dict[str, str]:
    """Add the number that is the primary key: servers may demand one."""
    return {**columns, NUMBER: _NUMBER_TYPE}


def _options(connection: Connection) -> str:
    """Return what follows the columns of a table."""
    collation = _exact_collation(connection)
    return f" ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation}"


def _connect(_dialect: Any, _record: Any, arguments: Any, named: Any) -> Any:
    return LoadingConnection(*arguments, **named)


def _columns_of(connection: Connection, place: str) -> set[str]:
    return set(_collations_of(connection, place))


def _collations_of(connection: Connection, place: str) -> dict[str, str | None]:
    """Return the collation of each column, None for those that are no texts."""
    found = rows_of(connection, f"SHOW FULL COLUMNS FROM {place}")
    return {row.Field: row.Collation for row in found}


def _exact_collation(connection: Connection) -> str:
    """Return the collation that tells all texts apart, also by spaces at their ends."""
    [(name,)] = rows_of(
        connection,
        "SELECT MAX(collation_name) FROM information_schema.collations "
        "WHERE collation_name IN ('utf8mb4_0900_bin', 'utf8mb4_nopad_bin')",
    )
    return str(name or "utf8mb4_bin")
