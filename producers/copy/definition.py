"""Reads a table's present definition from the server, as its binlog would describe it."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pymysql.constants import ER
from pymysql.err import MySQLError, OperationalError

from databases.catalog import (
    ROW_END,
    ROW_START,
    TABLE_KINDS,
    CatalogColumn,
    CatalogTable,
    read_table,
)
from databases.connection import error_code
from databases.grants import read_account
from databases.sql import quoted, raw_rows
from databases.table_cursor import hold_definition
from event_token import Flavor
from event_token.errors import Rebuild, Retry, UsageError
from producers.decoder.tables.column_types import (
    BIT,
    BLOB,
    BLOB_COMPRESSED,
    BLOB_NAMES,
    DATE,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    GEOMETRY_NAMES,
    INTEGERS,
    JSON,
    NEWDECIMAL,
    SET,
    STRING,
    TEMPORALS,
    VARCHAR,
    VARCHAR_COMPRESSED,
    VECTOR,
    YEAR,
    ColumnType,
)
from producers.decoder.tables.plan import TablePlan
from producers.decoder.tables.server_columns import is_unlogged, set_row_end
from producers.decoder.tables.table_map import plan_columns
from producers.decoder.values import operations as ops
from producers.decoder.values.charset import UTF8
from producers.decoder.values.wire import encode_string
from producers.filters.rules import FilterSettings
from producers.filters.where import BINARY, collation_number
from producers.settings import ShardProducerSettings
from producers.typed_columns import BYTES, HIDDEN_BYTES, TypedColumns


class CannotCopy(UsageError):  # noqa: N818 - named by what it means
    """Raised when a table cannot be copied, or not any further; only its own copy fails."""


class RowNotCopied(Rebuild):
    """Raised when a copied row cannot be decoded: the session ends, and with the next its copy.

    Rows before it may have been produced already; only a new session aborts them.
    """

    def __init__(self, copy_id: str, text: str) -> None:
        self.copy_id = copy_id
        super().__init__(text)


def refuse_left_out(filters: FilterSettings, database: str, table: str) -> None:
    """CannotCopy if the filter rules exclude the table: none of its rows may reach the log."""
    if not filters.includes(database, table):
        raise CannotCopy(
            f"table {database}.{table} is excluded by the keyspace's filter rules (include, "
            "exclude): change the rules, or do not copy it"
        )


class ChunkSpoiled(Retry):
    """Raised when a chunk cannot be used and is read again."""


class ChunkHeld(ChunkSpoiled):
    """Raised when the server is too busy for a chunk now."""


class ChunkTooLarge(ChunkSpoiled):
    """Raised when a chunk exceeds the memory limit after `rows` rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        super().__init__(f"a chunk exceeds the memory limit after {rows} rows")


_TYPES: Final = {
    **{name: code for code, (name, *_) in INTEGERS.items()},
    **{name: code for code, (name, *_) in TEMPORALS.items()},
    **{name: BLOB for names in BLOB_NAMES.values() for name in names},
    **dict.fromkeys(GEOMETRY_NAMES, GEOMETRY),
    "float": FLOAT,
    "double": DOUBLE,
    "decimal": NEWDECIMAL,
    "date": DATE,
    "year": YEAR,
    "char": STRING,
    "binary": STRING,
    "varchar": VARCHAR,
    "varbinary": VARCHAR,
    "enum": ENUM,
    "set": SET,
    "bit": BIT,
    "json": JSON,
    "vector": VECTOR,
    **dict.fromkeys(HIDDEN_BYTES, STRING),  # as they are logged
}
_BLOB_BYTES: Final = {name: size for size, names in BLOB_NAMES.items() for name in names}
# One label of a column type: quotes are doubled, control characters and \ escaped by \.
_LABEL: Final = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED: Final = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPES: Final = {"0": "\0", "n": "\n", "r": "\r"}
# The catalog has labels in utf8mb3, with ? for what that lacks: of these it lacks nothing.
_SHOWN_CHARSETS: Final = frozenset(("ascii", "latin1", "utf8mb3"))
_LISTS: Final = ("enum", "set")
# No such table, or no privilege on it; a view of what is not there.
_NOT_THERE: Final = frozenset(
    {ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR}
    | {ER.VIEW_INVALID}
)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the key that chunks follow."""

    name: str
    index: int
    descending: bool


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table version: how its rows are read and written, and the key that chunks follow.

    `is_in_snapshots`: a snapshot shows the table as of its place, as with InnoDB. `fingerprint`: of
    all columns and of the key; two servers of different releases give the same.
    """

    database: str
    table: str
    plan: TablePlan
    key: tuple[KeyColumn, ...]
    index: str
    # Columns that a SELECT shows as text and the binlog as bytes: UUID, INET4, INET6.
    hidden: frozenset[str] = frozenset()
    is_in_snapshots: bool = True
    fingerprint: str = ""


