"""A real Redis or memcached server on loopback, in its own folder."""

import os
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from event_token.errors import Halt
from shardstream.local.fetching.cache import Report, quiet
from shardstream.local.fetching.cache_binaries import (
    MEMCACHED,
    REDIS,
    CacheBinary,
    find_server,
)
from shardstream.local.ports import HOST, finish_start, free_ports
from shardstream.local.processes import ServerProcess

# A start takes less than a second, far longer on a busy machine.
READY_S_MAX = 120.0
READY_POLL_S = 0.05
ANSWER_S_MAX = 2.0
ANSWER_BYTES_MAX = 65_536
# Both servers end at once if they cannot listen.
PORT_TAKEN = "already in use"


class CacheServer:
    """One server; each start of a folder uses the same port."""

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
        self.folder = folder.resolve()
        self.host = HOST
        self.extra_args = tuple(extra_args)
        self._report = report
        self._port_is_new = False
        name = f"{self.binary.program} {self.folder.name}"
        self._process = ServerProcess(name, self.folder, die_with_parent=die_with_parent)

    @property
    def has_port(self) -> bool:
        """Whether this folder's server has ever been started."""
        return self._port_path.exists()

    @property
    def port(self) -> int:
        """The TCP port, the same at each start of this folder; Halt before the first."""
        if not self.has_port:
            raise Halt(f"{self._process.name} has not been started yet, it has no port")
        return int(self._port_path.read_text())

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The server's process, None if it is not running."""
        return self._process.pid

    @property
    def log_path(self) -> Path:
        """The server's log."""
        return self._process.log_path

    def arguments(self) -> Sequence[str]:
        """Return the program's arguments; they name the folder."""
        raise NotImplementedError

    def start(self) -> None:
        """Start and wait until it serves. Raises Halt with the log's tail."""
        self.launch()
        self.finish_start()

    def launch(self) -> None:
        """Start without waiting: `finish_start` follows."""
        command = find_server(self.binary, self._report)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.has_port:
            self._port_path.write_text(f"{free_ports(1)[0]}\n")
            self._port_is_new = True
        self._report(f"starting {self._process.name}")
        self._process.launch([*command, *self.arguments(), *self.extra_args])

    def finish_start(self) -> None:
        """Wait for a launched server; launch it again if its new port was taken meanwhile."""
        finish_start(self._wait_ready, self._abandon, self._launch_elsewhere)
        self._port_is_new = False

    def stop(self) -> None:
        """Stop and wait."""
        self._process.stop()

    def ask_to_stop(self) -> None:
        """Request a stop without waiting; `stop` waits."""
        self._process.ask_to_stop()

    def kill(self) -> None:
        """Kill without warning and wait."""
        self._process.kill()

    @property
    def _port_path(self) -> Path:
        return self.folder / "port"

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S_MAX
        while not self._serves():
            self._process.check_alive()
            if time.monotonic() > deadline:
                raise self._process.fail_start(READY_S_MAX)
            time.sleep(READY_POLL_S)

    def _serves(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), ANSWER_S_MAX) as connection:
                connection.sendall(self.question)
                said = connection.recv(ANSWER_BYTES_MAX)
        except OSError:
            return False
        found = self.answer.search(said)
        return found is not None and int(found.group(1)) == self.pid

    def _abandon(self) -> bool:
        taken = self._process.log_says(PORT_TAKEN)
        self.kill()
        return taken and self._port_is_new

    def _launch_elsewhere(self) -> None:
        self._port_path.unlink()
        self.log_path.unlink()
        self.launch()


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
