"""Real servers on loopback, each in its own folder: how they start, are awaited and stop."""

import secrets
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from event_token.errors import Halt
from shardstream.local.fetching import Report, quiet
from shardstream.local.processes import STOP_S_MAX, ServerProcess

HOST = "127.0.0.1"
# Below the range of Linux's ephemeral ports (from 32768): otherwise a client's connection could
# occupy a server's port when that server restarts.
PORT_MIN = 15000
PORT_MAX = 32000
ATTEMPTS_MAX = 1000
# Another process can take a free port before the server listens on it; thrice in a row is a fault.
STARTS_MAX = 3


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a connection that lingers in TIME_WAIT does not make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    """Return whether anything accepts connections on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports. Raises Halt if the machine has none left.

    They are picked at random, so that stacks that start at the same time rarely collide.
    """
    found: list[int] = []
    for _ in range(ATTEMPTS_MAX):
        if len(found) == count:
            return found
        port = PORT_MIN + secrets.randbelow(PORT_MAX - PORT_MIN)
        if port not in found and is_free(port):
            found.append(port)
    raise Halt(f"no {count} free ports between {PORT_MIN} and {PORT_MAX} on {HOST}")


# Servers say so, and end, if they cannot listen.
PORT_TAKEN = "already in use"


class ServerInFolder:
    """The process of one server; its family says how to launch it and whether it serves."""

    # How long a start may take, and between two looks whether it serves.
    ready_s_max: float
    ready_poll_s: float
    # What asks the server for a clean shutdown.
    stop_signal = signal.SIGTERM

    def __init__(self, folder: Path, name: str, *, die_with_parent: bool) -> None:
        """Start nothing yet. `name` is for messages."""
        self.folder = folder.resolve()
        self.name = name
        self.host = HOST
        self._process = ServerProcess(
            name, self.folder, die_with_parent=die_with_parent, stop_signal=self.stop_signal
        )

    @property
    def pid(self) -> int | None:
        """The server's process, None if it is not running."""
        return self._process.pid

    @property
    def log_path(self) -> Path:
        """The server's log."""
        return self._process.log_path

    @property
    def port_taken(self) -> bool:
        """Whether the log reports that another process has a port of the server."""
        return self._process.log_says(PORT_TAKEN)

    def launch(self) -> None:
        """Start without waiting, so that servers start in parallel."""
        raise NotImplementedError

    def serves(self) -> bool:
        """Whether it is this server that answers on the port."""
        raise NotImplementedError

    def wait_ready(self) -> None:
        """Wait until the server serves. Raises Halt."""
        deadline = time.monotonic() + self.ready_s_max
        while not self.serves():
            self._process.check_alive()
            if time.monotonic() > deadline:
                raise self._process.fail_start(self.ready_s_max)
            time.sleep(self.ready_poll_s)

    def stop(self, timeout_s: float = STOP_S_MAX) -> None:
        """Shut down cleanly and wait; kill after `timeout_s` seconds."""
        self._process.stop(timeout_s)

    def ask_to_stop(self) -> None:
        """Request a clean shutdown without waiting; `stop` waits."""
        self._process.ask_to_stop()

    def kill(self) -> None:
        """Kill without warning and wait."""
        self._process.kill()


class KeepsPorts(ABC):
    """Servers whose folder keeps their ports, so that these are the same at each start."""

    folder: Path
    _launched: Sequence[ServerInFolder]
    _ports_are_new = False

    @abstractmethod
    def launch(self) -> None:
        """Start without waiting: `finish_start` follows."""

    @abstractmethod
    def wait_ready(self) -> None:
        """Wait until all serve. Raises Halt with the log's tail."""

    @property
    def has_ports(self) -> bool:
        """Whether this folder's servers have ever been started."""
        return self._ports_path.exists()

    def start(self) -> None:
        """Start and wait until all serve. Raises Halt with the log's tail."""
        self.launch()
        self.finish_start()

    def finish_start(self) -> None:
        """Wait for launched servers; launch them again if their new ports were taken meanwhile.

        Raises Halt with the log's tail, and then leaves no process behind.
        """
        for attempt in range(1, STARTS_MAX + 1):
            try:
                self.wait_ready()
            except Halt:
                is_taken = any(server.port_taken for server in self._launched)
                for server in self._launched:
                    server.kill()
                if not (is_taken and self._ports_are_new) or attempt == STARTS_MAX:
                    raise
                self._ports_path.unlink()
                for server in self._launched:
                    server.log_path.unlink(missing_ok=True)
                self.launch()
            else:
                self._ports_are_new = False
                return

    @property
    def _ports_path(self) -> Path:
        return self.folder / "ports"

    def _choose_ports(self, count: int) -> None:
        """Choose the folder's ports at its first start."""
        if not self.has_ports:
            self._ports_path.write_text("".join(f"{port}\n" for port in free_ports(count)))
            self._ports_are_new = True

    def _kept_ports(self) -> list[int]:
        return [int(line) for line in self._ports_path.read_text().split()]


class ServerOptions(TypedDict, total=False):
    """What any local server takes; `extra_args` come last, so they take precedence."""

    extra_args: Sequence[str]
    die_with_parent: bool
    report: Report


class LocalServer(ServerInFolder, KeepsPorts):
    """A server with one port. `kind` names its program in messages."""

    kind: str

    def __init__(self, folder: Path, **options: Unpack[ServerOptions]) -> None:
        """Start nothing yet."""
        name = f"{self.kind} {folder.resolve().name}"
        super().__init__(folder, name, die_with_parent=options.get("die_with_parent", False))
        self.extra_args = tuple(options.get("extra_args", ()))
        self._report = options.get("report", quiet)
        self._launched = (self,)

    @property
    def port(self) -> int:
        """The TCP port, the same at each start of this folder; Halt before the first."""
        if not self.has_ports:
            raise Halt(f"{self.name} has not been started yet, it has no port")
        [port] = self._kept_ports()
        return port
