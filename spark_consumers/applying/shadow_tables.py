"""The tables of online schema changes: gh-ost and pt-online-schema-change. Pure.

Both copy a table into a shadow table of the new definition and swap the two by RENAME TABLE. A sink
leaves the shadow tables out. After the swap the table has the shadow's rows: their values, which
the new definition may have changed, are in no event of the table (`unlogged`).
"""

import re
from dataclasses import dataclass

from spark_consumers.applying.statements import TableName, renames_of

# gh-ost: the copy, its change log, and the table that was replaced. pt-online-schema-change: the
# copy and the table that was replaced; it puts more underscores in front of a name that is taken.
# Java reads the pattern as well: Spark leaves out the rows of these tables.
SHADOW_TABLE = "(?s)^_+(.+)_(?:gho|ghc|del|new|old)$"
_SHADOW = re.compile(SHADOW_TABLE)


@dataclass(frozen=True, slots=True)
class Swap:
    """What a RENAME TABLE between tables and their shadow tables does.

    `refilled`: tables that have the rows of a shadow table now. `emptied`: tables whose rows went
    to a shadow table, with none in their place yet. `shadows`: the shadow tables.
    """

    refilled: tuple[TableName, ...]
    emptied: tuple[TableName, ...]
    shadows: tuple[TableName, ...]


def is_shadow_table(table: str) -> bool:
    """Tell by its name whether a table belongs to the online schema change of another one."""
    return _SHADOW.fullmatch(table) is not None


def swap_of(statement: str, database: str) -> Swap | None:
    """Return what a statement swaps; None if it is no RENAME TABLE of shadow tables alone.

    One statement may be half a swap: gh-ost's two-step cut-over has two of them, and the table was
    dropped before by `pt-online-schema-change --alter-foreign-keys-method=drop_swap`.

    `database`: the statement's default database.
    """
    refilled: list[TableName] = []
    left: list[TableName] = []
    shadows: list[TableName] = []
    for old, new in renames_of(statement, database):
        if _is_shadow_of(new, old):
            left.append(old)
            shadows.append(new)
        elif _is_shadow_of(old, new):
            refilled.append(new)
            shadows.append(old)
        else:
            return None
    emptied = tuple(table for table in left if table not in refilled)
    return Swap(tuple(refilled), emptied, tuple(shadows)) if shadows else None


def _is_shadow_of(shadow: TableName, table: TableName) -> bool:
    found = _SHADOW.fullmatch(shadow.table or "")
    return found is not None and shadow.database == table.database and found[1] == table.table
