"""What a binlog does not show of columns: hidden and generated ones, types, ends of row versions.

The log leaves out those that a server hides, and MariaDB's generated ones.

A server's binlog has columns that it adds to a table for itself, and no SELECT shows them.
MariaDB adds the hash of each unique key that is too long for an index, or that is declared USING
HASH. MySQL adds the value of each expression of an index, and logs its name up to 8.0.22.

MariaDB's binlog has generated columns in some row images only, whatever binlog_row_image is.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from event_token import Flavor
from event_token.errors import UsageError
from producers.decoder.errors import NoKeyspaceId
from producers.decoder.tables.plan import (
    NO_KEY,
    NO_ROW_END,
    FilterPlan,
    MaskedColumn,
    TablePlan,
    set_key,
)
from producers.decoder.values import operations as ops
from producers.typed_columns import HIDDEN_BYTES
from topics.keyspace.vindexes import Vindex
from topics.records.table_shape import Column

_HASH: Final = "DB_ROW_HASH_"
# Before 8.0.19, or somewhat later, the name is a digest.
_OF_EXPRESSION: Final = re.compile(r"!hidden!.+!\d+!\d+|[0-9a-f]{32}")
# MariaDB's generation expressions of a period's columns, whose values no expression gives.
_OF_PERIOD: Final = frozenset(("ROW START", "ROW END"))
# What a column that ends row versions looks like; a version has a start too.
_SECOND_DIGITS: Final = 6
_COLUMNS_MIN: Final = 2


class TableLookup(Protocol):
    """A table as the server's catalog has it now, beside a table version of the binlog.

    Methods raise HiddenType where the account cannot see the table.
    """

    def hidden(self, columns: list[str], doubtful: list[str]) -> frozenset[str]:
        """Return the columns of a table version that are left out of the log.

        They are those of the `doubtful` ones that no SELECT shows, and MariaDB's generated ones.
        """

    def row_end(self, names: list[str], candidates: list[str]) -> str:
        """Return which of the candidates ends MariaDB's row versions, "" for none.

        `names`: all columns of the table version.
        """

    def check_types(self, columns: list[str], *, is_new: bool) -> None:
        """Compare the types of MariaDB's columns that look like BINARY with their declarations.

        `is_new`: rows of the table version are about to be read for the first time; otherwise a
        statement may have changed the table. HiddenType where a declaration is wrong.
        """


class Catalog(Protocol):
    """What settings and server know of columns that a binlog does not describe."""

    def type_of(self, place: str) -> str:
        """Return the declaration of `database.table.column`: a type, "bytes", or "" for none."""

    def look_up(self, database: str, table: str) -> TableLookup:
        """Return a table as the server has it now."""


def may_be_hidden(plan: TablePlan) -> list[str]:
    """Return MariaDB's columns whose type the binlog may not show: they look like BINARY."""
    return [
        column.name
        for column in plan.columns
        if column.op >= ops.UUID
        or (column.op == ops.FIXED_BINARY and column.length in HIDDEN_BYTES.values())
    ]


def named_as_hidden(plan: TablePlan, is_mariadb: bool, has_visibility: bool) -> list[int]:
    """Return the columns that may be the server's: a table map shows no more.

    `has_visibility`: the table map says which columns users declared INVISIBLE, as MySQL's does
    from 8.0.23 on, where it has none of the server's own.
    """
    if is_mariadb:
        return _hashes(plan)
    if has_visibility:
        return []
    return [
        i
        for i, column in enumerate(plan.columns)
        if column.key_slot == NO_KEY and _OF_EXPRESSION.fullmatch(column.name) is not None
    ]


def _hashes(plan: TablePlan) -> list[int]:
    """Return the hashes: last, BIGINT UNSIGNED, in no primary key, and numbered as MariaDB does.

    It takes the lowest numbers that no column of the table has, in any case.
    """
    columns = plan.columns
    count = len(columns)
    first = count
    while first > 0:
        column = columns[first - 1]
        is_hash = column.name.startswith(_HASH) and column.op == ops.U64
        if not is_hash or column.key_slot != NO_KEY:
            break
        first -= 1
    for start in range(first, count):
        used = {column.name.lower() for column in columns[:start]}
        number = 0
        expected: list[str] = []
        while len(expected) < count - start:
            number += 1
            if f"{_HASH}{number}".lower() not in used:
                expected.append(f"{_HASH}{number}")
        if [column.name for column in columns[start:]] == expected:
            return list(range(start, count))
    return []


