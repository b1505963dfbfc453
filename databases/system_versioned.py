"""MariaDB's system-versioned tables: which column ends a row version, by the catalog and by name.

A binlog does not tell that a table is system-versioned. Its row events show two columns
TIMESTAMP(6) NOT NULL, and the second one as a part of the primary key, where MariaDB puts it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from databases.sql import rows

# The columns of a table that names none; they are last, and no catalog lists them.
ROW_START: Final = "row_start"
ROW_END: Final = "row_end"

SYSTEM_VERSIONED: Final = "SYSTEM VERSIONED"
# What information_schema.tables calls the tables that hold rows.
TABLE_TYPES: Final = ("BASE TABLE", SYSTEM_VERSIONED)

_TABLE: Final = (
    "SELECT table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
)
_COLUMNS: Final = (
    "SELECT column_name, generation_expression FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s"
)


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table as the catalog has it now. `row_end`: the column that ends a version, "" for none.

    `plain`: its other columns, without a `row_start` and a `row_end` that the table does not name.
    """

    row_end: str
    plain: frozenset[str]


def catalog_table(connection: Any, database: str, table: str) -> CatalogTable | None:
    """Return a table of MariaDB; None: it is gone, or the account may not see it."""
    kinds = rows(connection, _TABLE, (database, table))
    if not kinds:
        return None
    columns = {str(name): text for name, text in rows(connection, _COLUMNS, (database, table))}
    if kinds[0][0] != SYSTEM_VERSIONED:
        return CatalogTable("", frozenset(columns))
    declared = [name for name, text in columns.items() if text == "ROW END"]
    row_end = declared[0] if declared else ROW_END
    return CatalogTable(row_end, frozenset(columns.keys() - {row_end}))


def row_end_of(
    names: Sequence[str], candidates: Collection[str], there: CatalogTable | None
) -> str | None:
    """Return the column that ends the row versions of a table version of a binlog. Pure.

    `names`: its columns; `candidates`: those that have the form of such a column. `there`: the
    table now, which may have been altered since. "": it was not versioned. None: nothing tells.
    """
    if there is not None:
        if there.row_end in candidates:
            return there.row_end
        # To drop the versioning is to drop its columns: a plain one has never ended versions.
        candidates = [name for name in candidates if name not in there.plain]
    if ROW_END in candidates and tuple(names[-2:]) == (ROW_START, ROW_END):
        return ROW_END
    return None if candidates else ""
