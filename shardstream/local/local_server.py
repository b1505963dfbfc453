"""A real server on loopback, in its own folder, where each start uses the same port."""

import signal
import time
from pathlib import Path

from event_token.errors import Halt
from shardstream.local.fetching.cache import Report
from shardstream.local.ports import HOST, finish_start, free_ports
from shardstream.local.processes import ServerProcess

# Databases and cache servers say so, and end, if they cannot listen.
PORT_TAKEN = "already in use"


class LocalServer:
    """Process and port of one server; its family says how to launch it and whether it serves."""

    # How long a start may take, and between two looks whether it serves.
    ready_s_max: float
    ready_poll_s: float
    # What asks the server for a clean shutdown.
    stop_signal = signal.SIGTERM

    def __init__(self, folder: Path, name: str, *, die_with_parent: bool, report: Report) -> None:
        """Start nothing yet. `name` is for messages."""
        self.folder = folder.resolve()
        self.name = name
        self.host = HOST
        self._report = report
        self._port_is_new = False
        self._process = ServerProcess(
            name, self.folder, die_with_parent=die_with_parent, stop_signal=self.stop_signal
        )

    @property
    def has_port(self) -> bool:
        """Whether this folder's server has ever been started."""
        return self._port_path.exists()

    @property
    def port(self) -> int:
        """The TCP port, the same at each start of this folder; Halt before the first."""
        if not self.has_port:
            raise Halt(f"{self.name} has not been started yet, it has no port")
        return int(self._port_path.read_text())

    @property
    def pid(self) -> int | None:
        """The server's process, None if it is not running."""
        return self._process.pid

    @property
    def log_path(self) -> Path:
        """The server's log."""
        return self._process.log_path

    def launch(self) -> None:
        """Start without waiting, so that servers start in parallel; `finish_start` follows."""
        raise NotImplementedError

    def serves(self) -> bool:
        """Whether it is this server that answers on the port."""
        raise NotImplementedError

    def start(self) -> None:
        """Start and wait until it serves. Raises Halt with the log's tail."""
        self.launch()
        self.finish_start()

    def finish_start(self) -> None:
        """Wait for a launched server; launch it again if its new port was taken meanwhile.

        Raises Halt with the log's tail, and then leaves no process behind.
        """
        finish_start(self.wait_ready, self._abandon, self._launch_elsewhere)
        self._port_is_new = False

    def wait_ready(self) -> None:
        """Wait until the server serves. Raises Halt."""
        deadline = time.monotonic() + self.ready_s_max
        while not self.serves():
            self._process.check_alive()
            if time.monotonic() > deadline:
                raise self._process.fail_start(self.ready_s_max)
            time.sleep(self.ready_poll_s)

    def stop(self) -> None:
        """Shut down cleanly and wait."""
        self._process.stop()

    def ask_to_stop(self) -> None:
        """Request a clean shutdown without waiting; `stop` waits."""
        self._process.ask_to_stop()

    def kill(self) -> None:
        """Kill without warning and wait."""
        self._process.kill()

    @property
    def _port_path(self) -> Path:
        return self.folder / "port"

    def _choose_port(self) -> None:
        """Choose the folder's port at its first start."""
        if not self.has_port:
            self._port_path.write_text(f"{free_ports(1)[0]}\n")
            self._port_is_new = True

    def _abandon(self) -> bool:
        taken = self._process.log_says(PORT_TAKEN)
        self.kill()
        return taken and self._port_is_new

    def _launch_elsewhere(self) -> None:
        self._port_path.unlink()
        self.log_path.unlink()
        self.launch()
