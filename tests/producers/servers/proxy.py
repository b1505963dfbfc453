"""A virtual address: a TCP proxy whose server can be changed."""

import socket
import threading
from contextlib import suppress

from tests.database_servers import DatabaseFixture
from tests.postgres_servers import PostgresFixture


class VirtualAddress:
    """Listens on a port of loopback and passes each connection on to the server of the moment."""

    def __init__(self, database: DatabaseFixture | PostgresFixture) -> None:
        self._upstream = (database.host, database.port)
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def move_to(self, database: DatabaseFixture) -> None:
        """Pass new connections to another server, and end those that there are."""
        self._upstream = (database.host, database.port)
        self._end_all()

    def close(self) -> None:
        """End everything."""
        self._listener.close()
        self._end_all()

    def _end_all(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._upstream)
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                for pass_on, ends in (
                    (self.to_server, (client, server)),
                    (_pass_on, (server, client)),
                ):
                    threading.Thread(target=pass_on, args=ends, daemon=True).start()

    def to_server(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what a client sends, until it ends."""
        _pass_on(client, server)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(65536):
            sink.sendall(part)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
