"""A chunk of a table: the SELECT that reads it, and its rows as binlog row images in pieces."""

import contextlib
import socket
import struct
from dataclasses import dataclass, replace
from typing import Any, Final

import pymysql

from databases.connection import open_connection
from databases.errors import ServerLost
from databases.server_facts import Place
from databases.session import check_session
from databases.sql import beyond, quoted
from databases.table_cursor import TableCursor
from producers.copy.binary_rows import RowPackets, value_ends
from producers.copy.definition import ChunkSpoiled, ChunkTooLarge, KeyColumn, TableDefinition
from producers.decoder.tables.plan import ColumnPlan, TablePlan
from producers.decoder.values import operations as ops
from producers.decoder.values.hidden_values import hidden_text
from producers.replication.stream import server_errors
from producers.settings import ServerSettings

# A chunk stays in memory until the log has reached it.
CHUNK_BYTES_MAX: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChunkJob:
    """What to read. `position`: a GTID set that the SELECT must see completely.

    `after`: where the chunk before ended, None at the table's beginning. `is_resumed`: it is the
    session's first chunk of the table, which another server may have had, or some other table.
    """

    database: str
    table: str
    where: str
    after: TableCursor | None
    is_resumed: bool
    rows_max: int
    position: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows in key order as binlog row images; the last key as SQL literals, and as text."""

    images: bytes
    rows: int
    last_key: tuple[str, ...]
    last_key_text: dict[str, str]


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The rows of a chunk."""

    pieces: list[Piece]
    rows: int
    bytes_read: int


