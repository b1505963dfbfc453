"""The address at which a process serves HTTP, and the token: checked before it starts."""

import ipaddress
import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from event_token.errors import UsageError

DEFAULT_ADDRESS: Final = "127.0.0.1:9644"
# A token that can be guessed protects nothing; `openssl rand -hex 32` gives 64 characters.
TOKEN_CHARACTERS_MIN: Final = 16
# More connections than a browser and a scraper open at once.
_BACKLOG: Final = 128

_log: Final = logging.getLogger("shardstream.http")


@dataclass(frozen=True, slots=True)
class Address:
    """A host name or IP address, and a port; port 0: the system chooses one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address in `HOST:PORT` or `[IPv6]:PORT`. Raises UsageError."""
        host, colon, port = text.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        is_host = bool(host.strip("[]")) and (is_bracketed or ":" not in host)
        is_port = port.isascii() and port.isdecimal() and int(port) <= 65535
        if not (colon and is_host and is_port):
            raise UsageError(f"--http {text}: give HOST:PORT, e.g. 127.0.0.1:9644 or [::1]:9644")
        return cls(host.strip("[]"), int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        """The address as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def listen(self) -> socket.socket:
        """Return a socket that listens there. Raises UsageError if that is not possible."""
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listening = socket.socket(family, kind, protocol)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(where)
                listening.listen(_BACKLOG)
            except OSError:
                listening.close()
                raise
        except OSError as error:
            raise UsageError(
                f"--http {self}: cannot listen there: {error.strerror}. Choose another address, "
                f"or stop the process that uses this one"
            ) from error
        return listening

    def bound(self, listening: socket.socket) -> "Address":
        """Return the address with the port that the socket has."""
        return Address(self.host, listening.getsockname()[1])


class TokenFile:
    """The token of a file, which is read again whenever the file changes."""

    def __init__(self, path: Path) -> None:
        """Read it. UsageError where that is no token."""
        self._path = path
        self._version = self._found()
        self._token: str | None = _read_token(path)

    def __call__(self) -> str | None:
        """Return the token; None while the file is away, or holds none: then nobody may come in."""
        version = self._found()
        if version != self._version:
            try:
                self._token = _read_token(self._path)
            except UsageError as error:
                self._token = None
                _log.warning("nobody may come in: %s", error)
            self._version = version
        return self._token

    def _found(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def access_token(address: Address, token_file: Path | None, *, is_open: bool) -> TokenFile | None:
    """Return the token that requests must carry; None: no request needs one.

    `is_open`: an address that other machines can reach needs none either. Raises UsageError.
    """
    if token_file is not None:
        if is_open:
            raise UsageError("--auth-token-file and --no-auth exclude each other")
        return TokenFile(token_file)
    if not address.is_loopback and not is_open:
        raise UsageError(
            f"--http {address} can be reached from other machines: add --auth-token-file FILE, or "
            f"--no-auth if a proxy or the network keeps others out"
        )
    return None


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--auth-token-file {path} cannot be read: {error}") from error
    if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"--auth-token-file {path}: a token has at least {TOKEN_CHARACTERS_MIN} printable "
            f"ASCII characters; make one with: openssl rand -hex 32"
        )
    return token
