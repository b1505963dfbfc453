"""Columns of MariaDB whose type a binlog does not show: they look like BINARY."""

from typing import Protocol

from producers.decoder.tables.plan import TablePlan
from producers.decoder.tables.row_ends import RowEnds
from producers.decoder.values import operations as ops
from producers.decoder.values.hidden_values import HIDDEN_BYTES


class HiddenTypes(RowEnds, Protocol):
    """What settings and server tell about columns that a binlog does not describe."""

    def type_of(self, place: str) -> str:
        """Return the declaration of `database.table.column`: a type, "bytes", or "" for none."""

    def check(self, database: str, table: str, columns: list[str], *, is_new: bool) -> None:
        """Check columns of a table version that may be of such a type.

        `is_new`: its rows are about to be read for the first time; otherwise a statement may have
        changed the table. Raises HiddenType where a column is not what it is declared as.
        """


def may_be_hidden(plan: TablePlan) -> list[str]:
    """Return the columns of a table version that are, or may be, of such a type."""
    return [
        column.name
        for column in plan.columns
        if column.op >= ops.UUID
        or (column.op == ops.FIXED_BINARY and column.length in HIDDEN_BYTES.values())
    ]
