"""Puts rows into a staging table: by LOAD DATA LOCAL where the server allows it, else by INSERT."""

from typing import cast

import pyarrow as pa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from spark_consumers.errors import BadValue
from spark_consumers.second_database.mysql import refusals, texts
from spark_consumers.second_database.mysql.loading import LoadingConnection
from spark_consumers.second_database.rejected import place_of
from topics.records.table_shape import TableShape, ValueKind

# Rows of one INSERT together: enough that the statement itself costs nothing.
INSERT_BYTES = 1024 * 1024
_BITS = (ValueKind.BIT, ValueKind.BIT64)


class StagedRows:
    """Rows of one table on their way into a staging table."""

    def __init__(
        self, connection: Connection, place: str, rows: pa.Table, shape: TableShape
    ) -> None:
        """`place`: the quoted staging table."""
        self._connection = connection
        self._place = place
        self._rows = rows
        bits = {column.name for column in shape.columns if column.kind in _BITS}
        self._bits = [i for i, name in enumerate(rows.column_names) if name in bits]
        self._bytes = [i for i in range(rows.num_columns) if texts.is_bytes(rows[i])]
        self._names = [f"`{name.replace('`', '``')}`" for name in rows.column_names]
        self._begin = f"INSERT INTO {place} ({', '.join(self._names)}) VALUES "
        self._texts = texts.plain_texts(rows, shape)

    def load(self) -> None:
        """Send the rows as the file of LOAD DATA LOCAL. BadValue names the first that is bad."""
        fields, sets = list(self._names), []
        for indexes, function in ((self._bytes, "UNHEX({})"), (self._bits, "CAST({} AS UNSIGNED)")):
            for i in indexes:
                fields[i] = f"@c{i}"
                sets.append(f"{self._names[i]} = {function.format(fields[i])}")
        driver = cast("LoadingConnection", self._connection.connection.driver_connection)
        driver.lines = texts.file_of(self._texts)
        try:
            _run(
                self._connection,
                f"LOAD DATA LOCAL INFILE 'rows' INTO TABLE {self._place} CHARACTER SET utf8mb4 "
                f"FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' "
                f"({', '.join(fields)})" + (f" SET {', '.join(sets)}" if sets else ""),
            )
        except DBAPIError as error:
            if not refusals.is_bad_value(error):
                raise
            said = refusals.said_of(error)
        else:
            said = self._warning()
        if said:
            # INSERT is strict and names the row.
            self.insert()
            raise BadValue(refusals.without_values(said))

    def insert(self) -> None:
        """Send the rows as INSERT statements. BadValue names the first that is bad."""
        [(limit,)] = self._connection.exec_driver_sql("SELECT @@max_allowed_packet").all()
        tuples = texts.tuples_of(self._texts, self._bytes, self._bits)
        values_max = int(limit) - len(self._begin.encode()) - 1
        for first, end in texts.chunks_of(tuples, min(INSERT_BYTES, values_max)):
            size = len(str(tuples[first]).encode()) if end == first + 1 else 0
            if size > values_max:
                raise BadValue(
                    f"{place_of(self._rows, first)}: the row takes {size} bytes in a statement, "
                    f"more than the server's max_allowed_packet of {limit}: raise it, or allow "
                    f"LOAD DATA LOCAL (local_infile)"
                )
            said = self._insert(tuples.slice(first, end - first))
            if said:
                raise self._bad(tuples, first, end, said)

    def _insert(self, tuples: pa.Array) -> str:
        """Insert rows; return what the server has against them, empty if nothing."""
        try:
            _run(self._connection, self._begin + ",".join(tuples.to_pylist()))
        except DBAPIError as error:
            if not refusals.is_bad_value(error):
                raise
            return refusals.said_of(error)
        return self._warning()

    def _bad(self, tuples: pa.Array, first: int, end: int, said: str) -> BadValue:
        """Find the first bad row of those from `first`: some messages do not name it."""
        while end - first > 1:
            half = (first + end) // 2
            refused = self._insert(tuples.slice(first, half - first))
            if refused:
                end, said = half, refused
            else:
                first = half
                said = self._insert(tuples.slice(first, end - first)) or said
        column = refusals.column_of(said, self._rows.column_names)
        where = f"{place_of(self._rows, first)}, column {column}"
        return BadValue(f"{where}: {refusals.without_values(said)}")

    def _warning(self) -> str:
        """Return the first warning: with LOCAL a value that does not fit is changed."""
        found = self._connection.exec_driver_sql("SHOW WARNINGS LIMIT 1").all()
        if found:
            return str(found[0][2])
        # With max_error_count=0 a server keeps no warnings, but counts them.
        [(count,)] = self._connection.exec_driver_sql("SHOW COUNT(*) WARNINGS").all()
        return "a value does not fit (max_error_count=0 hides which)" if count else ""


def _run(connection: Connection, statement: str) -> None:
    """Run a statement in which a percent sign or a colon means nothing."""
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
