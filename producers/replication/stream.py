"""The connection that carries a server's replication stream."""

import secrets
import select
import socket
import ssl
import uuid
from contextlib import AbstractContextManager
from typing import Any, Final, Self

from pymysql.constants import ER

import databases.connection
from databases.connection import ACCESS_REFUSED, open_connection
from databases.errors import ServerLost, ServerRefused
from databases.server import DatabaseServer
from event_token import GtidSet, MysqlGtidSet
from event_token.errors import Halt, ShardstreamError
from producers.errors import BinlogPurged, SameServerId, StreamFailed
from producers.replication.dump_command import (
    FIRST_EVENT_POSITION,
    file_dump_command,
    mysql_dump_command,
    register_command,
)
from producers.replication.family import STREAM_HEARTBEAT_S, ServerFamily

# Three missed heartbeats.
STREAM_SILENCE_S_MAX: Final = 3 * STREAM_HEARTBEAT_S

# The server sends about 16 KB at a time; decoding starts with this much, or when no more comes.
TOP_UP_BYTES: Final = 256 * 1024
BUFFER_BYTES: Final = 2 * TOP_UP_BYTES
# An event is bounded by max_allowed_packet, at most 1 GB; the rest is for headers.
BUFFER_BYTES_MAX: Final = 1024 * 1024 * 1024 + 1024 * 1024

# Configured server ids are small numbers, or derived from addresses; half of the range is left.
RANDOM_SERVER_ID_MIN: Final = 1 << 31
RANDOM_SERVER_ID_MAX: Final = (1 << 32) - 1

_ER_SOURCE_FATAL: Final = 1236
_ER_PURGED: Final = 1789
_ER_NOT_IN_BINLOG: Final = frozenset({1945, 1947, 1955})


def random_server_id() -> int:
    """A server id for a replication connection; a collision is unlikely."""
    return RANDOM_SERVER_ID_MIN + secrets.randbelow(RANDOM_SERVER_ID_MAX - RANDOM_SERVER_ID_MIN)


def server_errors(server: DatabaseServer, doing: str) -> AbstractContextManager[None]:
    """Translate PyMySQL's errors inside the block; an unknown error counts as a lost server."""
    return databases.connection.server_errors(server, doing, server_error)


def server_error(code: int, text: str, where: str) -> ShardstreamError:
    """The project's error for an error packet of the server. Pure."""
    message = f"{where}: server error {code}: {text}"
    lower = text.lower()
    if code in ACCESS_REFUSED or code == ER.BAD_DB_ERROR:
        return ServerRefused(message)
    if "same server_uuid/server_id" in lower or "same server_id" in lower:
        return SameServerId(
            f"{message}. Another replication connection has the same server id, and the server "
            "ends the older one. A producer draws its id at random at each start: start it again, "
            f"and give other replicas and tools ids below {RANDOM_SERVER_ID_MIN}"
        )
    if code == _ER_PURGED or (code == _ER_SOURCE_FATAL and "purged" in lower):
        return BinlogPurged(message)
    if code == _ER_SOURCE_FATAL and "could not find" in lower:
        return BinlogPurged(message)
    if code in _ER_NOT_IN_BINLOG:
        return Halt(message)
    if code == _ER_SOURCE_FATAL:
        # Binlogs that were reset under the stream, for one: the next connect tells what has become
        # of them, or meets the same fault.
        return StreamFailed(message)
    return ServerLost(message)


