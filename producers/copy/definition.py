"""Reads a table's present definition from the server, as its binlog would describe it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from databases.sql import quoted, rows
from databases.system_versioned import (
    ROW_END,
    ROW_START,
    SYSTEM_VERSIONED,
    TABLE_TYPES,
    CatalogTable,
    catalog_table,
)
from event_token import Flavor
from producers.copy.errors import CannotCopy
from producers.decoder.tables.column_types import (
    BIT,
    BLOB,
    BLOB_COMPRESSED,
    DATE,
    DATETIME2,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    INT24,
    JSON,
    LONG,
    LONGLONG,
    NEWDECIMAL,
    SET,
    SHORT,
    STRING,
    TIME2,
    TIMESTAMP2,
    TINY,
    VARCHAR,
    VARCHAR_COMPRESSED,
    VECTOR,
    YEAR,
    ColumnType,
)
from producers.decoder.tables.plan import TablePlan
from producers.decoder.tables.row_ends import set_row_end
from producers.decoder.tables.server_columns import is_unlogged
from producers.decoder.tables.table_map import plan_columns
from producers.decoder.values import operations as ops
from producers.decoder.values.charset import UTF8
from producers.decoder.values.hidden_values import HIDDEN_BYTES
from producers.decoder.values.wire import encode_string
from producers.filters.collations import BINARY, collation_number
from producers.preflight.typed_columns import BYTES, NOTHING_DECLARED, TypedColumns

_TYPES: Final = {
    "tinyint": TINY,
    "smallint": SHORT,
    "mediumint": INT24,
    "int": LONG,
    "bigint": LONGLONG,
    "float": FLOAT,
    "double": DOUBLE,
    "decimal": NEWDECIMAL,
    "date": DATE,
    "time": TIME2,
    "datetime": DATETIME2,
    "timestamp": TIMESTAMP2,
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
# The columns of a system-versioned table that names none, as a catalog would describe them.
_VERSIONING: Final = [
    (name, "timestamp", "timestamp(6)", None, None, None, None, 6, None, "NO")
    for name in (ROW_START, ROW_END)
]
# In the order of the servers' numbers; MySQL has two names for the last one.
GEOMETRIES: Final = (
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"),
    *("multipolygon", "geometrycollection"),
)
_BLOB_BYTES: Final = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_BLOB_NAME: Final = re.compile(r"(tiny|medium|long|)(?:text|blob)")
# One label of a column type: quotes are doubled, control characters and \ escaped by \.
_LABEL: Final = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED: Final = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPES: Final = {"0": "\0", "n": "\n", "r": "\r"}


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the key that chunks follow."""

    name: str
    index: int
    descending: bool


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table version: how its rows are read and written, and the key that chunks follow.

    `is_in_snapshots`: a snapshot shows the table as of its place, as with InnoDB.
    """

    database: str
    table: str
    plan: TablePlan
    key: tuple[KeyColumn, ...]
    index: str
    # Columns that a SELECT shows as text and the binlog as bytes: UUID, INET4, INET6.
    hidden: frozenset[str] = frozenset()
    is_in_snapshots: bool = True


def read_definition(
    connection: Any,
    flavor: Flavor,
    database: str,
    table: str,
    text_as_bytes: frozenset[str] = frozenset(),
    *,
    typed_columns: TypedColumns = NOTHING_DECLARED,
) -> TableDefinition:
    """The table's present definition. CannotCopy, naming the table, if it cannot be copied.

    `text_as_bytes`: columns, as database.table.column, whose text is logged as raw bytes.
    `typed_columns`: declared types of columns that MariaDB's binlog shows as BINARY.
    """
    name = f"{database}.{table}"
    found = rows(
        connection,
        "SELECT column_name, data_type, column_type, character_set_name, character_octet_length, "
        "numeric_precision, numeric_scale, datetime_precision, collation_name, is_nullable, "
        "generation_expression "
        "FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        (database, table),
    )
    if not found:
        raise _not_there(name)
    found = [tuple(column) for *column, how in found if not is_unlogged(flavor, how)]
    engine, versioning = _engine(connection, flavor, database, table)
    if versioning is not None and all(column[0] != versioning.row_end for column in found):
        found += _VERSIONING
    columns = [_column_type(name, flavor, i, *column) for i, column in enumerate(found)]
    for column in columns:
        column.is_kept_as_bytes = f"{name}.{column.name}" in text_as_bytes
    hidden = frozenset(str(column[0]) for column in found if column[1] in HIDDEN_BYTES)
    if flavor is Flavor.MARIADB:
        _declare(name, columns, {str(c[0]): str(c[2]) for c in found}, typed_columns)
    names = [column.name for column in columns]
    row_end = "" if versioning is None else versioning.row_end
    index, key = _key(name, names, _index_rows(connection, database, table), row_end)
    plan = TablePlan(b"", database, table)
    plan.key_prefix = encode_string(database) + encode_string(table)
    plan.problem = plan_columns(plan, columns, [column.index for column in key])
    if plan.problem:
        raise CannotCopy(f"table {name}: {plan.problem}")
    if versioning is not None:
        set_row_end(plan, row_end)
    _read_as_selected(plan)
    is_in_snapshots = engine == "innodb"
    return TableDefinition(database, table, plan, key, index, hidden, is_in_snapshots)


def _not_there(name: str) -> CannotCopy:
    return CannotCopy(f"table {name} does not exist, or the account has no SELECT privilege on it")


def _engine(
    connection: Any, flavor: Flavor, database: str, table: str
) -> tuple[str, CatalogTable | None]:
    """Return a table's engine in lower case, and its columns if it is system-versioned.

    CannotCopy unless it is a table of that name.
    """
    name = f"{database}.{table}"
    found = rows(
        connection,
        "SELECT table_type, engine, table_schema, table_name FROM information_schema.tables "
        "WHERE table_schema = %s AND table_name = %s",
        (database, table),
    )
    if not found:
        raise _not_there(name)
    [(kind, engine, *own)] = found
    if kind not in TABLE_TYPES:
        raise CannotCopy(f"{name} is a {kind.lower()}, not a base table")
    if own != [database, table]:  # the server takes names in any case, and logs rows by its own
        raise CannotCopy(f"table {name} is {'.'.join(own)} on the server: name it so")
    is_versioned = flavor is Flavor.MARIADB and kind == SYSTEM_VERSIONED
    versioning = catalog_table(connection, database, table) if is_versioned else None
    return str(engine).lower(), versioning


def _read_as_selected(plan: TablePlan) -> None:
    """Adapt columns that a SELECT returns in another form than the binlog."""
    for planned in plan.columns:
        if planned.op == ops.JSON:
            # The SELECT returns text where the binlog has MySQL's binary form.
            planned.op, planned.size, planned.charset_kind = ops.BLOB, 4, UTF8
        elif planned.op == ops.COMPRESSED:
            planned.op, planned.size = ops.BLOB, 4  # a SELECT returns it uncompressed


def _declare(
    table: str, columns: list[ColumnType], types: dict[str, str], typed_columns: TypedColumns
) -> None:
    """Set the declared types; CannotCopy if a column has another one."""
    for column in columns:
        place = f"{table}.{column.name}"
        wrong = typed_columns.contradiction(place, types[column.name])
        if wrong is not None:
            raise CannotCopy(f"table {table}: {wrong[0]}. Fix: {wrong[1]}")
        declared = typed_columns.type_of(place)
        column.declared = "" if declared == BYTES else declared


def _index_rows(connection: Any, database: str, table: str) -> list[dict[str, Any]]:
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


def _column_type(
    table: str,
    flavor: Flavor,
    index: int,
    name: str,
    data_type: str,
    column_type: str,
    charset: str | None,
    octets: int | None,
    precision: int | None,
    scale: int | None,
    second_digits: int | None,
    collation: str | None,
    nullable: str,
) -> ColumnType:
    """The column as a table map would describe it."""
    data_type = data_type.lower().replace("geomcollection", "geometrycollection")
    code = _type_code(data_type, column_type, flavor)
    if code is None:
        raise CannotCopy(
            f"table {table}, column {name!r}: its type, {column_type}, is not decoded: change it, "
            f"or copy the other tables without this one"
        )
    column = ColumnType(index, code)
    column.name = name
    column.unsigned = "unsigned" in column_type or "zerofill" in column_type
    column.charset = {None: "binary", "utf8": "utf8mb3"}.get(charset, charset or "")
    if column.is_text(flavor is Flavor.MARIADB):
        column.collation = collation_number(collation or BINARY)
    column.nullable = nullable == "YES"
    octets, precision = int(octets or HIDDEN_BYTES.get(data_type, 0)), int(precision or 0)
    blob = _BLOB_NAME.fullmatch(data_type)
    if code == STRING:
        column.meta_0, column.meta_1 = STRING ^ ((octets & 0x300) >> 4), octets & 0xFF
    elif code in {VARCHAR, VARCHAR_COMPRESSED}:
        octets += code == VARCHAR_COMPRESSED  # one more byte tells how a value is compressed
        column.meta_0, column.meta_1 = octets & 0xFF, octets >> 8
    elif blob is not None:
        column.meta_0 = _BLOB_BYTES[blob[1]]
    elif code == NEWDECIMAL:
        column.meta_0, column.meta_1 = precision, int(scale or 0)
    elif code == BIT:
        column.meta_0, column.meta_1 = precision % 8, precision // 8
    elif code in {TIME2, DATETIME2, TIMESTAMP2}:
        column.meta_0 = int(second_digits or 0)
    elif code in {ENUM, SET}:
        column.labels = [_unescaped(label) for label in _LABEL.findall(column_type)]
        column.meta_1 = _label_bytes(code, len(column.labels))
    else:
        _set_fixed(column, data_type, column_type)
    return column


def _type_code(data_type: str, column_type: str, flavor: Flavor) -> int | None:
    """The type's number in a table map; None if it is not supported."""
    code = GEOMETRY if data_type in GEOMETRIES else _TYPES.get(data_type)
    if _BLOB_NAME.fullmatch(data_type):
        code = BLOB
    if data_type == "vector" and flavor is Flavor.MARIADB:
        code = VARCHAR  # as it is logged
    # Not for ENUM, whose labels may contain the word.
    if code in {BLOB, VARCHAR} and flavor is Flavor.MARIADB and "COMPRESSED" in column_type:
        code = BLOB_COMPRESSED if code == BLOB else VARCHAR_COMPRESSED
    return code


def _set_fixed(column: ColumnType, data_type: str, column_type: str) -> None:
    """Set the remaining types: values of fixed size, or with a length of four bytes."""
    if column.type_code in {FLOAT, DOUBLE, JSON, GEOMETRY, VECTOR}:
        column.meta_0 = 8 if column.type_code == DOUBLE else 4
    if column.type_code == GEOMETRY:
        column.geometry = GEOMETRIES.index(data_type)
    elif column.type_code == VECTOR:
        column.dimension = int(column_type.removeprefix("vector(").removesuffix(")"))


def _unescaped(label: str) -> str:
    return _ESCAPED.sub(lambda m: "'" if m[1] is None else _ESCAPES.get(m[1], m[1]), label)


def _label_bytes(code: int, labels: int) -> int:
    if code == ENUM:
        return 1 if labels < 256 else 2
    size = (labels + 7) // 8
    return 8 if size > 4 else size
