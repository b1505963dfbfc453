"""Which column ends the row versions of a MariaDB table; its binlog does not tell."""

from typing import Final, Protocol

from producers.decoder.tables.plan import NO_ROW_END, TablePlan, set_key
from producers.decoder.values import operations as ops

_SECOND_DIGITS: Final = 6
# A version has a start too.
_COLUMNS_MIN: Final = 2


class RowEnds(Protocol):
    """What the server knows about its system-versioned tables."""

    def row_end(self, database: str, table: str, names: list[str], candidates: list[str]) -> str:
        """Return which of the candidates ends the row versions of a table version, "" for none.

        `names`: all its columns. HiddenType if the account cannot see the table.
        """


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
