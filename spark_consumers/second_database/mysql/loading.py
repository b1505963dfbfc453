"""A connection that sends rows from memory to LOAD DATA LOCAL, and no file of this machine."""

import socket
from typing import Any

from pymysql.connections import Connection, MySQLResult

from spark_consumers.second_database.dialect import (
    KEEPALIVE_IDLE_S,
    KEEPALIVE_INTERVAL_S,
    KEEPALIVE_PROBES,
)

# Servers accept packets of at least 1 MB by default.
_PACKET_BYTES = 256 * 1024
# PyMySQL switches keepalives on.
_KEEPALIVES = (
    (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
    (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
    (socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
)


class LoadingConnection(Connection):  # type: ignore[misc]
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
        result = MySQLResult(self)
        result._read_ok_packet(answer)  # noqa: SLF001 - as PyMySQL does itself
        self._result = result
        self.server_status = result.server_status
        return result.affected_rows
