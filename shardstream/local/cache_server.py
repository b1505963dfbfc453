"""A real Redis or memcached server on loopback, in its own folder."""

import os
import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from event_token import UsageError
from shardstream.local.fetching import Report, own_loader, quiet, unpacked
from shardstream.local.local_server import LocalServer


@dataclass(frozen=True, slots=True)
class CacheBinary:
    """A server's program on PATH, and Debian's package with it."""

    program: str
    package: str


REDIS = CacheBinary("redis-server", "redis-server")
MEMCACHED = CacheBinary("memcached", "memcached")


def find_server(wanted: CacheBinary, report: Report = quiet) -> tuple[str, ...]:
    """Return the command of a server, and fetch it if necessary.

    Raises UsageError with the reason if it is not available here, Halt if fetching fails.
    """
    if found := shutil.which(wanted.program):
        return (found,)
    root = unpacked(wanted.program, wanted.package, lambda folder: _command(folder, wanted), report)
    return _command(root, wanted)


def _command(root: Path, wanted: CacheBinary) -> tuple[str, ...]:
    program = root / "usr/bin" / wanted.program
    if not program.exists():
        raise UsageError(f"{root} has no {wanted.program}: remove it, it will be fetched again")
    return (*own_loader(root), str(program))


ANSWER_S_MAX = 2.0
ANSWER_BYTES_MAX = 65_536


class CacheServer(LocalServer):
    """One server; each start of a folder uses the same port."""

    # A start takes less than a second, far longer on a busy machine.
    ready_s_max = 120.0
    ready_poll_s = 0.05
    binary: CacheBinary
    # What is asked, and where the answer holds the server's pid: proof that it is this server.
    question: bytes
    answer: re.Pattern[bytes]

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"

    def arguments(self) -> Sequence[str]:
        """Return the program's arguments; they name the folder."""
        raise NotImplementedError

    def launch(self) -> None:
        """Start without waiting: `finish_start` follows."""
        command = find_server(self.binary, self._report)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._choose_ports(1)
        self._report(f"starting {self.name}")
        self._process.launch([*command, *self.arguments(), *self.extra_args])

    def serves(self) -> bool:
        """Whether the server that answers has this folder's process id."""
        try:
            with socket.create_connection((self.host, self.port), ANSWER_S_MAX) as connection:
                connection.sendall(self.question)
                said = connection.recv(ANSWER_BYTES_MAX)
        except OSError:
            return False
        found = self.answer.search(said)
        return found is not None and int(found.group(1)) == self.pid


class RedisServer(CacheServer):
    """A Redis server that writes nothing to disk by itself, as a cache's server should."""

    binary = REDIS
    kind = binary.program
    question = b"INFO server\r\n"
    answer = re.compile(rb"process_id:(\d+)")

    def arguments(self) -> Sequence[str]:
        """Return the settings, all on the command line."""
        port = ("--bind", self.host, "--port", str(self.port))
        no_disk = ("--save", "", "--appendonly", "no")
        # The process is found again by its command line, which names the folder.
        found = ("--dir", f"{self.folder}{os.sep}", "--set-proc-title", "no")
        return (*port, *found, *no_disk, "--daemonize", "no")


class MemcachedServer(CacheServer):
    """A memcached server without UDP."""

    binary = MEMCACHED
    kind = binary.program
    question = b"stats\r\n"
    answer = re.compile(rb"STAT pid (\d+)")

    def arguments(self) -> Sequence[str]:
        """Return the settings, all on the command line."""
        user = ("-u", "root") if os.geteuid() == 0 else ()
        port = ("-l", self.host, "-p", str(self.port), "-U", "0")
        return (*port, *user, "-P", f"{self.folder}{os.sep}memcached.pid")
