"""A real Redis or memcached server on loopback, in its own folder."""

import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from shardstream.local.fetching.cache import Report, quiet
from shardstream.local.fetching.cache_binaries import (
    MEMCACHED,
    REDIS,
    CacheBinary,
    find_server,
)
from shardstream.local.local_server import LocalServer

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

    def __init__(
        self,
        folder: Path,
        *,
        extra_args: Sequence[str] = (),
        die_with_parent: bool = False,
        report: Report = quiet,
    ) -> None:
        """Start nothing yet. `extra_args` come last, so they take precedence."""
        name = f"{self.binary.program} {folder.resolve().name}"
        super().__init__(folder, name, die_with_parent=die_with_parent, report=report)
        self.extra_args = tuple(extra_args)

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
        self._choose_port()
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
    question = b"stats\r\n"
    answer = re.compile(rb"STAT pid (\d+)")

    def arguments(self) -> Sequence[str]:
        """Return the settings, all on the command line."""
        user = ("-u", "root") if os.geteuid() == 0 else ()
        port = ("-l", self.host, "-p", str(self.port), "-U", "0")
        return (*port, *user, "-P", f"{self.folder}{os.sep}memcached.pid")
