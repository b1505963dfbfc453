"""Checks filter rules against the tables that a server has now."""

from collections.abc import Iterator
from typing import Any, Final

from databases.sql import rows
from databases.system_versioned import (
    ROW_END,
    ROW_START,
    TABLE_TYPES,
    CatalogTable,
    catalog_table,
)
from event_token.errors import UsageError
from producers.decoder.tables.server_columns import is_unlogged, left_out
from producers.decoder.values.hidden_values import HIDDEN_BYTES
from producers.errors import Problem
from producers.filters.binding import bind_rule
from producers.filters.collations import BINARY
from producers.filters.rules import FilterSettings
from producers.filters.sharding_columns import sharding_columns
from producers.filters.source_column import SourceColumn
from producers.preflight.typed_columns import BYTES
from producers.settings import ShardProducerSettings
from topics.records.table_shape import Column, ValueKind

_TABLES: Final = (
    "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type "  # noqa: S608 - constants
    f"IN {TABLE_TYPES} AND table_schema NOT IN ('mysql', 'information_schema', "
    "'performance_schema', 'sys')"
)
_COLUMNS: Final = (
    "SELECT column_name, data_type, column_type, collation_name, is_nullable, numeric_precision, "
    "numeric_scale, column_key, generation_expression FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
)
_KINDS: Final = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint"), ValueKind.INT),
    **dict.fromkeys(("char", "varchar", *HIDDEN_BYTES), ValueKind.STRING),
    **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext"), ValueKind.STRING),
    **dict.fromkeys(("binary", "varbinary"), ValueKind.BYTES),
    **dict.fromkeys(("tinyblob", "blob", "mediumblob", "longblob"), ValueKind.BYTES),
    **{
        kind.value: kind
        for kind in (
            *(ValueKind.FLOAT, ValueKind.DOUBLE, ValueKind.DECIMAL, ValueKind.DATE),
            *(ValueKind.TIME, ValueKind.DATETIME, ValueKind.TIMESTAMP, ValueKind.YEAR),
            *(ValueKind.ENUM, ValueKind.SET, ValueKind.JSON),
        )
    },
}


def rule_problems(
    connection: Any, server_name: str, settings: ShardProducerSettings, *, at_start: bool
) -> list[Problem]:
    """Return a problem per rule that names a missing table or column, or does not fit.

    `at_start`: a missing table is a mistake in the settings; later it may have been dropped, and
    be about to be created again.
    """
    filters = settings.filters
    if not filters:
        return []
    tables = [(str(database), str(table)) for database, table in rows(connection, _TABLES)]
    fix = "correct the filter rules in the settings of the keyspace"
    problems = [
        Problem(f"filter rules name the table {name}, which does not exist", server_name, fix)
        for name in (_missing(filters, tables) if at_start else ())
    ]
    vindexes = sharding_columns(settings.vindexes)
    for table in tables:
        if not filters.includes(*table):
            continue
        unlogged: list[str] = []
        try:
            rule = filters.rule_for(*table)
            if rule is not None:
                columns, primary_key, unlogged = _described(connection, table, settings)
                _add_versioning(columns, primary_key, catalog_table(connection, *table))
                sharding = vindexes.get(table)
                by = None if sharding is None else (sharding.column, sharding.vindex)
                bind_rule(rule, columns, primary_key, by, filters.hmac_key)
        except UsageError as error:
            what = f"the filter rule of {'.'.join(table)}: {error}{left_out(unlogged)}"
            problems.append(Problem(what, server_name, fix))
    return problems


def _missing(settings: FilterSettings, tables: list[tuple[str, str]]) -> Iterator[str]:
    there = {f"{database}.{table}" for database, table in tables}
    patterns = (*settings.include, *settings.exclude, *(rule.table for rule in settings.rules))
    for name in sorted({pattern.text for pattern in patterns if not pattern.is_regexp}):
        if name not in there:
            yield name


def _described(
    connection: Any, table: tuple[str, str], settings: ShardProducerSettings
) -> tuple[list[SourceColumn], list[int], list[str]]:
    """Return the columns of a table, the indexes of its primary key, and what is not logged."""
    with connection.cursor() as cursor:
        cursor.execute(_COLUMNS, table)
        found = cursor.fetchall()
    columns = []
    primary_key = []
    unlogged = [str(name) for name, *_, how in found if is_unlogged(settings.flavor, how)]
    logged = [column for *column, how in found if not is_unlogged(settings.flavor, how)]
    for i, (*described, key) in enumerate(logged):
        place = f"{'.'.join(table)}.{described[0]}"
        is_hidden = str(described[1]).lower() in HIDDEN_BYTES
        declared = settings.typed_columns.type_of(place) if is_hidden else ""
        is_bytes = place in settings.text_as_bytes or declared == BYTES
        columns.append(_source_column(described, is_kept_as_bytes=is_bytes))
        if key == "PRI":
            primary_key.append(i)
    return columns, primary_key, unlogged


def _add_versioning(
    columns: list[SourceColumn], primary_key: list[int], there: CatalogTable | None
) -> None:
    """Add the columns of a system-versioned table that it does not name, as its rows have them."""
    if there is None or there.row_end in {"", *(column.name for column in columns)}:
        return
    for name in (ROW_START, ROW_END):
        column = Column(name, ValueKind.TIMESTAMP, "timestamp(6)")
        columns.append(SourceColumn(column, "", nullable=False))
    primary_key.append(len(columns) - 1)


def _source_column(described: list[Any], *, is_kept_as_bytes: bool) -> SourceColumn:
    """Return a column of information_schema as a table map shows it."""
    name, data_type, sql_type, collation, nullable, precision, scale = described
    data_type, sql_type = data_type.lower(), str(sql_type)
    kind = _kind(data_type, sql_type)
    if kind is ValueKind.STRING and is_kept_as_bytes:
        kind = ValueKind.BYTES
    elif kind is ValueKind.BYTES and data_type in _KINDS:
        collation = BINARY
    is_decimal = kind is ValueKind.DECIMAL
    column = Column(
        str(name),
        kind,
        sql_type,
        precision=int(precision) if is_decimal else 0,
        scale=int(scale) if is_decimal else 0,
    )
    # FLOAT(m,d) is compared by its declared decimals, which a table map does not have.
    is_fixed = data_type in {"float", "double"} and "," in sql_type
    hidden = sql_type if data_type in HIDDEN_BYTES or is_fixed else ""
    return SourceColumn(column, collation or "", nullable == "YES", hidden)


def _kind(data_type: str, sql_type: str) -> ValueKind:
    unsigned = "unsigned" in sql_type
    if data_type == "int":
        return ValueKind.LONG if unsigned else ValueKind.INT
    if data_type == "bigint":
        return ValueKind.UNSIGNED_LONG if unsigned else ValueKind.LONG
    if data_type == "bit":
        return ValueKind.BIT64 if sql_type == "bit(64)" else ValueKind.BIT
    return _KINDS.get(data_type, ValueKind.BYTES)
