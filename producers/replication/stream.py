"""The connection that carries a server's replication stream."""

import secrets
import select
import socket
import ssl
import struct
import uuid
from contextlib import AbstractContextManager
from typing import Any, Final, Self

from pymysql.constants import ER

import databases.connection
from databases.connection import open_connection
from databases.error_codes import ACCESS_REFUSED
from databases.errors import ServerLost, ServerRefused
from databases.server import DatabaseServer
from databases.server_facts import ServerFacts
from event_token import Flavor, GtidSet, MariadbGtidSet, MysqlGtidSet
from event_token.errors import Halt, ShardstreamError, UsageError
from producers.errors import BinlogPurged, SameServerId, StreamFailed

COM_BINLOG_DUMP: Final = 0x12
COM_REGISTER_SLAVE: Final = 0x15
COM_BINLOG_DUMP_GTID: Final = 0x1E

# The stream ends with an EOF packet instead of waiting for more.
_BINLOG_DUMP_NON_BLOCK: Final = 0x01
_BINLOG_THROUGH_GTID: Final = 0x04
# Every binlog begins with 4 magic bytes; with GTIDs the server finds the place itself.
FIRST_EVENT_POSITION: Final = 4
_REPORTED_HOST: Final = b"shardstream"
# 1 in the top and the lowest byte of the first word: the format with tags (MySQL 8.3+).
_TAGGED_FORMAT: Final = (1 << 56) | 1


def register_command(server_id: int) -> bytes:
    """COM_REGISTER_SLAVE: makes the connection visible in SHOW REPLICAS."""
    host = bytes([len(_REPORTED_HOST)]) + _REPORTED_HOST
    no_user_no_password_no_port = b"\0\0\0\0"
    rank_and_source_id = bytes(8)
    return (
        struct.pack("<BI", COM_REGISTER_SLAVE, server_id)
        + host
        + no_user_no_password_no_port
        + rank_and_source_id
    )


def mysql_dump_command(server_id: int, position: MysqlGtidSet, *, to_end: bool = False) -> bytes:
    """COM_BINLOG_DUMP_GTID: all transactions that are not in `position`.

    `to_end`: the stream ends at the present end of the binlogs.
    """
    encoded = encode_mysql_gtid_set(position)
    name_length = 0
    flags = _BINLOG_THROUGH_GTID | (_BINLOG_DUMP_NON_BLOCK if to_end else 0)
    return (
        struct.pack("<BHI", COM_BINLOG_DUMP_GTID, flags, server_id)
        + struct.pack("<IQ", name_length, FIRST_EVENT_POSITION)
        + struct.pack("<I", len(encoded))
        + encoded
    )


def mariadb_dump_command(server_id: int, *, to_end: bool = False) -> bytes:
    """COM_BINLOG_DUMP without a file: the server starts at @slave_connect_state.

    `to_end`: the stream ends at the present end of the binlogs.
    """
    flags = _BINLOG_DUMP_NON_BLOCK if to_end else 0
    return struct.pack("<BIHI", COM_BINLOG_DUMP, FIRST_EVENT_POSITION, flags, server_id)


def file_dump_command(server_id: int, name: str, position: int) -> bytes:
    """COM_BINLOG_DUMP from a position of a binlog file to the present end of the binlogs."""
    return (
        struct.pack("<BIHI", COM_BINLOG_DUMP, position, _BINLOG_DUMP_NON_BLOCK, server_id)
        + name.encode()
    )


def encode_mysql_gtid_set(position: MysqlGtidSet) -> bytes:
    """The server's binary form; without tags the older format, which all versions read.

    An interval is (first, last + 1), both 64 bits; a tag is its length times two and its text.
    """
    tagged = any(tag for (_, tag), _ in position.servers)
    count = len(position.servers)
    parts = [struct.pack("<Q", (count << 8) | _TAGGED_FORMAT if tagged else count)]
    for (sid, tag), intervals in position.servers:
        parts.append(sid)
        if tagged:
            text = tag.encode("ascii")
            parts.append(bytes([len(text) << 1]) + text)
        parts.append(struct.pack("<Q", len(intervals)))
        parts.extend(struct.pack("<QQ", first, last + 1) for first, last in intervals)
    return b"".join(parts)


# The server sends a heartbeat at least this often, so that silence means that it is gone.
STREAM_HEARTBEAT_S: Final = 10
# While Kafka is away nothing is read. The server keeps the connection for as long as a Kafka
# transaction may last (15 min is the usual maximum of brokers).
NET_WRITE_TIMEOUT_S: Final = 900
_NANOSECONDS: Final = 1_000_000_000

