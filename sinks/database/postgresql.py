"""PostgreSQL: rows are staged by COPY into unlogged tables and upserted by ON CONFLICT."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import psycopg
import pyarrow as pa
from psycopg import sql
from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect
from sqlalchemy.exc import DBAPIError

from databases.errors import LoginRefused
from event_token.errors import Retry, ShardstreamError, UsageError
from sinks.database.dialect import (
    CONTESTED,
    INTERNAL,
    KEEPALIVE_IDLE_S,
    KEEPALIVE_INTERVAL_S,
    KEEPALIVE_PROBES,
    NUMBER,
    ORIGIN,
    Dialect,
    StagedUpsert,
    TargetTable,
    closing_cut_off,
    rows_of,
    run,
)
from sinks.database.texts import csv_of, place_of, seconds_text, without_nul
from sinks.errors import BadValue, DatabaseRefuses, DuplicateValue
from sinks.rule.homes import ABSENT, DELETED, KEY, TIME
from topics.records.table_shape import Column, TableShape, ValueKind

TYPES: Mapping[ValueKind, str] = {
    ValueKind.INT: "integer",
    ValueKind.YEAR: "integer",
    ValueKind.LONG: "bigint",
    ValueKind.BIT: "bigint",
    ValueKind.UNSIGNED_LONG: "numeric(20)",
    ValueKind.BIT64: "numeric(20)",
    ValueKind.FLOAT: "real",
    ValueKind.DOUBLE: "double precision",
    ValueKind.STRING: "text",
    ValueKind.ENUM: "text",
    ValueKind.SET: "text[]",
    ValueKind.BYTES: "bytea",
    ValueKind.JSON: "jsonb",
    ValueKind.DATE: "date",
    ValueKind.TIME: "interval",
    ValueKind.DATETIME: "timestamp",
    ValueKind.TIMESTAMP: "timestamptz",
}
# For the network, a proxy and a server that is starting or busy.
CONNECT_S_MAX = 30
_KEEPALIVES = {
    "keepalives_idle": KEEPALIVE_IDLE_S,
    "keepalives_interval": KEEPALIVE_INTERVAL_S,
    "keepalives_count": KEEPALIVE_PROBES,
}
# Set in each transaction: a pooler may leave them out at the start, and give each transaction to
# another session, which has what its role, its database or another client has set.
_SETTINGS = {
    "TimeZone": "UTC",
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "client_min_messages": "warning",
}
_SET_ALL = "SELECT " + ", ".join(f"set_config('{k}', '{v}', true)" for k, v in _SETTINGS.items())
# What would end a transaction that only holds a lock; before 17 a server has one of them.
_NO_LIMITS = (
    "SELECT set_config(name, '0', true) FROM pg_settings "
    "WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')"
)
_COLUMN = re.compile(r"^COPY \w+, line \d+, column ([^:\n]+)", re.MULTILINE)
_UNIQUE_VIOLATION = "23505"
_DATA_EXCEPTION = "22"
# Any number that nobody else uses: held while schemas, and tables in them, are created.
_CREATING = 0x73687264_73747265
# Lost, cancelled (statement_timeout too), shutting down, too many connections, trouble with locks,
# disks and files that an operator may end.
_TRANSIENT = ("08", "57", "53", "58", "40", "55P03", "25006")
_LOGIN = "28"
_REFUSED = ("3D000", "42501")
# A connection that was not made has no state, only the server's text.
_BAD_LOGIN = re.compile(r"authentication failed|no password supplied|role .* does not exist")
_NOT_ADMITTED = re.compile(r"no pg_hba.conf entry|does not exist|permission denied")


class PostgresDialect(Dialect):
    """PostgreSQL 13 or newer."""

    name_max = 63
    system_columns = frozenset({"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})
    has_transactional_ddl = True
    meta_types: Mapping[str, str] = {
        "key": "text",
        "long": "bigint",
        "name": "text",
        "bytes": "bytea",
        "text": "text",
        "flag": "boolean",
        "small": "smallint",
    }

    def __init__(self, url: URL, *, replaces_nul: bool = False) -> None:
        """Keep the URL, whose driver is `psycopg`."""
        self._url = url
        self._replaces_nul = replaces_nul

    def open_engine(self) -> Engine:
        """Return an engine whose transactions speak UTC and UTF-8, whatever lies between."""
        engine = create_engine(
            self._url,
            # A connection that the server has closed meanwhile is replaced.
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={
                # What the URL says takes precedence.
                **{k: v for k, v in _KEEPALIVES.items() if k not in self._url.query},
                "connect_timeout": CONNECT_S_MAX,
                "application_name": "shardstream",
                # A prepared statement belongs to a session.
                "prepare_threshold": None,
            },
        )

        def connect(_dialect: Any, _record: Any, _arguments: Any, named: dict[str, Any]) -> Any:
            return self.login(psycopg.connect, named)

        def begin(connection: Connection) -> None:
            connection.exec_driver_sql(_SET_ALL)

        event.listen(engine, "do_connect", connect)
        event.listen(engine, "begin", begin)
        return closing_cut_off(engine)

    def refuses_login(self, error: BaseException) -> bool:
        """Tell by the server's state, or by its text where a connection was not made."""
        state = _state(error)
        return state.startswith(_LOGIN) or (not state and bool(_BAD_LOGIN.search(_said(error))))

    def type_of(self, column: Column, *, is_key: bool = False) -> str:  # noqa: ARG002 - as of others
        """Return the type of a column."""
        if column.kind is ValueKind.DECIMAL:
            return f"numeric({column.precision},{column.scale})"
        return TYPES[column.kind]

    def claim(self, connection: Connection, follower: str) -> bool:
        """Take an advisory lock of the transaction, which stays open.

        A pooler keeps a session for a transaction, and ends it with its client. The transaction has
        no snapshot, so it holds up neither VACUUM nor anything else.
        """
        digest = hashlib.sha256(f"shardstream {follower}".encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        rows_of(connection, _NO_LIMITS)
        # Without parameters: the portal of a query that has some keeps a snapshot.
        return bool(
            connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({number})").scalar()
        )

    def create_schema(self, connection: Connection, name: str) -> None:
        """Create a schema, unless it is there: that takes fewer rights.

        IF NOT EXISTS fails where another session creates it meanwhile: one waits for the other.
        """
        run(connection, f"SELECT pg_advisory_xact_lock({_CREATING})")
        if not inspect(connection).has_schema(name):
            run(connection, f"CREATE SCHEMA IF NOT EXISTS {self.quote(name)}")

    def create_table(
        self, connection: Connection, place: str, columns: Mapping[str, str], key: Sequence[str]
    ) -> None:
        """Create a table whose pages have room.

        Every row has a token, so every change rewrites it: room on its page saves the update of all
        indexes (a HOT update) and a second page in the WAL.
        """
        columns_and_key = f"{self.definitions(columns)}, PRIMARY KEY ({self.listed(key)})"
        run(connection, f"CREATE TABLE {place} ({columns_and_key}) WITH (fillfactor = 90)")

    def create_homes(
        self, connection: Connection, table: TargetTable, columns: Mapping[str, str]
    ) -> None:
        """Create the table, an index on `_key`, and a small one to find hidden rows."""
        place = self.internal(table.homes)
        run(connection, f"CREATE TABLE {place} ({self.definitions(columns)})")
        run(connection, f"CREATE INDEX ON {place} ({self.quote(KEY)})")
        hidden = f"WHERE NOT {self.quote(DELETED)}"
        run(connection, f"CREATE INDEX ON {place} ({self.quote(TIME)}) {hidden}")

    def create_work(self, connection: Connection, table: TargetTable) -> str:
        """Create a temporary table that ends with the transaction."""
        run(
            connection,
            f"CREATE TEMPORARY TABLE shardstream_work (LIKE {self.internal(table.homes)}, "
            f"{self.quote(NUMBER)} bigserial, {self.quote(ORIGIN)} smallint) ON COMMIT DROP",
        )
        return "pg_temp.shardstream_work"

    def widen_column(
        self, connection: Connection, place: str, column: Column, *, is_key: bool
    ) -> None:
        """Change the type; the old one is cast."""
        name, kind = self.quote(column.name), self.type_of(column, is_key=is_key)
        cast = f"USING {name}\\:\\:{kind}"
        run(connection, f"ALTER TABLE {place} ALTER COLUMN {name} TYPE {kind} {cast}")

    def create_stage(self, connection: Connection, name: str, columns: Mapping[str, str]) -> None:
        """Create an unlogged table."""
        place = self.internal(name)
        run(connection, f"CREATE UNLOGGED TABLE {place} ({self.definitions(columns)})")

    def stage_rows(
        self, connection: Connection, name: str, rows: pa.Table, shape: TableShape
    ) -> None:
        """COPY the rows, and count tombstones for the planner."""
        driver = cast("psycopg.Connection[Any]", connection.connection.driver_connection)
        json = {column.name for column in shape.columns if column.kind is ValueKind.JSON}
        rows = _fitting(without_nul(rows, replace=self._replaces_nul, json=json), shape)
        place = sql.Identifier(INTERNAL, name)
        names = sql.SQL(", ").join(map(sql.Identifier, rows.column_names))
        command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(place, names)
        with self._driver_errors():
            try:
                _copy(driver, command, rows)
            except psycopg.DataError as error:
                raise BadValue(_first_problem(driver, command, rows, error)) from None
            few = [sql.Identifier(column) for column in (DELETED, CONTESTED)]
            driver.execute(sql.SQL("ANALYZE {} ({}, {})").format(place, *few))

    def may_skip_rows(self, connection: Connection, table: TargetTable) -> bool:
        """Ask for rules, and for triggers BEFORE each row (the bits 1 and 2), of others."""
        [(found,)] = rows_of(
            connection,
            "SELECT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass(:place) "
            "AND NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 3 = 3) "
            "OR EXISTS (SELECT 1 FROM pg_rewrite WHERE ev_class = to_regclass(:place))",
            {"place": self.table(table.schema, table.name).replace("\\:", ":")},
        )
        return bool(found)

    def upsert(self, connection: Connection, rows: StagedUpsert) -> int:
        """INSERT ... SELECT ... ON CONFLICT, in the order of the key."""
        table, stage, given = rows.table, rows.stage, [*rows.columns, *rows.kept]
        sets = self.assignments(rows, "excluded")
        return run(
            connection,
            f"INSERT INTO {self.table(table.schema, table.name)} AS t ({self.listed(given)}) "
            f"SELECT {self.listed(given, 's.')} FROM {self.internal(stage)} s "
            f"WHERE {self.in_bulk()} AND s.{self.quote(ABSENT)} IS NULL "
            f"ORDER BY {self.listed(table.key, 's.')} "
            f"ON CONFLICT ({self.listed(table.key)}) DO UPDATE SET {sets} "
            f"WHERE {self.same_home('t', 'excluded')}",
        )

    def translated(self, error: DBAPIError) -> ShardstreamError:
        """Map the server's state; the message has no password and no values."""
        return self._translated(error.orig, is_lost=error.connection_invalidated)

    @contextmanager
    def _driver_errors(self) -> Iterator[None]:
        """Translate errors of statements that do not pass through SQLAlchemy."""
        try:
            yield
        except psycopg.Error as error:
            raise self._translated(error, is_lost=False) from None

    def _translated(self, error: BaseException | None, *, is_lost: bool) -> ShardstreamError:
        state, said = _state(error), _said(error)
        if error is not None and self.refuses_login(error):
            return LoginRefused(f"{self.place}: {said} (docs/second-database.md lists the rights)")
        if not state and _NOT_ADMITTED.search(said):
            return UsageError(f"{self.place}: {said} (docs/second-database.md lists the rights)")
        if is_lost or not state or state.startswith(_TRANSIENT):
            return Retry(f"{self.place}: {said}")
        if state.startswith(_REFUSED):
            return UsageError(f"{self.place}: {said} (docs/second-database.md lists the rights)")
        if state.startswith(_DATA_EXCEPTION):
            return BadValue(f"{self.place}: {said}")
        refusal = DuplicateValue if state == _UNIQUE_VIOLATION else DatabaseRefuses
        return refusal(f"{self.place}: {said} (SQLSTATE {state})")

    @property
    def place(self) -> str:
        """The database, for messages."""
        return f"postgresql://{self._url.host or 'localhost'}/{self._url.database or ''}"


def _fitting(rows: pa.Table, shape: TableShape) -> pa.Table:
    for column in shape.columns:
        if column.kind is ValueKind.TIME:
            i = rows.schema.get_field_index(column.name)
            rows = rows.set_column(i, column.name, seconds_text(rows[column.name]))
    return rows


def _state(error: BaseException | None) -> str:
    return str(getattr(error, "sqlstate", None) or "")


def _said(error: BaseException | None) -> str:
    first = getattr(getattr(error, "diag", None), "message_primary", None)
    return str(first or error).strip().splitlines()[0]


def _copy(driver: "psycopg.Connection[Any]", command: sql.Composed, rows: pa.Table) -> None:
    """COPY rows in a savepoint, which is rolled back if one does not fit."""
    with driver.transaction(), driver.cursor() as cursor, cursor.copy(command) as copy:
        copy.write(csv_of(rows))


def _first_problem(
    driver: "psycopg.Connection[Any]",
    command: sql.Composed,
    rows: pa.Table,
    error: psycopg.DataError,
) -> str:
    """Find a row that COPY refuses by halves: the lines that it counts are not rows.

    `error`: what it said of all rows.
    """
    while rows.num_rows:
        half = (rows.num_rows + 1) // 2
        try:
            _copy(driver, command, rows.slice(0, half))
        except psycopg.DataError as refused:
            rows = rows.slice(0, half)
            if half > 1:
                continue
            column = _COLUMN.search(refused.diag.context or "")
            where = f"{place_of(rows, 0)}, column {column[1] if column else 'unknown'}"
            return f"{where}: {_without_value(refused)}"
        rows = rows.slice(half)
    return f"no single row is refused, but all of them are: {_without_value(error)}"


def _without_value(error: psycopg.Error) -> str:
    """The server's message, which may end with the value."""
    return (error.diag.message_primary or str(error)).split(': "')[0]
