"""The tables of online schema changes: gh-ost and pt-online-schema-change. Pure.

Both copy a table into a shadow table of the new definition and swap the two by RENAME TABLE. The
rows of the table stay the same, so neither the shadow tables nor the swap concern a sink.
"""

import re

from spark_consumers.applying.statements import TableName, renames_of

# gh-ost: the copy, its change log, and the table that was replaced. pt-online-schema-change: the
# copy and the table that was replaced; it puts more underscores in front of a name that is taken.
# Java reads the pattern as well: Spark leaves out the rows of these tables.
SHADOW_TABLE = "(?s)^_+(.+)_(?:gho|ghc|del|new|old)$"
_SHADOW = re.compile(SHADOW_TABLE)


def is_shadow_table(table: str) -> bool:
    """Tell by its name whether a table belongs to the online schema change of another one."""
    return _SHADOW.fullmatch(table) is not None


def is_swap(statement: str, database: str) -> bool:
    """Tell whether a statement only puts shadow tables in the place of their tables.

    Both renames must be in the statement: where the table was dropped before, as by
    `pt-online-schema-change --alter-foreign-keys-method=drop_swap`, its rows were removed with it.
    `database`: the statement's default database.
    """
    renames = renames_of(statement, database)
    left, taken = {old for old, _ in renames}, {new for _, new in renames}
    return bool(renames) and all(
        (_is_shadow_of(new, old) and old in taken) or (_is_shadow_of(old, new) and new in left)
        for old, new in renames
    )


def _is_shadow_of(shadow: TableName, table: TableName) -> bool:
    found = _SHADOW.fullmatch(shadow.table or "")
    return found is not None and shadow.database == table.database and found[1] == table.table
