"""`shardstream serve --streams` as a user starts it: a separate process with a settings file."""

import http.client
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from benchmarks.own_memory import peak_mb
from benchmarks.watch import server_cpu_s
from event_token.errors import Halt
from shardstream.local.local_server import free_ports
from shardstream.local.processes import ServerProcess

# A start takes a second, more on a busy machine.
READY_S_MAX = 60.0
POLL_S = 0.05
HOST = "127.0.0.1"


class StreamServer:
    """The streams of a settings file. A context manager: ready in the block, killed behind it."""

    def __init__(self, settings: Path) -> None:
        """Start nothing yet."""
        self.port = free_ports(1)[0]
        self.url = f"http://{HOST}:{self.port}"
        # The process is found again by its folder's name in the command.
        folder = Path(tempfile.mkdtemp(prefix="streams-", dir=settings.parent))
        linked = folder / settings.name
        linked.symlink_to(settings)
        self._process = ServerProcess("server of streams", folder, die_with_parent=True)
        self._command = [
            *(sys.executable, "-m", "shardstream", "serve", "--streams"),
            *(f"--config={linked}", f"--http={HOST}:{self.port}"),
        ]

    def __enter__(self) -> Self:
        """Start it, and wait until it answers. Raises Halt if it does not."""
        self._process.launch(self._command)
        try:
            self._wait()
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()

    def _wait(self) -> None:
        deadline_s = time.monotonic() + READY_S_MAX
        while not self._answers():
            self._process.check_alive()
            if time.monotonic() > deadline_s:
                raise self._process.fail_start(READY_S_MAX)
            time.sleep(POLL_S)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=READY_S_MAX)
        with suppress(OSError):
            connection.request("GET", "/v1/keyspaces")
            status = connection.getresponse().status
            connection.close()
            if status != http.HTTPStatus.OK:
                raise Halt(f"the server of streams answers with status {status}")
            return True
        return False

    def cpu_s(self) -> float:
        """Return the CPU time used since its start. Raises Halt if it has ended."""
        return server_cpu_s(self._process)

    def peak_mb(self) -> float:
        """Return the peak of its resident memory. Raises Halt if it has ended."""
        self._process.check_alive()
        return 0.0 if self._process.pid is None else peak_mb(str(self._process.pid))