class ReplicationStream:
    """A replication stream, buffered: `buffer[start:end]` is still to be decoded.

    `fill` appends what has arrived; the caller moves `start` past what the decoder consumed.
    """

    def __init__(self, connection: Any, where: str) -> None:
        self._connection = connection
        self._where = where
        self._socket: socket.socket = connection._sock  # noqa: SLF001 - PyMySQL has no other way to it
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self.buffer = bytearray(BUFFER_BYTES)
        self.start = 0
        self.end = 0

    @classmethod
    def open(
        cls, server: DatabaseServer, family: ServerFamily, position: GtidSet, server_id: int
    ) -> Self:
        """Connect, register and start the dump after `position`.

        Raises ServerRefused and ServerLost; errors of the position arrive in the stream.
        """
        return cls._open(
            server, family, server_id, position, family.dump_command(server_id, position)
        )

    @classmethod
    def open_file(
        cls,
        server: DatabaseServer,
        family: ServerFamily,
        name: str,
        position: int = FIRST_EVENT_POSITION,
    ) -> Self:
        """The stream from an event of one binlog file to the present end of the binlogs."""
        # Not the producer's id: the server would end the other connection.
        server_id = random_server_id()
        command = file_dump_command(server_id, name, position)
        return cls._open(server, family, server_id, None, command)

    @classmethod
    def open_rest(
        cls, server: DatabaseServer, family: ServerFamily, position: MysqlGtidSet
    ) -> Self:
        """The stream after `position` to the present end of the binlogs. MySQL only."""
        server_id = random_server_id()
        command = mysql_dump_command(server_id, position, to_end=True)
        return cls._open(server, family, server_id, position, command)

    @classmethod
    def _open(
        cls,
        server: DatabaseServer,
        family: ServerFamily,
        server_id: int,
        position: GtidSet | None,
        command: bytes,
    ) -> Self:
        where = f"replication stream of {server.name}"
        connection = open_connection(server)
        try:
            with server_errors(server, "starting the replication stream of"):
                with connection.cursor() as cursor:
                    for statement, values in family.session(position, str(uuid.uuid4())):
                        cursor.execute(statement, values or None)
                _send(connection, register_command(server_id))
                connection._read_packet()  # noqa: SLF001 - as above
                _send(connection, command)
            return cls(connection, where)
        except BaseException:
            connection.close()
            raise

    def wait(self, timeout_s: float) -> bool:
        """Wait until bytes can be read; return whether they can."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return bool(self._poll.poll(max(0.0, timeout_s) * 1000))

    def fill(self) -> int:
        """Read what has arrived, up to TOP_UP_BYTES in the buffer; return the number of bytes read.

        Raises ServerLost when the connection is gone, Halt for an event over BUFFER_BYTES_MAX.
        """
        self._make_room()
        before = self.end
        with memoryview(self.buffer) as view:
            while self.end - self.start < TOP_UP_BYTES or self.end == before:
                try:
                    count = self._socket.recv_into(view[self.end :])
                except (BlockingIOError, ssl.SSLWantReadError):
                    break
                except OSError as error:
                    if self.end > before:
                        break
                    raise ServerLost(f"{self._where}: {error}") from error
                if count == 0:
                    if self.end > before:
                        break  # An error packet that explains it may have arrived.
                    raise ServerLost(f"{self._where}: the server closed the connection")
                self.end += count
                if self.end == len(view):
                    break
        return self.end - before

    def _make_room(self) -> None:
        """Move the rest to the front; enlarge the buffer for an event that does not fit."""
        left = self.end - self.start
        size = len(self.buffer)
        if left == size:
            if size >= BUFFER_BYTES_MAX:
                raise Halt(f"{self._where}: an event has more than {BUFFER_BYTES_MAX} bytes")
            larger = bytearray(min(2 * size, BUFFER_BYTES_MAX))
            larger[:left] = self.buffer
            self.buffer = larger
        elif left < BUFFER_BYTES // 2 and size > BUFFER_BYTES:
            smaller = bytearray(BUFFER_BYTES)
            smaller[:left] = self.buffer[self.start : self.end]
            self.buffer = smaller
        elif self.start:
            self.buffer[:left] = self.buffer[self.start : self.end]
        else:
            return
        self.start, self.end = 0, left

    def close(self) -> None:
        """Close the connection; the server notices the closed socket."""
        self._poll.unregister(self._socket)
        self._connection._force_close()  # noqa: SLF001 - a dump takes no COM_QUIT

    @property
    def is_open(self) -> bool:
        """Whether `close` has not been called."""
        return bool(self._connection.open)


def _send(connection: Any, command: bytes) -> None:
    connection._next_seq_id = 0  # noqa: SLF001 - each command starts a new sequence
    connection.write_packet(command)
