"""A TCP proxy on loopback that can lose, delay, cut and slice what it forwards."""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

HOST = "127.0.0.1"
CHUNK_BYTES = 65_536
# An `SO_LINGER` of zero seconds: closing sends RST instead of FIN.
_LINGER_NONE = struct.pack("ii", 1, 0)
_LENGTH = struct.Struct(">I")

Frame = bytes

# Numbers of Kafka's protocol.
INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 22, 24, 26
_UNKNOWN_SERVER_ERROR = -1


def api_of(frame: Frame) -> int:
    """The number of a client's request."""
    return int.from_bytes(frame[4:6], "big")


def refused_commit(frame: Frame) -> bytes:
    """The answer to an EndTxn that says nothing, as brokers give it; the client sends version 1."""
    correlation = frame[8:12]
    body = correlation + struct.pack(">ih", 0, _UNKNOWN_SERVER_ERROR)
    return _LENGTH.pack(len(body)) + body


class _Link:
    """One connection of a client and the server's end of it."""

    def __init__(self, proxy: "Proxy", client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self._proxy = proxy
        # Bytes from the server: an answer to what was held and released shows here.
        self.answered = 0
        threading.Thread(target=self._to_server, daemon=True).start()
        threading.Thread(target=self._to_client, daemon=True).start()

    def _to_server(self) -> None:
        with suppress(OSError):
            while True:
                piece = self._proxy.read_piece(self.client)
                if not piece:
                    break
                self._proxy.wait_through()
                if self._proxy.holds(self, piece):
                    return  # the server's end stays open: what is held may be released later
                if answer := self._proxy.answer_for(piece):
                    self._send(self.client, answer)
                    continue
                self._send(self.server, piece)
            self.server.close()

    def _to_client(self) -> None:
        with suppress(OSError):
            while piece := self._proxy.read_answer(self.server):
                self.answered += len(piece)
                self._proxy.wait_through()
                with suppress(OSError):
                    self._send(self.client, piece[: self._proxy.take_budget(len(piece))])
                if self._proxy.is_cut:
                    self.reset()
            self.client.close()

    def _send(self, to: socket.socket, piece: bytes) -> None:
        step = self._proxy.slice_bytes or len(piece) or 1
        for at in range(0, len(piece), step):
            to.sendall(piece[at : at + step])

    def reset(self) -> None:
        """End both sides with RST."""
        for side in (self.client, self.server):
            with suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
                side.shutdown(socket.SHUT_RDWR)
            with suppress(OSError):
                side.close()


class Proxy:
    """Forwards connections to a port. `framed`: what clients send are frames of Kafka's protocol.

    `slice_bytes`: the largest piece that is sent at once, 0 for any. `hold`: given each frame of a
    client; the first for which it is true is kept back with everything behind it. `answer`: given
    each frame of a client; what it returns is sent back in the server's stead, unless that is
    empty; it may take its time. `rewritten`: what servers answer otherwise, in as many bytes; set
    it before the first connection, and where anything is answered in the server's stead.
    """

    def __init__(self, target_port: int, *, framed: bool = False) -> None:
        self.slice_bytes = 0
        self.rewritten: dict[bytes, bytes] = {}
        self.hold: Callable[[Frame], bool] | None = None
        self.answer: Callable[[Frame], bytes] | None = None
        self.held: list[tuple[_Link, Frame]] = []
        self.accepted = 0
        self._refuses = False
        self._target_port = target_port
        self._framed = framed
        self._through = threading.Event()
        self._through.set()
        self._budget: int | None = None
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Accept nothing more, and reset all connections."""
        self.heal()
        self._listener.close()
        self.reset()

    def freeze(self) -> None:
        """Become a black hole: connections stay open, and nothing arrives on either side."""
        self._through.clear()

    def cut_after(self, count: int) -> None:
        """Reset all connections once the servers have sent `count` more bytes, in mid-packet."""
        with self._lock:
            self._budget = count

    def refuse(self) -> None:
        """Reset all connections, and every new one, as if nothing listened."""
        self._refuses = True
        self.reset()

    def reset(self) -> None:
        """Reset all connections now."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.reset()

    def heal(self) -> None:
        """Forward everything again, for connections that still live and for new ones."""
        self.slice_bytes = 0
        self.hold = self.answer = None
        self._refuses = False
        with self._lock:
            self._budget = None
        self._through.set()

    @property
    def is_cut(self) -> bool:
        """Whether the bytes allowed by `cut_after` have been sent."""
        return self._budget == 0

    def take_budget(self, count: int) -> int:
        """How many of `count` bytes may still be sent."""
        with self._lock:
            if self._budget is None:
                return count
            taken = min(count, self._budget)
            self._budget -= taken
            return taken

    def wait_through(self) -> None:
        """Wait while the proxy is a black hole."""
        self._through.wait()

    def read_piece(self, client: socket.socket) -> bytes:
        """The next bytes, or the next whole frame, of a client; empty at its end."""
        if not self._framed:
            return client.recv(CHUNK_BYTES)
        head = _exactly(client, _LENGTH.size)
        return head + _exactly(client, _LENGTH.unpack(head)[0]) if head else b""

    def read_answer(self, server: socket.socket) -> bytes:
        """The next bytes of a server; whole frames where anything is rewritten."""
        if not self.rewritten:
            return server.recv(CHUNK_BYTES)
        piece = self.read_piece(server)
        for said, shown in self.rewritten.items():
            piece = piece.replace(said, shown)
        return piece

    def answer_for(self, piece: bytes) -> bytes:
        """What is sent back in the server's stead; empty for what the server has to answer."""
        answer = self.answer
        return b"" if answer is None else answer(piece)

    def holds(self, link: _Link, piece: bytes) -> bool:
        """Keep the piece back if `hold` says so; then nothing more of its connection passes."""
        with self._lock:
            if self.hold is None or not self.hold(piece):
                return False
            self.hold = None
            self.held.append((link, piece))
            return True

    def release(self) -> _Link:
        """Send the piece that was held first; nothing else follows it on its connection."""
        link, piece = self.held.pop(0)
        link.server.sendall(piece)
        return link

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                if self.is_cut or self._refuses:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
                    client.close()
                    continue
                try:
                    server = socket.create_connection((HOST, self._target_port))
                except OSError:
                    client.close()
                    continue
                for side in (client, server):
                    side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._links.append(_Link(self, client, server))


def broker_proxy(bootstrap_servers: str) -> Proxy:
    """A proxy of a cluster with one broker, by which clients take the proxy for the broker."""
    host, port = bootstrap_servers.split(":")
    proxy = Proxy(int(port), framed=True)
    # A broker tells its address as the host's name and four bytes for the port.
    proxy.rewritten = {
        host.encode() + struct.pack(">i", int(port)): HOST.encode() + struct.pack(">i", proxy.port)
    }
    return proxy


def _exactly(source: socket.socket, count: int) -> bytes:
    pieces = []
    while count:
        piece = source.recv(min(count, CHUNK_BYTES))
        if not piece:
            return b""
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
