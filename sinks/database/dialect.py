"""What differs between databases: names, types, how rows are staged and upserted.

`Dialect` is the interface. Its methods get an open SQLAlchemy connection, run SQL on it and never
commit, but for `claim`. A new dialect gives types, `stage_rows`, `upsert` and what it must quote
otherwise.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pyarrow as pa
from sqlalchemy import Connection, Engine, ExceptionContext, event, inspect, text
from sqlalchemy.exc import DBAPIError

from credentials.errors import SecretUnavailable
from credentials.secret import Secret
from databases.errors import LoginRefused
from event_token.errors import ShardstreamError
from sinks.rule.homes import ABSENT, COMPARE, DELETED, HOME, KEY, SEQ, SHARD, TIME, TOKEN
from topics.records.table_shape import Column, TableShape

# The schema (or, where there are none, the prefix) of the tables that the followers need.
INTERNAL = "_shardstream"
CONTESTED = "_contested"
NUMBER = "_number"
ORIGIN = "_origin"

# What a row of the target keeps of its last change, and what is staged of a change.
STORED = (TIME, SHARD, SEQ, HOME, TOKEN)
KEPT = (*STORED, DELETED)
STAGED = (KEY, *KEPT, COMPARE, ABSENT, CONTESTED)
# What no column of a table may be called.
RESERVED = (*STAGED, NUMBER, ORIGIN)

# By column: the names of `Dialect.meta_types`.
META_KINDS = {
    KEY: "key",
    TIME: "long",
    SHARD: "name",
    SEQ: "long",
    HOME: "bytes",
    TOKEN: "text",
    DELETED: "flag",
    COMPARE: "flag",
    ABSENT: "text",
    CONTESTED: "small",
    NUMBER: "long",
}


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table of the target, as the follower knows it.

    `schema` is empty where the database has none. `shape` names all columns that the follower has
    created; the table may have others.
    """

    number: int
    schema: str
    name: str
    shape: TableShape

    @property
    def columns(self) -> list[str]:
        """The names of the follower's columns."""
        return [column.name for column in self.shape.columns]

    @property
    def key(self) -> list[str]:
        """The names of the primary key's columns."""
        return [self.shape.columns[i].name for i in self.shape.primary_key]

    @property
    def homes(self) -> str:
        """The name of the table that has the other homes of its keys, and tombstones."""
        return f"homes_{self.number}"


# The connection that holds a follower's lock is silent for as long as the query runs. Firewalls
# drop silent connections after some minutes, and by the system's defaults a dead server is noticed
# after two hours.
KEEPALIVE_IDLE_S = 60
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 6


def run(connection: Connection, statement: str, values: Mapping[str, object] | None = None) -> int:
    """Run a statement with `:name` parameters; return how many rows it changed."""
    return int(connection.execute(text(statement), values or {}).rowcount)


def rows_of(
    connection: Connection, query: str, values: Mapping[str, object] | None = None
) -> list[Any]:
    """Run a query with `:name` parameters; return its rows."""
    return list(connection.execute(text(query), values or {}).all())


@dataclass(frozen=True, slots=True)
class Update:
    """An update of rows by staged ones of the same key.

    `place`: the quoted table, `stage` the name of the staging table. `where`: a condition over `t`
    (the row) and `s` (the staged one) with the parameters `values`.
    """

    place: str
    stage: str
    key: Sequence[str]
    columns: Sequence[str]
    where: str
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StagedUpsert:
    """An upsert of staged rows into a table.

    `columns` of the table are staged, its other ones become NULL; `kept` are the follower's own.
    """

    table: TargetTable
    stage: str
    columns: Sequence[str]
    kept: Sequence[str]