def read_definition(
    connection: Any, settings: ShardProducerSettings, database: str, table: str
) -> TableDefinition:
    """The table's present definition. CannotCopy, naming the table, if it cannot be copied."""
    name = f"{database}.{table}"
    there = _existing_table(connection, database, table)
    _refuse_hidden_columns(connection, there)
    found = logged_columns(there, settings.flavor)
    if settings.flavor is Flavor.MARIADB:
        _check_declared(name, found, settings.typed_columns)
    columns = [column_type(name, settings, i, column) for i, column in enumerate(found)]
    hidden = frozenset(column.name for column in found if column.data_type in HIDDEN_BYTES)
    names = [column.name for column in columns]
    index, key = _key(name, names, index_parts(connection, database, table), there.row_end)
    plan = TablePlan(b"", database, table)
    plan.key_prefix = encode_string(database) + encode_string(table)
    plan.problem = plan_columns(plan, columns, [column.index for column in key])
    if plan.problem:
        raise CannotCopy(f"table {name}: {plan.problem}")
    if there.row_end:
        set_row_end(plan, there.row_end)
    generations = [column.generation for column in found]
    fingerprint = _fingerprint(there.entry.kind, key, columns, generations)
    _read_as_selected(plan)
    is_in_snapshots = there.entry.engine.lower() == "innodb"
    return TableDefinition(database, table, plan, key, index, hidden, is_in_snapshots, fingerprint)


def held_definition(
    connection: Any, settings: ShardProducerSettings, database: str, table: str
) -> TableDefinition:
    """The same, kept until the open transaction ends. CannotCopy, and MySQLError as a SELECT."""
    try:
        hold_definition(connection, database, table)
    except MySQLError as error:
        if error_code(error) not in _NOT_THERE:
            raise
        # `read_definition` says what is wrong.
    return read_definition(connection, settings, database, table)


def _fingerprint(
    kind: str,
    key: Sequence[KeyColumn],
    columns: Iterable[ColumnType],
    generations: Iterable[str],
) -> str:
    """A digest of what decides which rows follow a key and what their values are.

    Names and types are those of the binlog: catalogs of other releases say `int(11)` and `utf8`.
    """
    described = [
        (
            *(column.name, column.type_code, column.meta_0, column.meta_1, column.unsigned),
            *(column.charset, column.collation, column.nullable, column.labels),
            *(column.is_kept_as_bytes, column.declared, column.geometry, column.dimension),
            generation,
        )
        for column, generation in zip(columns, generations, strict=True)
    ]
    return hashlib.sha256(repr((kind, key, described)).encode()).hexdigest()


def _existing_table(connection: Any, database: str, table: str) -> CatalogTable:
    """The table in the catalog. CannotCopy unless it is one that has rows, of that very name."""
    name = f"{database}.{table}"
    there = read_table(connection, database, table)
    if there is None or not there.columns:
        raise CannotCopy(
            f"table {name} does not exist, or the account has no SELECT privilege on it"
        )
    entry = there.entry
    if entry.kind not in TABLE_KINDS:
        raise CannotCopy(f"{name} is a {entry.kind.lower()}, not a base table")
    if entry.name != (database, table):
        # The server takes names in any case, and logs rows by its own.
        raise CannotCopy(f"table {name} is {'.'.join(entry.name)} on the server: name it so")
    return there


