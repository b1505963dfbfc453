"""Reads the rows of one chunk over a dedicated connection, as row images in pieces."""

import contextlib
import socket
from typing import Any, Final

import pymysql

from databases.connection import open_connection
from databases.errors import ServerLost
from producers.copy.binary_rows import RowPackets, value_ends
from producers.copy.chunk import CHUNK_BYTES_MAX, ChunkRows, Piece
from producers.copy.chunk_sql import key_literal, key_text
from producers.copy.definition import TableDefinition
from producers.copy.errors import ChunkSpoiled, ChunkTooLarge
from producers.replication.stream import server_errors
from producers.settings import ServerSettings

# One Kafka transaction of copied rows: binlog events wait no longer than that takes.
PIECE_ROWS: Final = 10_000
PIECE_BYTES: Final = 4 * 1024 * 1024
RECEIVE_BYTES: Final = 256 * 1024

_COM_STMT_PREPARE: Final = b"\x16"
_COM_STMT_EXECUTE: Final = b"\x17"
_COM_STMT_CLOSE: Final = b"\x19"
_SESSION: Final = (
    # Text in its column's character set, so that the decoder treats it like text of the binlog.
    "SET SESSION character_set_results = NULL",
    # Zero dates and days that do not exist compare as they are stored.
    "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'",
    # Each SELECT is one consistent read, independent of the server's default.
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)


class ChunkConnection:
    """A connection that reads chunks; `read` raises PyMySQL's errors."""

    def __init__(self, server: ServerSettings) -> None:
        """Connect; ServerRefused, ServerLost."""
        self.server = server
        self.connection: Any = open_connection(server)
        with server_errors(server, "preparing to copy from"), self.connection.cursor() as cursor:
            for statement in _SESSION:
                cursor.execute(statement)

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
        tuple(key_literal(column, raw) for column, raw in key),
        {column.name: key_text(column, raw) for column, raw in key},
    )
