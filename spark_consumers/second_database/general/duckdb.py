"""DuckDB 1.4 or newer (MERGE): one file, which one process at a time can open."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from event_token.errors import ShardstreamError, UsageError
from spark_consumers.second_database.dialect import run
from spark_consumers.second_database.general.dialect import GeneralDialect
from spark_consumers.second_database.general.types import plain
from spark_consumers.second_database.names import TargetTable
from topics.records.table_shape import TableShape

_NUMBERS = "shardstream_numbers"
_ROWS = "shardstream_rows"


class DuckdbDialect(GeneralDialect):
    """A database file of this process."""

    folds_case = True
    is_shared = False
    has_savepoints = False
    number_type = f"BIGINT DEFAULT nextval('{_NUMBERS}')"

    def create_work(self, connection: Connection, table: TargetTable) -> str:
        """Create the table, and the sequence that numbers its rows."""
        run(connection, f"CREATE SEQUENCE IF NOT EXISTS {_NUMBERS}")
        return super().create_work(connection, table)

    def create_homes(
        self, connection: Connection, table: TargetTable, columns: Mapping[str, str]
    ) -> None:
        """Create the table; an index would stand in the way of later ALTERs."""
        place = self.internal(table.homes)
        run(connection, f"CREATE TABLE {place} ({self.definitions(columns)})")

    def stage_rows(
        self, connection: Connection, name: str, rows: pa.Table, shape: TableShape
    ) -> None:
        """Let DuckDB read the Arrow table itself."""
        driver: Any = connection.connection.driver_connection
        driver.register(_ROWS, plain(rows, shape, self._types_of(shape)))
        try:
            listed = self.listed(rows.column_names)
            run(
                connection,
                f"INSERT INTO {self.internal(name)} ({listed}) SELECT {listed} FROM {_ROWS}",
            )
        finally:
            driver.unregister(_ROWS)

    def translated(self, error: DBAPIError) -> ShardstreamError:
        """Say that another process has the file; it may keep it for long."""
        found = super().translated(error)
        if "Could not set lock" in str(error.orig):
            return UsageError(f"{self.place}: another process has opened the database")
        return found