def _refuse_hidden_columns(connection: Any, there: CatalogTable) -> None:
    """CannotCopy if the catalog may lack columns: rows without them would be taken for whole.

    information_schema leaves out each column that the account has no privilege on. The servers show
    a table's definition only to who has one on the whole table, and who has can see all columns.
    """
    database, table = there.entry.name
    try:
        raw_rows(connection, f"SHOW CREATE TABLE {quoted(database)}.{quoted(table)}")
    except OperationalError as error:
        if error.args[0] != ER.TABLEACCESS_DENIED_ERROR:
            raise
        seen = ", ".join(column.name for column in there.columns)
        raise CannotCopy(
            f"table {database}.{table}: the producer's account may read only some of its columns "
            f"({seen}), and rows without the others would be taken for whole ones: GRANT SELECT ON "
            f"{quoted(database)}.{quoted(table)} TO {read_account(connection).name};"
        ) from error


def logged_columns(there: CatalogTable, flavor: Flavor) -> list[CatalogColumn]:
    """The columns that the table's binlog has, in their order there."""
    found = [column for column in there.columns if not is_unlogged(flavor, column.generation)]
    if not there.names_versioning:
        found += map(_versioning_column, (ROW_START, ROW_END))
    return found


def _versioning_column(name: str) -> CatalogColumn:
    """A column of a system-versioned table that names none, as the catalog would describe it."""
    return CatalogColumn(
        name=name,
        data_type="timestamp",
        column_type="timestamp(6)",
        charset="",
        collation="",
        octets=0,
        precision=0,
        scale=0,
        second_digits=6,
        is_nullable=False,
        is_in_primary_key=name == ROW_END,
        is_counter=False,
        generation="",
    )


def _read_as_selected(plan: TablePlan) -> None:
    """Adapt columns that a SELECT returns in another form than the binlog."""
    for planned in plan.columns:
        if planned.op == ops.JSON:
            # The SELECT returns text where the binlog has MySQL's binary form.
            planned.op, planned.size, planned.charset_kind = ops.BLOB, 4, UTF8
        elif planned.op == ops.COMPRESSED:
            planned.op, planned.size = ops.BLOB, 4  # a SELECT returns it uncompressed


def _check_declared(
    table: str, columns: Iterable[CatalogColumn], typed_columns: TypedColumns
) -> None:
    for column in columns:
        wrong = typed_columns.contradiction(f"{table}.{column.name}", column.column_type)
        if wrong is not None:
            raise CannotCopy(f"table {table}: {wrong[0]}. Fix: {wrong[1]}")


