"""MySQL 8.0.17 and MariaDB 10.5.2, or newer: rows are staged by LOAD DATA LOCAL or INSERT.

All tables lie in the database of the URL. An upsert is an UPDATE of the rows that are there and an
INSERT of the others: ON DUPLICATE KEY UPDATE would change another row, without a word, where a
second unique index has a value. Texts are compared byte by byte, as the keys of the stream are; the
collation of the source is not in its binlog.
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pymysql.constants import CLIENT
from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect
from sqlalchemy.exc import DBAPIError

from databases.error_codes import LOGIN_REFUSED
from databases.session import UTF8_SESSION, check_session, set_session
from event_token.errors import ShardstreamError, UsageError
from sinks.database.dialect import (
    INTERNAL,
    KEPT,
    NUMBER,
    ORIGIN,
    Dialect,
    StagedUpsert,
    TargetTable,
    Update,
    closing_cut_off,
    rows_of,
    run,
)
from sinks.database.mysql_rows import LoadingConnection, StagedRows, is_too_wide, translated
from sinks.rule.homes import ABSENT, DELETED, KEY, TIME
from topics.records.table_shape import Column, TableShape, ValueKind

TYPES: Final[Mapping[ValueKind, str]] = {
    ValueKind.INT: "int",
    ValueKind.YEAR: "year",
    ValueKind.LONG: "bigint",
    ValueKind.UNSIGNED_LONG: "bigint unsigned",
    ValueKind.BIT: "bit(63)",
    ValueKind.BIT64: "bit(64)",
    ValueKind.FLOAT: "float",
    ValueKind.DOUBLE: "double",
    ValueKind.STRING: "longtext",
    # Shards may declare the labels in different orders.
    ValueKind.ENUM: "varchar(255)",
    ValueKind.SET: "longtext",
    ValueKind.BYTES: "longblob",
    ValueKind.JSON: "json",
    ValueKind.DATE: "date",
    ValueKind.TIME: "time(6)",
    ValueKind.DATETIME: "datetime(6)",
    ValueKind.TIMESTAMP: "timestamp(6)",
}
META_TYPES: Final[Mapping[str, str]] = {
    "key": "mediumtext",
    "long": "bigint",
    "name": "varchar(255)",
    "bytes": "blob",
    "text": "mediumtext",
    "flag": "tinyint(1)",
    "small": "smallint",
}
# InnoDB's keys have at most 3072 bytes; a character of utf8mb4 takes up to four.
KEY_BYTES_MAX = 3072
KEY_CHARS_MAX = KEY_BYTES_MAX // 4
# Longer ones may not fit into a row of 65,535 bytes together with others.
VARCHAR_MAX = 1000

# MySQL's limit of a row without its long texts is 65,535 bytes; the rest is for columns to come.
ROW_BYTES_MAX = 60_000
# The largest column of another type is a DECIMAL.
_OTHER_BYTES = 32
# The smallest that a number or a date takes: the server refuses what is nearly too large itself.
_KEY_NUMBER_BYTES = 1
_VARIABLE = re.compile(r"var(char|binary)\((\d+)\)")

_SIZED = re.compile(r"(?:var)?(?:char|binary)\((\d+)\)")
_FRACTION = re.compile(r"(?:time|datetime|timestamp)(?:\(\d\))?")
_BIT = re.compile(r"bit\(\d+\)")
_SPATIAL: Final = frozenset(
    {
        *("geometry", "point", "linestring", "polygon", "geometrycollection", "geomcollection"),
        *("multipoint", "multilinestring", "multipolygon"),
    }
)
# UUID, INET4 and INET6 as texts.
_NAMED_LENGTHS: Final = {"uuid": 36, "inet4": 15, "inet6": 45}


def type_of(column: Column, *, is_key: bool = False) -> str:
    """Return the type that holds every value of a column exactly."""
    match column.kind:
        case ValueKind.DECIMAL:
            return f"decimal({column.precision},{column.scale})"
        case ValueKind.STRING:
            return _text(column, KEY_CHARS_MAX if is_key else None)
        case ValueKind.BYTES:
            return _bytes(column, is_key=is_key)
        case ValueKind.SET if is_key:
            return f"varchar({KEY_CHARS_MAX})"
        case ValueKind.BIT if _BIT.fullmatch(column.sql_type):
            return column.sql_type
        case ValueKind.TIME | ValueKind.DATETIME if _FRACTION.fullmatch(column.sql_type):
            return column.sql_type
        case ValueKind.TIMESTAMP:
            return _timestamp(column, is_key=is_key)
    return TYPES[column.kind]


def key_bytes(shape: TableShape) -> int:
    """Return how many bytes the longest primary key has."""
    kinds = (type_of(shape.columns[i], is_key=True) for i in shape.primary_key)
    return sum(_bytes_of(kind, _KEY_NUMBER_BYTES) for kind in kinds)


def fitting(columns: Mapping[str, str], key: Collection[str]) -> dict[str, str]:
    """Return types with which a row fits: the longest texts are stored apart."""
    found = dict(columns)
    sizes = {name: _bytes_of(kind) for name, kind in columns.items()}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        long = stored_apart(found[name])
        if sum(sizes.values()) <= ROW_BYTES_MAX:
            break
        if long is not None and name not in key:
            found[name], sizes[name] = long, _OTHER_BYTES
    return found


def stored_apart(kind: str) -> str | None:
    """Return the long type for a VARCHAR or VARBINARY, None for other types."""
    sized = _VARIABLE.fullmatch(kind)
    if sized is None:
        return None
    return TYPES[ValueKind.STRING if sized[1] == "char" else ValueKind.BYTES]


def _bytes_of(kind: str, other: int = _OTHER_BYTES) -> int:
    """`other`: the size of other types than VARCHAR and VARBINARY."""
    sized = _VARIABLE.fullmatch(kind)
    if sized is None:
        return other
    return int(sized[2]) * (4 if sized[1] == "char" else 1)


def _text(column: Column, length_max: int | None) -> str:
    sized = _SIZED.fullmatch(column.sql_type)
    length = int(sized[1]) if sized else _NAMED_LENGTHS.get(column.sql_type)
    if length is None or length > (length_max or VARCHAR_MAX):
        return TYPES[column.kind] if length_max is None else f"varchar({length_max})"
    return f"varchar({max(length, 1)})"


def _bytes(column: Column, *, is_key: bool) -> str:
    if column.sql_type in _SPATIAL and not is_key:
        return "geometry"
    sized = _SIZED.fullmatch(column.sql_type)
    length = int(sized[1]) if sized else KEY_BYTES_MAX
    if is_key:
        return f"varbinary({min(max(length, 1), KEY_BYTES_MAX)})"
    return TYPES[column.kind] if sized is None or length > VARCHAR_MAX else f"varbinary({length})"


def _timestamp(column: Column, *, is_key: bool) -> str:
    declared = column.sql_type if _FRACTION.fullmatch(column.sql_type) else TYPES[column.kind]
    # Without either, a server may let the first TIMESTAMP of a table follow the clock.
    return f"{declared} DEFAULT '2000-01-01 00:00:00'" if is_key else f"{declared} NULL"


CONNECT_S_MAX = 30
# An ALTER that waits for a long query keeps all later ones waiting.
LOCK_WAIT_S_MAX = 60
# The connection that holds the lock may be silent for as long as servers allow.
CLAIM_S_MAX = 31_536_000
_SESSION: Final = {
    "time_zone": "+00:00",
    # Zero and invalid dates are values; a value that does not fit is an error.
    "sql_mode": "STRICT_ALL_TABLES,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,"
    "NO_ENGINE_SUBSTITUTION",
}
_SET_SESSION: Final = (
    f"{set_session(_SESSION)}, sql_safe_updates = 0, lock_wait_timeout = {LOCK_WAIT_S_MAX}"
)
_KEY_INDEX_CHARS = 191
_IS_TEXT = re.compile(r"char|text")
_NUMBER_TYPE = "bigint NOT NULL AUTO_INCREMENT"


class MysqlDialect(Dialect):
    """MySQL and MariaDB."""

    name_max = 64
    name_unit = "characters"
    folds_case = True
    has_transactional_ddl = False
    meta_types: Mapping[str, str] = META_TYPES

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
                "init_command": _SET_SESSION,
                "client_flag": CLIENT.FOUND_ROWS | CLIENT.LOCAL_FILES,
                "program_name": "shardstream",
            },
        )

        def connect(_dialect: Any, _record: Any, _arguments: Any, named: dict[str, Any]) -> Any:
            connection = self.login(LoadingConnection, named)
            try:
                check_session(connection, self.place, _SESSION | UTF8_SESSION)
            except BaseException:
                connection.close()
                raise
            return connection

        event.listen(engine, "do_connect", connect)
        return closing_cut_off(engine)

    def refuses_login(self, error: BaseException) -> bool:
        """Tell by the server's number."""
        return next(iter(error.args), 0) in LOGIN_REFUSED

    def type_of(self, column: Column, *, is_key: bool = False) -> str:
        """Return the type of a column."""
        return type_of(column, is_key=is_key)

    def check_key(self, shape: TableShape) -> None:
        """Refuse it before anything is created: DDL commits by itself."""
        size = key_bytes(shape)
        if size > KEY_BYTES_MAX:
            raise UsageError(
                f"{shape.database}.{shape.table}: its primary key may take {size} bytes as "
                f"utf8mb4, and the target allows {KEY_BYTES_MAX}: leave the table out"
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
        connection.commit()
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
        """Create a table whose names differ by case, independent of the database's defaults.

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

    def upsert(self, connection: Connection, rows: StagedUpsert) -> int:
        """UPDATE the rows that are there, INSERT the others."""
        table, stage, given = rows.table, rows.stage, [*rows.columns, *rows.kept]
        place = self.table(table.schema, table.name)
        sets = self.assignments(rows, "s", "t.")
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

    def update_of(self, update: Update) -> str:
        """UPDATE of a join."""
        return (
            f"UPDATE {self.internal(update.stage)} s STRAIGHT_JOIN {update.place} t "
            f"ON {self.same_key('t', 's', update.key)} "
            f"SET {self.taken(update.columns, 't.')} WHERE {update.where}"
        )

    def delete_of(self, place: str, other: str, where: str) -> str:
        """DELETE of a join, which looks up the rows by index."""
        return f"DELETE t FROM {other} STRAIGHT_JOIN {place} t ON {where}"

    def translated(self, error: DBAPIError) -> ShardstreamError:
        """Map the server's number; the message has no password and no values."""
        return translated(self.place, error)

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
        fitted = fitting(declared, key)
        keys = f"PRIMARY KEY ({self.listed(key)}){indexes}"
        run(connection, f"CREATE {what} ({self.definitions(fitted)}, {keys}){_options(connection)}")

    def _alter(self, connection: Connection, statement: str, kind: str, more: str = "") -> None:
        """Run an ALTER TABLE with a type; a long one if the row is too large for it."""
        try:
            run(connection, f"{statement} {_declared(connection, kind)}{more}")
        except DBAPIError as error:
            long = stored_apart(kind)
            if long is None or not is_too_wide(error):
                raise
            run(connection, f"{statement} {long}{more}")


def _declared(connection: Connection, kind: str) -> str:
    """Return the type as this server has it.

    MariaDB's JSON is a text with a CHECK that refuses what is nested deeper than 32 levels. MySQL's
    may have 100.
    """
    is_mariadb = getattr(connection.dialect, "is_mariadb", False)
    return TYPES[ValueKind.STRING] if kind == "json" and is_mariadb else kind


def _numbered(columns: Mapping[str, str]) -> dict[str, str]:
    """Add the number that is the primary key: servers may demand one."""
    return {**columns, NUMBER: _NUMBER_TYPE}


def _options(connection: Connection) -> str:
    collation = _exact_collation(connection)
    return f" ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation}"


def _columns_of(connection: Connection, place: str) -> set[str]:
    return set(_collations_of(connection, place))


def _collations_of(connection: Connection, place: str) -> dict[str, str | None]:
    """Return the collation of each column, None for those that are no texts."""
    found = rows_of(connection, f"SHOW FULL COLUMNS FROM {place}")
    return {row.Field: row.Collation for row in found}


def _exact_collation(connection: Connection) -> str:
    """Return the collation to which all texts differ, also by spaces at their ends."""
    [(name,)] = rows_of(
        connection,
        "SELECT MAX(collation_name) FROM information_schema.collations "
        "WHERE collation_name IN ('utf8mb4_0900_bin', 'utf8mb4_nopad_bin')",
    )
    return str(name or "utf8mb4_bin")
