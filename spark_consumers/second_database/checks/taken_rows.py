"""Finds changes that the target skipped without an error, as a trigger or a rule of it may.

A row that is written carries shard and seq of its change, so whether it arrived can be asked.
"""

from collections.abc import Mapping
from functools import cached_property

from sqlalchemy import Connection

from spark_consumers.applying.changes import DELETED, KEY, SEQ, SHARD
from spark_consumers.errors import DatabaseRefuses
from spark_consumers.second_database.dialect import Dialect, rows_of
from spark_consumers.second_database.names import TargetTable


class TakenRows:
    """Asks whether the target has what was written to one table; DatabaseRefuses if it has not."""

    def __init__(
        self, connection: Connection, dialect: Dialect, table: TargetTable, *, soft: bool
    ) -> None:
        """`soft`: deleted rows stay, with `_deleted` true."""
        self._connection = connection
        self._dialect = dialect
        self._table = table
        self._place = dialect.table(table.schema, table.name)
        self._alive = f" AND t.{dialect.quote(DELETED)} = FALSE" if soft else ""

    @cached_property
    def are_doubtful(self) -> bool:
        """Whether the table has triggers or rules that can skip rows, as few tables have."""
        return self._dialect.may_skip_rows(self._connection, self._table)

    def check_written(self, stage: str, which: str) -> None:
        """`which`: a condition on rows `s` of a quoted staging table, which the table must have."""
        self._check(stage, f"{which} AND NOT EXISTS ({self._same_key_and} AND {self._is_that})")

    def check_laid_over(self, stage: str, which: str, values: Mapping[str, object]) -> None:
        """`which`: with `values`, of rows that were laid over stored ones of the same home."""
        if self.are_doubtful:
            at_home = self._dialect.same_home("t", "s")
            wrong = f"{at_home} AND NOT ({self._is_that}){self._alive}"
            self._check(stage, f"{which} AND EXISTS ({self._same_key_and} AND {wrong})", values)

    def check_deleted(self, stage: str, which: str) -> None:
        """`which`: of rows `s` whose keys the table must not have."""
        if self.are_doubtful:
            self._check(stage, f"{which} AND EXISTS ({self._same_key_and}{self._alive})")

    def check_none(self, where: str, values: Mapping[str, object]) -> None:
        """`where`: a condition that a statement over the whole table has left no row with."""
        if self.are_doubtful and rows_of(
            self._connection, f"SELECT 1 FROM {self._place} WHERE {where} LIMIT 1", values
        ):
            raise self.refusal("some rows")

    def refusal(self, rows: str) -> DatabaseRefuses:
        """Return the error for rows that the target skipped."""
        table = ".".join(filter(None, (self._table.schema, self._table.name)))
        return DatabaseRefuses(
            f"{self._dialect.place}: table {table} did not take the change of {rows}, and the "
            f"database reported no error: a trigger (BEFORE ... FOR EACH ROW) or a rule of the "
            f"table skipped it. Drop it, or let the trigger return NEW (for DELETE: OLD), and "
            f"start again: nothing is lost"
        )

    def _check(self, stage: str, which: str, values: Mapping[str, object] | None = None) -> None:
        columns = self._dialect.listed((KEY, SHARD, SEQ), "s.")
        query = f"SELECT {columns} FROM {stage} s WHERE {which} LIMIT 1"
        for key, shard, seq in rows_of(self._connection, query, values):
            raise self.refusal(f"key {key}, shard {shard}, seq {seq}")

    @property
    def _same_key_and(self) -> str:
        same = self._dialect.same_key("t", "s", self._table.key)
        return f"SELECT 1 FROM {self._place} t WHERE {same}"

    @property
    def _is_that(self) -> str:
        return self._dialect.same_key("t", "s", (SHARD, SEQ))