def hide(plan: TablePlan, hidden: frozenset[str]) -> None:
    """Take columns out of what readers, filter rules and copies see of a table version."""
    plan.hidden = [i for i, column in enumerate(plan.columns) if column.name in hidden]
    if plan.hidden:
        kept = [i for i in range(len(plan.columns)) if i not in plan.hidden]
        seen = written_plan(plan, kept, [plan.shape_columns[i] for i in kept])
        # As they lie in the events, for rules.
        seen.columns = [plan.columns[i] for i in kept]
        plan.visible = seen


def is_unlogged(flavor: Flavor, generation_expression: str) -> bool:
    """Tell whether the log leaves out a column of this generation expression.

    No MariaDB logs generated columns in all images: MINIMAL ones never have VIRTUAL columns, and an
    UPDATE of 11.8.9 has none at all. Absent would mean unchanged. MySQL logs them as any column.
    """
    if flavor is not Flavor.MARIADB or not generation_expression:
        return False
    return generation_expression not in _OF_PERIOD


def left_out(names: Iterable[str]) -> str:
    """Return what a message about a missing column adds where there are hidden ones."""
    listed = ", ".join(names)
    if not listed:
        return ""
    return (
        f"; the log has no columns that the server hides, or that MariaDB generates, which it does "
        f"not log in every row image: {listed}"
    )


def written_plan(table: TablePlan, indexes: list[int], shape: list[Column]) -> TablePlan:
    """Return a table version of these columns of `table`; `shape`: as readers see them."""
    written = TablePlan(table.body, table.database, table.table)
    written.key_prefix = table.key_prefix
    written.key_size = table.key_size
    places = {index: i for i, index in enumerate(indexes)}
    written.primary_key = [places[index] for index in table.primary_key]
    written.row_end = places.get(int(table.row_end), NO_ROW_END)
    written.columns = [table.columns[index].moved(i) for i, index in enumerate(indexes)]
    written.shape_columns = shape
    written.key_names = [written.columns[index].name for index in written.primary_key]
    written.count = len(indexes)
    return written


def all_visible(seen: TablePlan) -> FilterPlan:
    """Return what writes all rows of a table version without its hidden columns."""
    written = written_plan(seen, list(range(len(seen.columns))), seen.shape_columns)
    pairs = zip(seen.columns, written.columns, strict=True)
    columns = [MaskedColumn(source, column, None) for source, column in pairs]
    return FilterPlan(seen, written, columns, ranges=[], predicate=None, predicate_columns=[])


def may_end_rows(plan: TablePlan) -> list[str]:
    """Return the columns that have the form of such a column: the server puts it into the key.

    Versions that are counted by transactions are not among them: MariaDB logs their changes as
    statements.
    """
    found = [
        column
        for column in plan.columns
        if column.op == ops.TIMESTAMP
        and column.second_digits == _SECOND_DIGITS
        and not column.nullable
    ]
    if len(found) < _COLUMNS_MIN:
        return []
    return [column.name for column in found if plan.key_size == 0 or column.key_slot >= 0]


def set_row_end(plan: TablePlan, name: str) -> None:
    """Make a column end row versions. A key without it identifies the present row."""
    plan.row_end = NO_ROW_END
    for place, column in enumerate(plan.columns):
        if column.name == name:
            plan.row_end = place
    set_key(plan, [index for index in plan.primary_key if index != plan.row_end])


@dataclass(frozen=True)
class ShardingColumn:
    """The column that a table is sharded by, and the vindex over it."""

    column: str
    vindex: Vindex


def set_vindex(plan: TablePlan, sharding: ShardingColumn | None) -> None:
    """Mark the sharding column of a table version. NoKeyspaceId when the vindex rejects it."""
    if sharding is None:
        return
    name = sharding.column.lower()  # column names ignore case
    for i, (column, shape_column) in enumerate(zip(plan.columns, plan.shape_columns, strict=True)):
        if column.name.lower() == name and i not in plan.hidden:
            try:
                sharding.vindex.check_column(shape_column)
            except UsageError as error:
                raise NoKeyspaceId(f"table {plan.database}.{plan.table}: {error}") from error
            column.is_sharding = True
            column.is_noted = True
            plan.vindex = sharding.vindex
            plan.sharding = shape_column
            plan.sharding_plan = column
            return
    raise NoKeyspaceId(
        f"table {plan.database}.{plan.table} has no column {sharding.column}, over which its "
        f"vindex {sharding.vindex.name} is declared; it has "
        f"{', '.join(c.name for i, c in enumerate(plan.columns) if i not in plan.hidden)}"
        f"{left_out(plan.columns[i].name for i in plan.hidden)}"
    )
