"""Puts rows into a staging table: by LOAD DATA LOCAL where the server allows it, else by INSERT.

The errors of MySQL and MariaDB are translated into those of the project, named by what to do.
"""

import re
import socket
from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa
from pymysql import connections
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from databases.error_codes import ACCESS_REFUSED, LOGIN_REFUSED, is_outage
from databases.errors import LoginRefused
from event_token.errors import Retry, ShardstreamError, UsageError
from sinks.database import texts
from sinks.database.dialect import (
    KEEPALIVE_IDLE_S,
    KEEPALIVE_INTERVAL_S,
    KEEPALIVE_PROBES,
)
from sinks.errors import BadValue, DatabaseRefuses, DuplicateValue
from topics.records.table_shape import TableShape, ValueKind

# No such database, a host that is blocked, no right for a routine or to create accounts.
_REFUSED = ACCESS_REFUSED | {1049, 1129, 1370, 1410}
# A value that a column cannot hold, also CHECK constraints that somebody added.
_BAD_VALUE = frozenset(
    {1264, 1265, 1292, 1366, 1367, 1406, 1411, 1416, 1048, 3140, 3156, 3819, 4025, 4079, 1153}
)
_DUPLICATE = frozenset({1062, 1586})
_TOO_WIDE = 1118
# A DECIMAL of MariaDB may have up to 38 digits after the point, one of MySQL 30.
_SCALE_TOO_LARGE = 1425
# A write, a new file, a tablespace; where only the storage engine's number gives the reason, it is
# in the message: 28 of the system, 135 of InnoDB.
_FULL = frozenset({20, 1021, 1114, 3675})
_FULL_BY_NUMBER = re.compile(r"\b(?:errno|errcode|error):? (?:28|135)\b", re.IGNORECASE)
# What a message quotes of a row.
_VALUE = re.compile(r"(entry|value:?) '.*' (for|at)", re.DOTALL)


def code_of(error: DBAPIError) -> int:
    """Return the server's number of an error, 0 if it has none."""
    first = next(iter(error.orig.args), 0) if error.orig is not None else 0
    return first if isinstance(first, int) else 0


def said_of(error: DBAPIError) -> str:
    """Return what the server said; it may quote values."""
    return str(error.orig.args[-1] if error.orig is not None and error.orig.args else error.orig)


def is_bad_value(error: DBAPIError) -> bool:
    """Tell whether a column cannot hold a value."""
    return code_of(error) in _BAD_VALUE


def is_too_wide(error: DBAPIError) -> bool:
    """Tell whether the columns of a table take more bytes than a row may have."""
    return code_of(error) == _TOO_WIDE


def without_values(message: str) -> str:
    """Return the first line of a message without what it quotes of a row."""
    return _VALUE.sub(r"\1 \2", message).strip().partition("\n")[0]


def column_of(message: str, names: Sequence[str]) -> str:
    """Return the column that a message names, `unknown` if none."""
    for name in names:
        if any(f"{begin}{name}{end}" in message for begin in "'`." for end in "'`"):
            return name
    return "unknown"


def translated(place: str, error: DBAPIError) -> ShardstreamError:
    """Return the ShardstreamError for an error, without values and passwords."""
    code = code_of(error)
    said = without_values(said_of(error))
    if code in LOGIN_REFUSED:
        return LoginRefused(f"{place}: {said} (docs/second-database.md lists the rights)")
    if code in _REFUSED:
        return UsageError(f"{place}: {said} (docs/second-database.md lists the rights)")
    if code == _SCALE_TOO_LARGE:
        return UsageError(
            f"{place}: {said} Follow into MariaDB or PostgreSQL, which hold it, or leave the table "
            f"out by naming the others with --table"
        )
    if code in _FULL or _FULL_BY_NUMBER.search(said):
        return Retry(f"{place}: its disk is full, make room: {said}")
    if error.connection_invalidated or is_outage(code):
        return Retry(f"{place}: {said}")
    if code in _BAD_VALUE:
        return BadValue(f"{place}: {said}")
    refusal = DuplicateValue if code in _DUPLICATE else DatabaseRefuses
    return refusal(f"{place}: {said} (error {code})")


# Servers accept packets of at least 1 MB by default.
_PACKET_BYTES = 256 * 1024
# PyMySQL switches keepalives on.
_KEEPALIVES = (
    (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
    (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
    (socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
)


class LoadingConnection(connections.Connection):  # type: ignore[misc]
    """Sends `lines` when a statement asks for a file.

    PyMySQL's own way sends the file that the server names, which may be any file of this machine;
    that stays switched off.
    """

    lines: memoryview | None = None

    def connect(self, sock: Any = None) -> None:
        """Connect; a server that is gone is noticed within minutes."""
        super().connect(sock)
        if self._sock.family != socket.AF_UNIX:
            for option, value in _KEEPALIVES:
                self._sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        if self.lines is None:
            return super()._read_query_result(unbuffered)
        lines, self.lines = self.lines, None
        answer = self._read_packet()
        if answer.is_load_local_packet():
            for begin in range(0, len(lines), _PACKET_BYTES):
                self.write_packet(bytes(lines[begin : begin + _PACKET_BYTES]))
            self.write_packet(b"")
            answer = self._read_packet()
        result = connections.MySQLResult(self)
        result._read_ok_packet(answer)  # noqa: SLF001 - as PyMySQL does itself
        self._result = result
        self.server_status = result.server_status
        return result.affected_rows


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
            if not is_bad_value(error):
                raise
            said = said_of(error)
        else:
            said = self._warning()
        if said:
            # INSERT is strict and names the row.
            self.insert()
            raise BadValue(without_values(said))

    def insert(self) -> None:
        """Send the rows as INSERT statements. BadValue names the first that is bad."""
        [(limit,)] = self._connection.exec_driver_sql("SELECT @@max_allowed_packet").all()
        tuples = texts.tuples_of(self._texts, self._bytes, self._bits)
        values_max = int(limit) - len(self._begin.encode()) - 1
        for first, end in texts.chunks_of(tuples, min(INSERT_BYTES, values_max)):
            size = len(str(tuples[first]).encode()) if end == first + 1 else 0
            if size > values_max:
                raise BadValue(
                    f"{texts.place_of(self._rows, first)}: the row takes {size} bytes in a "
                    f"statement, more than the server's max_allowed_packet of {limit}: raise it, "
                    f"or allow LOAD DATA LOCAL (local_infile)"
                )
            said = self._insert(tuples.slice(first, end - first))
            if said:
                raise self._bad(tuples, first, end, said)

    def _insert(self, tuples: pa.Array) -> str:
        """Insert rows; return what the server has against them, empty if nothing."""
        try:
            _run(self._connection, self._begin + ",".join(tuples.to_pylist()))
        except DBAPIError as error:
            if not is_bad_value(error):
                raise
            return said_of(error)
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
        column = column_of(said, self._rows.column_names)
        where = f"{texts.place_of(self._rows, first)}, column {column}"
        return BadValue(f"{where}: {without_values(said)}")

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
