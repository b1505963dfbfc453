"""The demo's own processes: producers and the change log, each a command that a user would run."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from event_token.errors import Halt
from shardstream.local.processes import with_parent_guard

# A producer ends within a second of being asked, Spark within a few.
STOP_S_MAX = 30.0
LOG_TAIL_LINES = 15


class Worker:
    """One `shardstream ...` command: output to a log, gone when this process is gone."""

    def __init__(self, name: str, folder: Path, arguments: Sequence[str]) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        self.output_path = folder / f"{name}.json"
        command = [sys.executable, "-m", "shardstream", *arguments]
        with self.log_path.open("wb") as log, self.output_path.open("wb") as output:
            # Its own session: Ctrl-C reaches this process alone, which stops the others in order.
            self._process = subprocess.Popen(
                with_parent_guard(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                start_new_session=True,
            )

    def check_alive(self) -> None:
        """Raise Halt with the end of the log when the process has ended."""
        status = self._process.poll()
        if status is not None:
            raise Halt(f"{self.name} ended with status {status}:\n{self._log_tail()}")

    def ask_to_stop(self) -> None:
        """Send SIGTERM without waiting."""
        self._process.terminate()

    def stop(self) -> None:
        """Ask to stop, wait, and kill what does not."""
        self.ask_to_stop()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill and wait."""
        self._process.kill()
        self._process.wait()

    def last_output(self) -> str:
        """The last whole line that the process printed, empty when there is none."""
        lines = self.output_path.read_text().rpartition("\n")[0].splitlines()
        return lines[-1] if lines else ""

    def _log_tail(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
