"""A connection that sends rows from memory to LOAD DATA LOCAL, and no file of this machine."""

from typing import Any

from pymysql.connections import Connection, MySQLResult

# Servers accept packets of at least 1 MB by default.
_PACKET_BYTES = 256 * 1024


class LoadingConnection(Connection):  # type: ignore[misc]
    """Sends `lines` when a statement asks for a file.

    PyMySQL's own way sends the file that the server names, which may be any file of this machine;
    that stays switched off.
    """

    lines: memoryview | None = None

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
