"""Columns that are left out of the log: those that a server hides, and MariaDB's generated ones.

A server's binlog has columns that it adds to a table for itself, and no SELECT shows them.
MariaDB adds the hash of each unique key that is too long for an index, or that is declared USING
HASH. MySQL adds the value of each expression of an index, and logs its name up to 8.0.22.

MariaDB's binlog has generated columns in some row images only, whatever binlog_row_image is.
"""

import re
from collections.abc import Iterable
from typing import Final, Protocol

from event_token import Flavor
from producers.decoder.tables.plan import NO_KEY, NO_ROW_END, FilterPlan, MaskedColumn, TablePlan
from producers.decoder.values import operations as ops
from topics.records.table_shape import Column

_HASH: Final = "DB_ROW_HASH_"
# Before 8.0.19, or somewhat later, the name is a digest.
_OF_EXPRESSION: Final = re.compile(r"!hidden!.+!\d+!\d+|[0-9a-f]{32}")
# MariaDB's generation expressions of a period's columns, whose values no expression gives.
_OF_PERIOD: Final = frozenset(("ROW START", "ROW END"))


class Catalog(Protocol):
    """What the server's catalog says of its tables as they are now."""

    def hidden(
        self, database: str, table: str, columns: list[str], doubtful: list[str]
    ) -> frozenset[str]:
        """Return the columns of a table version that are left out of the log.

        They are those of the `doubtful` ones that no SELECT shows, and MariaDB's generated ones.
        Raises HiddenType where that cannot be seen.
        """


def named_as_hidden(plan: TablePlan, is_mariadb: bool, has_visibility: bool) -> list[int]:
    """Return the columns that may be the server's: it is all that a table map tells.

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


def is_unlogged(flavor: Flavor, generation_expression: str | None) -> bool:
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