@dataclass(frozen=True, slots=True)
class TablePart:
    """Rows of a table from one transaction, in which it had that definition.

    `identity`: of the table, where it was asked for. `elapsed_s`: how long the SELECTs took.
    """

    definition: TableDefinition
    rows: ChunkRows
    is_last: bool
    elapsed_s: float
    identity: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk and the point in time that it shows.

    `high`: what the server had executed after the read; the log must reach that. `snapshot`: on
    MariaDB the binlog position of the read, which must be the exact end of a transaction; None if
    the read saw all of the job's position.
    """

    part: TablePart
    high: str
    snapshot: Place | None
    rows_estimated: int


_NUMBERS: Final = frozenset(range(ops.I8, ops.U64 + 1)) | {ops.YEAR, ops.ENUM, ops.SET}
_BRACKETS: Final = {"L_PAREN": 1, "R_PAREN": -1}


def chunk_select(
    definition: TableDefinition,
    after: tuple[str, ...],
    rows_max: int | None,
    *,
    skip: int = 0,
    upto: tuple[str, ...] = (),
    where: str = "",
) -> str:
    """The SELECT of the next `rows_max` rows in key order after `after`, up to and with `upto`.

    Both are literals of the key's columns; empty means the table's beginning, or its end. Without
    `rows_max` it reads all rows between them.
    """
    columns = ", ".join(_selected(definition, column) for column in definition.plan.columns)
    key = [(column.name, column.descending) for column in definition.key]
    bounds = (beyond(key, after), beyond(key, upto, upto=True), where)
    conditions = [f"({text})" for text in bounds if text]
    order = ", ".join(
        quoted(key.name) + (" DESC" if key.descending else "") for key in definition.key
    )
    return (
        f"SELECT {columns} FROM {quoted(definition.database)}.{quoted(definition.table)} "  # noqa: S608 - quoted
        f"FORCE INDEX ({quoted(definition.index)}) "
        + (f"WHERE {' AND '.join(conditions)} " if conditions else "")
        + f"ORDER BY {order}"
        + ("" if rows_max is None else f" LIMIT {skip}, {rows_max}")
    )


def _selected(definition: TableDefinition, column: ColumnPlan) -> str:
    name = quoted(column.name)
    if column.name in definition.hidden:
        return f"CAST({name} AS BINARY({column.length}))"
    # Gives an unsigned number of eight bytes on both families; CAST does not.
    return f"({name} | 0)" if column.op in {ops.ENUM, ops.SET} else name


def is_one_condition(where: str) -> bool:
    """Whether a condition is still one in brackets: `1) OR (1` would cancel those beside it."""
    if not where:
        return True
    # Loading it takes a fifth of a producer's start, and only a copy with a WHERE needs it.
    import sqlglot  # noqa: PLC0415
    from sqlglot.errors import TokenError  # noqa: PLC0415

    try:
        tokens = sqlglot.tokenize(where, read="mysql")
    except TokenError:
        return False
    depth = 0
    for token in tokens:
        depth += _BRACKETS.get(token.token_type.name, 0)
        if depth < 0 or token.comments or token.token_type.name == "SEMICOLON":
            return False
    return depth == 0 and bool(tokens)


def keys_alone(definition: TableDefinition) -> TableDefinition:
    """The same table, reduced to the columns of its key."""
    whole = definition.plan
    plan = TablePlan(b"", definition.database, definition.table)
    plan.columns = [whole.columns[key.index] for key in definition.key]
    plan.count = len(plan.columns)
    key = tuple(KeyColumn(k.name, i, k.descending) for i, k in enumerate(definition.key))
    return replace(definition, plan=plan, key=key)


def _literal(column: ColumnPlan, raw: bytes) -> str:
    """A value of a row packet as a literal that compares as the column does."""
    op = column.op
    if op in _NUMBERS:
        signed = op in {ops.I8, ops.I16, ops.I24, ops.I32, ops.I64}
        return str(int.from_bytes(raw, "little", signed=signed))
    if op in {ops.FLOAT, ops.DOUBLE}:
        return _float_literal(op, raw)
    if ops.DATE <= op <= ops.TIMESTAMP:
        return _temporal_literal(op, raw)
    body = raw[_length_bytes(raw) :]
    if op in {ops.DECIMAL, ops.BIG_DECIMAL}:
        return body.decode("ascii")
    if op in {ops.BIT, ops.BIT64}:
        return str(int.from_bytes(body, "big"))
    # With the column's character set in front, so that no bytes are converted.
    return f"_{column.charset or 'binary'} 0x{body.hex()}" if body else "''"


def key_text(column: ColumnPlan, raw: bytes) -> str:
    """The value as text for messages."""
    if column.op >= ops.UUID:
        return hidden_text(column.op, raw[_length_bytes(raw) :])
    if ops.LENGTH_FIRST <= column.op <= ops.LENGTH_LAST:
        return raw[_length_bytes(raw) :].decode("utf-8", "backslashreplace")
    return _literal(column, raw).strip("'")


def _length_bytes(raw: bytes) -> int:
    return {252: 3, 253: 4, 254: 9}.get(raw[0], 1)


def _float_literal(op: int, raw: bytes) -> str:
    [value] = struct.unpack("<f" if op == ops.FLOAT else "<d", raw)
    return repr(value)


def _temporal_literal(op: int, raw: bytes) -> str:
    size = raw[0]
    body = raw[1 : 1 + size].ljust(12, b"\0")
    if op == ops.TIME:
        hours = int.from_bytes(body[1:5], "little") * 24 + body[5]
        micros = int.from_bytes(body[8:12], "little")
        sign = "-" if body[0] else ""
        return f"'{sign}{hours:02d}:{body[6]:02d}:{body[7]:02d}.{micros:06d}'"
    date = f"{int.from_bytes(body[0:2], 'little'):04d}-{body[2]:02d}-{body[3]:02d}"
    if op == ops.DATE:
        return f"'{date}'"
    micros = int.from_bytes(body[7:11], "little")
    return f"'{date} {body[4]:02d}:{body[5]:02d}:{body[6]:02d}.{micros:06d}'"


# One Kafka transaction of copied rows: binlog events wait no longer than that takes.
PIECE_ROWS: Final = 10_000
PIECE_BYTES: Final = 4 * 1024 * 1024
RECEIVE_BYTES: Final = 256 * 1024

_COM_STMT_PREPARE: Final = b"\x16"
_COM_STMT_EXECUTE: Final = b"\x17"
_COM_STMT_CLOSE: Final = b"\x19"
# Zero dates and days that do not exist compare as they are stored.
_MODE: Final = "ALLOW_INVALID_DATES"
_SESSION: Final = (
    # Text in its column's character set, so that the decoder treats it like text of the binlog.
    f"SET SESSION character_set_results = NULL, sql_mode = '{_MODE}'",
    # Each SELECT is one consistent read, independent of the server's default.
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)


class ChunkConnection:
    """A connection that reads chunks; `read` raises PyMySQL's errors."""

    def __init__(self, server: ServerSettings) -> None:
        self.server = server
        self.connection: Any = open_connection(server)
        with server_errors(server, "preparing to copy from"), self.connection.cursor() as cursor:
            for statement in _SESSION:
                cursor.execute(statement)
            asked = {"character_set_results": None, "sql_mode": _MODE}
            check_session(self.connection, server.name, asked)

    @property
    def is_open(self) -> bool:
        """Whether `close` has not been called."""
        return bool(self.connection.open)

    def close(self) -> None:
        """Close the connection, from any thread; half a result may still be under way."""
        sock = self.connection._sock  # noqa: SLF001 - PyMySQL has no other way to it
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
        self.connection._force_close()  # noqa: SLF001 - no COM_QUIT behind half a result

    def read(self, definition: TableDefinition, statement: str) -> ChunkRows:
        """Run the SELECT as a prepared statement: its binary result has exact numbers."""
        statement_id = self._prepare(definition, statement)
        found = self._execute(definition, statement_id)
        self._send(_COM_STMT_CLOSE + statement_id)
        return found

    def _send(self, command: bytes) -> None:
        self.connection._next_seq_id = 0  # noqa: SLF001 - each command starts a new sequence
        self.connection.write_packet(command)

    def _packet(self) -> Any:
        return self.connection._read_packet()  # noqa: SLF001 - PyMySQL knows no prepared statements

    def _prepare(self, definition: TableDefinition, statement: str) -> bytes:
        self._send(_COM_STMT_PREPARE + statement.encode("utf-8"))
        head = self._packet().get_all_data()
        columns = int.from_bytes(head[5:7], "little")
        for _ in range(columns + 1):  # their definitions, and an EOF
            self._packet()
        if columns != definition.plan.count:
            raise ChunkSpoiled(f"{columns} columns for {definition.plan.count}")
        return bytes(head[1:5])

    def _execute(self, definition: TableDefinition, statement_id: bytes) -> ChunkRows:
        # No cursor, one iteration, no parameters.
        self._send(_COM_STMT_EXECUTE + statement_id + b"\0" + (1).to_bytes(4, "little"))
        self._packet()
        for _ in range(definition.plan.count + 1):
            self._packet()
        return self._rows(definition)

    def _rows(self, definition: TableDefinition) -> ChunkRows:
        stream = self.connection._rfile  # noqa: SLF001 - rows are taken in large parts
        packets = RowPackets(definition.plan.columns)
        pieces: list[Piece] = []
        rest, count = b"", 0
        while not packets.end:
            if packets.bytes_read > CHUNK_BYTES_MAX and count + packets.rows > 1:
                raise ChunkTooLarge(count + packets.rows)
            part = stream.read1(RECEIVE_BYTES)
            if not part:
                raise ServerLost(f"{self.server.name} closed the connection of a copy")
            buffer, pos = rest + part, 0
            while True:
                pos = _taken(packets, buffer, pos)
                if not packets.is_full(PIECE_ROWS, PIECE_BYTES):
                    break
                count += packets.rows
                pieces.append(_piece(definition, packets))
            rest = buffer[pos:]
        if packets.rows:
            count += packets.rows
            pieces.append(_piece(definition, packets))
        if packets.end[:1] == b"\xff":
            pymysql.err.raise_mysql_exception(packets.end)
        return ChunkRows(pieces, count, packets.bytes_read)


def _taken(packets: RowPackets, buffer: bytes, pos: int) -> int:
    try:
        return packets.take(buffer, pos, PIECE_ROWS, PIECE_BYTES)
    except (IndexError, ValueError) as error:
        # Definition and result are of different table versions.
        raise ChunkSpoiled(f"the rows do not match the table's definition: {error}") from error


def _piece(definition: TableDefinition, packets: RowPackets) -> Piece:
    columns = definition.plan.columns
    row, rows = packets.last_row, packets.rows
    places = value_ends(columns, row, 0)
    key = [(columns[k.index], row[places[k.index] : places[k.index + 1]]) for k in definition.key]
    return Piece(
        packets.take_piece(),
        rows,
        tuple(_literal(column, raw) for column, raw in key),
        {column.name: key_text(column, raw) for column, raw in key},
    )