def index_parts(connection: Any, database: str, table: str) -> list[dict[str, Any]]:
    """The rows of SHOW INDEX, by their columns' names in lower case."""
    statement = f"SHOW INDEX FROM {quoted(table)} FROM {quoted(database)}"
    with connection.cursor() as cursor:
        cursor.execute(statement)
        names = [column[0].lower() for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _key(
    name: str, columns: list[str], parts: Iterable[dict[str, Any]], row_end: str
) -> tuple[str, tuple[KeyColumn, ...]]:
    """The primary key, else the first unique key without NULLs, as the binlog reports it.

    `row_end`: the column that a system-versioned table has in its keys beside it; a SELECT shows
    present rows alone, and it has the same value in all of them.
    """
    indexes: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        if not int(part["non_unique"]) and part["column_name"] != row_end:
            indexes.setdefault(part["key_name"], []).append(part)
    for index, members in indexes.items():
        whole = all(p["column_name"] is not None and p["sub_part"] is None for p in members)
        no_nulls = not any(p["null"] == "YES" for p in members)
        if index == "PRIMARY" and not whole:
            raise CannotCopy(
                f"table {name}: its primary key has a column prefix, which chunks cannot follow: "
                "give the table a key of whole columns"
            )
        if whole and no_nulls and all(p["index_type"] == "BTREE" for p in members):
            key = tuple(
                KeyColumn(p["column_name"], columns.index(p["column_name"]), p["collation"] == "D")
                for p in members
            )
            return index, key
    raise CannotCopy(
        f"table {name} has neither a primary key nor a unique key without NULLs, which chunks and "
        "changed rows need: give it a primary key"
    )


def column_type(
    table: str, settings: ShardProducerSettings, index: int, there: CatalogColumn
) -> ColumnType:
    """The column as a table map would describe it. CannotCopy if its type is not decoded."""
    data_type = there.data_type.replace("geomcollection", "geometrycollection")
    sql_type = there.column_type
    code = _type_code(data_type, sql_type, settings.flavor)
    if code is None:
        raise CannotCopy(
            f"table {table}, column {there.name!r}: its type, {sql_type}, is not decoded: "
            f"change it, or copy the other tables without this one"
        )
    column = ColumnType(index, code)
    column.name = there.name
    column.unsigned = "unsigned" in sql_type or "zerofill" in sql_type
    column.charset = {"": "binary", "utf8": "utf8mb3"}.get(there.charset, there.charset)
    if column.is_text(settings.flavor is Flavor.MARIADB) or code in {ENUM, SET}:
        column.collation = collation_number(there.collation or BINARY)
    column.nullable = there.is_nullable
    place = f"{table}.{there.name}"
    column.is_kept_as_bytes = place in settings.text_as_bytes
    if settings.flavor is Flavor.MARIADB:
        declared = settings.typed_columns.type_of(place)
        column.declared = "" if declared == BYTES else declared
    octets = there.octets or HIDDEN_BYTES.get(data_type, 0)
    if code == STRING:
        column.meta_0, column.meta_1 = STRING ^ ((octets & 0x300) >> 4), octets & 0xFF
    elif code in {VARCHAR, VARCHAR_COMPRESSED}:
        octets += code == VARCHAR_COMPRESSED  # one more byte has the compression
        column.meta_0, column.meta_1 = octets & 0xFF, octets >> 8
    elif code in {BLOB, BLOB_COMPRESSED}:
        column.meta_0 = _BLOB_BYTES[data_type]
    elif code == NEWDECIMAL:
        column.meta_0, column.meta_1 = there.precision, there.scale
    elif code == BIT:
        column.meta_0, column.meta_1 = there.precision % 8, there.precision // 8
    elif code in TEMPORALS:
        column.meta_0 = there.second_digits
    elif code in {ENUM, SET}:
        column.labels = _labels(table, column, sql_type)
        column.meta_1 = _label_bytes(code, len(column.labels))
    else:
        _set_fixed(column, data_type, sql_type)
    return column


def _type_code(data_type: str, sql_type: str, flavor: Flavor) -> int | None:
    """The type's number in a table map; None if it is not supported."""
    code = _TYPES.get(data_type)
    if data_type == "vector" and flavor is Flavor.MARIADB:
        code = VARCHAR  # as it is logged
    # Not for ENUM, whose labels may contain the word.
    if code in {BLOB, VARCHAR} and flavor is Flavor.MARIADB and "COMPRESSED" in sql_type:
        code = BLOB_COMPRESSED if code == BLOB else VARCHAR_COMPRESSED
    return code


def _set_fixed(column: ColumnType, data_type: str, sql_type: str) -> None:
    """Set the remaining types: values of fixed size, or with a length of four bytes."""
    if column.type_code in {FLOAT, DOUBLE, JSON, GEOMETRY, VECTOR}:
        column.meta_0 = 8 if column.type_code == DOUBLE else 4
    if column.type_code == GEOMETRY:
        column.geometry = GEOMETRY_NAMES.index(data_type)
    elif column.type_code == VECTOR:
        column.dimension = int(sql_type.removeprefix("vector(").removesuffix(")"))


def _labels(table: str, column: ColumnType, sql_type: str) -> list[str]:
    """The labels in a column's type. CannotCopy where the catalog may not show them as they are."""
    labels = [_unescaped(label) for label in _LABEL.findall(sql_type)]
    # Bytes that are no text stand there as x'ff'.
    is_text = _LABEL.sub("", sql_type) in {f"{kind}({',' * (len(labels) - 1)})" for kind in _LISTS}
    doubtful = column.charset not in _SHOWN_CHARSETS and any("?" in label for label in labels)
    if doubtful or not is_text:
        raise CannotCopy(
            f"table {table}, column {column.name!r}: its labels cannot be read, {sql_type}: the "
            f"catalog shows ? in place of characters beyond U+FFFF, and bytes in hexadecimal. "
            f"Give it labels without such and without ?, or CHARACTER SET utf8mb3"
        )
    return labels


def _unescaped(label: str) -> str:
    return _ESCAPED.sub(lambda m: "'" if m[1] is None else _ESCAPES.get(m[1], m[1]), label)


def _label_bytes(code: int, labels: int) -> int:
    if code == ENUM:
        return 1 if labels < 256 else 2
    size = (labels + 7) // 8
    return 8 if size > 4 else size