Statement = tuple[str, tuple[Any, ...]]


def session_statements(flavor: Flavor, position: GtidSet | None, identity: str) -> list[Statement]:
    """Statements that precede a dump after `position`, or of a file if that is None.

    `identity`: a UUID that no other replica has.
    """
    period_ns = STREAM_HEARTBEAT_S * _NANOSECONDS
    if flavor is Flavor.MYSQL:
        # Both names of each variable: before 8.0.26 only the older one works.
        return [
            ("SET @master_binlog_checksum = @@GLOBAL.binlog_checksum", ()),
            ("SET @source_binlog_checksum = @@GLOBAL.binlog_checksum", ()),
            ("SET @master_heartbeat_period = %s, @source_heartbeat_period = %s", (period_ns,) * 2),
            ("SET @slave_uuid = %s, @replica_uuid = %s", (identity,) * 2),
            ("SET SESSION net_write_timeout = %s", (NET_WRITE_TIMEOUT_S,)),
        ]
    statements: list[Statement] = [
        ("SET @master_binlog_checksum = @@GLOBAL.binlog_checksum", ()),
        ("SET @master_heartbeat_period = %s", (period_ns,)),
        ("SET @mariadb_slave_capability = 4", ()),  # the stream carries GTID events
        ("SET SESSION net_write_timeout = %s", (NET_WRITE_TIMEOUT_S,)),
    ]
    if position is not None:
        if not isinstance(position, MariadbGtidSet):
            raise UsageError(f"position '{position}' is not MariaDB's")
        statements += [
            ("SET @slave_connect_state = %s", (position.last_gtids(),)),
            ("SET @slave_gtid_strict_mode = 1", ()),
            ("SET @slave_gtid_ignore_duplicates = 0", ()),
        ]
    return statements


def dump_command(
    flavor: Flavor, server_id: int, position: GtidSet, *, to_end: bool = False
) -> bytes:
    """The command (without its packet header) that starts the stream after `position`.

    `to_end`: the stream ends at the present end of the binlogs.
    """
    if flavor is Flavor.MARIADB:  # the position stands in the session
        return mariadb_dump_command(server_id, to_end=to_end)
    if not isinstance(position, MysqlGtidSet):
        raise UsageError(f"position '{position}' is not MySQL's")
    return mysql_dump_command(server_id, position, to_end=to_end)


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
# How MariaDB says that its binlogs begin behind a GTID, or that it lies in a hole of them.
_NOT_IN_BINLOGS: Final = ("could not find", "is missing the gtid")
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
    if code == _ER_SOURCE_FATAL and any(text in lower for text in _NOT_IN_BINLOGS):
        return BinlogPurged(message)
    if code in _ER_NOT_IN_BINLOG:
        return Halt(message)
    if code == _ER_SOURCE_FATAL:
        # Binlogs that were reset under the stream, for one: the next connect shows what has become
        # of them, or meets the same fault.
        return StreamFailed(message)
    return ServerLost(message)


def _check_is(own: str, found: str, where: str) -> None:
    if found != own:
        raise ServerLost(f"{where}: the address leads to {found} by now, and no more to {own}")


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
        cls,
        server: DatabaseServer,
        family: ServerFacts,
        position: GtidSet,
        server_id: int,
        own: str = "",
    ) -> Self:
        """Connect, register and start the dump after `position`.

        `own`: what the server calls itself, if it has to be that very one: an address may lead to
        another server meanwhile. Raises ServerRefused and ServerLost; errors of the position arrive
        in the stream.
        """
        command = dump_command(family.flavor, server_id, position)
        return cls._open(server, family, server_id, position, command, own)

    @classmethod
    def open_file(
        cls,
        server: DatabaseServer,
        family: ServerFacts,
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
        cls, server: DatabaseServer, family: ServerFacts, position: GtidSet, own: str = ""
    ) -> Self:
        """The stream after `position` to the present end of the binlogs; `own` as in `open`."""
        server_id = random_server_id()
        command = dump_command(family.flavor, server_id, position, to_end=True)
        return cls._open(server, family, server_id, position, command, own)

    @classmethod
    def _open(
        cls,
        server: DatabaseServer,
        family: ServerFacts,
        server_id: int,
        position: GtidSet | None,
        command: bytes,
        own: str = "",
    ) -> Self:
        where = f"replication stream of {server.name}"
        connection = open_connection(server)
        try:
            with server_errors(server, "starting the replication stream of"):
                if own:
                    _check_is(own, family.own_name(connection), where)
                with connection.cursor() as cursor:
                    for statement, values in session_statements(
                        family.flavor, position, str(uuid.uuid4())
                    ):
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