def closing_cut_off(engine: Engine) -> Engine:
    """Let an engine close each connection whose call is ended from outside, as by a time limit.

    The pool would lend it with an answer that nobody has read; and the error would be one of
    SQLAlchemy's.
    """

    def close(context: ExceptionContext) -> BaseException | None:
        error = context.original_exception
        if isinstance(error, context.dialect.loaded_dbapi.Error):
            return None
        context.is_disconnect, context.invalidate_pool_on_disconnect = True, False
        return error

    event.listen(engine, "handle_error", close, retval=True)
    return engine


class Dialect:
    """A kind of database. Names are given unquoted."""

    # The longest name of a table or column, in this unit.
    name_max: int
    name_unit: ClassVar[Literal["bytes", "characters"]] = "bytes"
    # Columns that every table has, so that no other one may be called so.
    system_columns: ClassVar[frozenset[str]] = frozenset()
    # Whether columns whose names differ by case alone are one column.
    folds_case: ClassVar[bool] = False
    # Whether DDL takes part in transactions. Where it does not, each of these methods may find its
    # work done already, by a batch that was cut off.
    has_transactional_ddl: ClassVar[bool]
    # The SQL types of the follower's own columns, by `names.META_KINDS`.
    meta_types: Mapping[str, str]
    # Where the password is, if not in the URL.
    password: Secret | None = None

    def login(self, connect: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Return a driver's connection, made with the password as it is now.

        One that was kept may have been changed before its time: it is read again if the server
        refuses it. Raises LoginRefused where it cannot be read, or what the driver raises.
        """
        if self.password is None:
            return connect(**arguments)
        try:
            password = self.password.read()
            try:
                return connect(**{**arguments, "password": password})
            except Exception as error:
                if not self.refuses_login(error):
                    raise
                renewed = self.password.renewed(password)
                if renewed == password:
                    raise
            return connect(**{**arguments, "password": renewed})
        except SecretUnavailable as error:
            raise LoginRefused(f"{self.place}: {error}") from error

    def refuses_login(self, error: BaseException) -> bool:
        """Tell whether a driver's error says that the account or its password is refused."""
        raise NotImplementedError

    def open_engine(self) -> Engine:
        """Return an engine; nothing is connected yet. It never shows values in its errors."""
        raise NotImplementedError

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """A connection of an engine of its own, for a few questions; nothing of it stays open."""
        engine = self.open_engine()
        try:
            with self.errors(), engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()

    def type_of(self, column: Column, *, is_key: bool = False) -> str:
        """Return the SQL type that holds every value of a column."""
        raise NotImplementedError

    def check_key(self, shape: TableShape) -> None:
        """UsageError if a primary key is larger than the target allows."""

    def schema_of(self, database: str) -> str:
        """Return the schema of a source database's tables; empty: that of the connection."""
        return database

    def internal_name(self, name: str) -> tuple[str, str]:
        """Return schema and name of one of the follower's own tables."""
        return INTERNAL, name

    def create_schema(self, connection: Connection, name: str) -> None:
        """Create a schema if it is missing."""
        raise NotImplementedError

    def create_own(
        self,
        connection: Connection,
        place: str,
        columns: str,
        *,
        is_numbered: bool = False,  # noqa: ARG002 - as of others
    ) -> None:
        """Create a table of the follower's own, unless it is there.

        `columns`: their definitions. `is_numbered`: none of them is a key.
        """
        run(connection, f"CREATE TABLE IF NOT EXISTS {place} ({columns})")

    def create_table(
        self, connection: Connection, place: str, columns: Mapping[str, str], key: Sequence[str]
    ) -> None:
        """Create a table with a primary key; `place` is quoted."""
        raise NotImplementedError

    def create_homes(
        self, connection: Connection, table: TargetTable, columns: Mapping[str, str]
    ) -> None:
        """Create the table of hidden rows and tombstones, with an index on `_key`."""
        raise NotImplementedError

    def create_work(self, connection: Connection, table: TargetTable) -> str:
        """Create an empty table like that of the homes; return its quoted name.

        It also has the columns `_number` (1, 2, ...) and `_origin`.
        """
        raise NotImplementedError

    def drop_work(self, connection: Connection, work: str) -> None:
        """Drop the table of `create_work`; the transaction stays open."""
        run(connection, f"DROP TABLE {work}")

    def add_column(self, connection: Connection, place: str, column: Column) -> None:
        """Add a column that may be NULL."""
        kind = self.type_of(column)
        run(connection, f"ALTER TABLE {place} ADD COLUMN {self.quote(column.name)} {kind}")

    def widen_column(
        self, connection: Connection, place: str, column: Column, *, is_key: bool
    ) -> None:
        """Change a column to a wider type."""
        raise NotImplementedError

    def rename_column(self, connection: Connection, place: str, old: str, new: str) -> None:
        """Rename a column."""
        names = f"{self.quote(old)} TO {self.quote(new)}"
        run(connection, f"ALTER TABLE {place} RENAME COLUMN {names}")

    def drop_column(self, connection: Connection, place: str, name: str) -> None:
        """Drop a column."""
        run(connection, f"ALTER TABLE {place} DROP COLUMN {self.quote(name)}")

    def stages(self, connection: Connection, prefix: str) -> list[str]:
        """Return the names of the staging tables that begin so."""
        schema, begin = self.internal_name(prefix)
        return [
            prefix + name.removeprefix(begin)
            for name in inspect(connection).get_table_names(schema=schema or None)
            if name.startswith(begin)
        ]

    def claim(self, connection: Connection, follower: str) -> bool:
        """Take the follower's lock; False: another has it.

        It lasts until `release_claims`, or for as long as the connection and what `claim` has left
        open on it.
        """
        raise NotImplementedError

    def release_claims(self, connection: Connection) -> None:
        """Give back what `claim` has taken on this connection."""
        connection.rollback()

    def create_stage(self, connection: Connection, name: str, columns: Mapping[str, str]) -> None:
        """Create a staging table, which need not survive a crash; `columns`: types by name."""
        raise NotImplementedError

    def drop_stage(self, connection: Connection, name: str) -> None:
        """Drop a staging table, unless it is gone already."""
        run(connection, f"DROP TABLE IF EXISTS {self.internal(name)}")

    def stage_rows(
        self, connection: Connection, name: str, rows: pa.Table, shape: TableShape
    ) -> None:
        """Put rows into a staging table. BadValue names the first one that does not fit."""
        raise NotImplementedError

    def may_skip_rows(
        self,
        connection: Connection,  # noqa: ARG002 - as of others
        table: TargetTable,  # noqa: ARG002 - as of others
    ) -> bool:
        """Tell whether a table has triggers or rules that can skip rows without an error."""
        return False

    def upsert(self, connection: Connection, rows: "StagedUpsert") -> int:
        """Upsert staged rows whose key is new or has a row of the same home; return how many.

        Rows that are contested, tombstones or partial are not taken.
        """
        raise NotImplementedError

    def update_of(self, update: "Update") -> str:
        """Return the statement that sets columns of rows to the staged ones of the same key."""
        return (
            f"UPDATE {update.place} AS t SET {self.taken(update.columns)} "
            f"FROM {self.internal(update.stage)} s "
            f"WHERE {self.same_key('t', 's', update.key)} AND {update.where}"
        )

    def delete_of(self, place: str, other: str, where: str) -> str:
        """Return the statement that deletes the rows of a table for which another one has a row.

        `place`: the quoted table. `other`: the other one, quoted, with an alias; few of its rows
        may meet the condition `where`, which is over that alias and `t` (the row).
        """
        return f"DELETE FROM {place} AS t WHERE EXISTS (SELECT 1 FROM {other} WHERE {where})"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate the database's errors."""
        try:
            yield
        except DBAPIError as error:
            raise self.translated(error) from None

    def translated(self, error: DBAPIError) -> ShardstreamError:
        """Return the ShardstreamError for one of the database's, without values and passwords.

        DuplicateValue where a unique index has a value already.
        """
        raise NotImplementedError

    @property
    def place(self) -> str:
        """The database, for messages."""
        raise NotImplementedError

    def quote(self, name: str) -> str:
        """Return a quoted name for use in `run`, where a colon begins a parameter."""
        doubled = name.replace('"', '""').replace(":", "\\:")
        return f'"{doubled}"'

    def table(self, schema: str, name: str) -> str:
        """Return the quoted name of a table."""
        return f"{self.quote(schema)}.{self.quote(name)}" if schema else self.quote(name)

    def internal(self, name: str) -> str:
        """Return the quoted name of one of the follower's own tables."""
        return self.table(*self.internal_name(name))

    def listed(self, names: Iterable[str], prefix: str = "") -> str:
        """Return quoted names, with commas."""
        return ", ".join(prefix + self.quote(name) for name in names)

    def definitions(self, columns: Mapping[str, str]) -> str:
        """Return columns with their types, with commas."""
        return ", ".join(f"{self.quote(column)} {kind}" for column, kind in columns.items())

    def assignments(self, rows: StagedUpsert, row: str, prefix: str = "") -> str:
        """Return what `upsert` sets in the columns of a row, with `prefix`, from another `row`."""
        values = {name: f"{row}.{self.quote(name)}" for name in (*rows.columns, *rows.kept)}
        values |= {name: "NULL" for name in rows.table.columns if name not in rows.columns}
        return ", ".join(
            f"{prefix}{self.quote(name)} = {value}"
            for name, value in values.items()
            if name not in rows.table.key
        )

    def meta_columns(self, names: Iterable[str]) -> dict[str, str]:
        """Return the types of columns of the follower's own."""
        return {name: self.meta_types[META_KINDS[name]] for name in names}

    def taken(self, columns: Iterable[str], prefix: str = "") -> str:
        """Return what sets columns, with `prefix`, to those of the staged row `s`."""
        return ", ".join(f"{prefix}{self.quote(c)} = s.{self.quote(c)}" for c in columns)

    def same_key(self, a: str, b: str, key: Iterable[str]) -> str:
        """Return the condition that two rows have one key."""
        return " AND ".join(f"{a}.{self.quote(c)} = {b}.{self.quote(c)}" for c in key)

    def index_stage(self, connection: Connection, name: str, columns: Sequence[str]) -> None:
        """Add an index to a staging table."""
        index = self.quote(f"{name}_key")
        place = self.internal(name)
        run(connection, f"CREATE INDEX {index} ON {place} ({self.listed(columns)})")

    def differs(self, a: str, b: str) -> str:
        """Return the condition that two expressions differ; NULL equals NULL."""
        return f"{a} IS DISTINCT FROM {b}"

    def converted(self, expression: str, column: Column) -> str:
        """Return an expression in the type of a column that is wider than its own."""
        return f"CAST({expression} AS {self.type_of(column)})"

    def same_home(self, a: str, b: str) -> str:
        """Return the condition that two rows of one key are surely of one home (`is_same_home`)."""
        home, shard = self.quote(HOME), self.quote(SHARD)
        return (
            f"({a}.{home} = {b}.{home} OR (({a}.{home} IS NULL OR {b}.{home} IS NULL) "
            f"AND {a}.{shard} = {b}.{shard}))"
        )

    def perhaps_same_home(self, a: str, b: str) -> str:
        """Return the condition that two rows of one key are of one home, or that it is unknown."""
        home = self.quote(HOME)
        return f"({a}.{home} = {b}.{home} OR {a}.{home} IS NULL OR {b}.{home} IS NULL)"

    def in_bulk(self, prefix: str = "s.") -> str:
        """Return the condition that a staged row is an upsert that is applied in bulk."""
        contested, deleted = self.quote(CONTESTED), self.quote(DELETED)
        return f"{prefix}{contested} = 0 AND {prefix}{deleted} = FALSE"
