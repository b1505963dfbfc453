"""The demo's own processes, each a command that a user would run."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from event_token.errors import Halt
from shardstream.local.processes import wait_or_kill, with_parent_guard

# A producer stops within a second of the signal, Spark within a few.
STOP_S_MAX = 30.0
LOG_TAIL_LINES = 15


class Worker:
    """One `shardstream ...` command, which logs to a file and dies with this process."""

    def __init__(
        self,
        name: str,
        folder: Path,
        arguments: Sequence[str],
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; `secrets`: variables, as every user may read a command line."""
        self.name = name
        self.log_path = folder / f"{name}.log"
        self.output_path = folder / f"{name}.json"
        command = [sys.executable, "-m", "shardstream", *arguments]
        with self.log_path.open("wb") as log, self.output_path.open("wb") as output:
            # A separate session: Ctrl-C reaches only this process, which stops the others in order.
            self._process = subprocess.Popen(
                with_parent_guard(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env={**os.environ, **(secrets or {})},
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._process.poll()

    def check_alive(self) -> None:
        """Raise Halt with the end of the log if the process has ended."""
        if self.status is not None:
            raise self.failure()

    def failure(self) -> Halt:
        """Return the error that tells how the process ended."""
        return Halt(f"{self.name} ended with status {self.status}:\n{self._log_tail()}")

    def ask_to_stop(self) -> None:
        """Send SIGTERM without waiting."""
        self._process.terminate()

    def stop(self) -> None:
        """Ask it to stop, wait, and kill it if it does not."""
        self.ask_to_stop()
        wait_or_kill(self._process, STOP_S_MAX)

    def kill(self) -> None:
        """Kill and wait."""
        self._process.kill()
        self._process.wait()

    def output(self) -> list[dict[str, Any]]:
        """Return the JSON objects that the process has printed, one per complete line."""
        lines = self.output_path.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines]

    def last_output(self) -> dict[str, Any]:
        """Return the last of them, empty if there is none."""
        lines = self.output_path.read_text().rpartition("\n")[0].splitlines()
        return dict(json.loads(lines[-1])) if lines else {}

    def _log_tail(self) -> str:
        # A command reports what it found wrong in its output.
        text = self.log_path.read_text(errors="replace") or self.output_path.read_text()
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


class Workers:
    """The demo's running commands: none may end by itself, and all end with the demo."""

    def __init__(self, folder: Path, settings_path: Path) -> None:
        """Start nothing yet; outputs and logs go to the folder."""
        self._folder = folder
        self._settings_path = settings_path
        self._all: list[Worker] = []
        self._serving: dict[str, Worker] = {}

    def start(self, name: str, *arguments: str, secrets: Mapping[str, str] | None = None) -> Worker:
        """Start a command that runs until it is stopped."""
        worker = self._serving[name] = self.run(name, *arguments, "--json", secrets=secrets)
        return worker

    def run(self, name: str, *arguments: str, secrets: Mapping[str, str] | None = None) -> Worker:
        """Start a command that ends by itself."""
        command = [*arguments, "--config", str(self._settings_path)]
        worker = Worker(name, self._folder, command, secrets)
        self._all.append(worker)
        return worker

    def release(self, name: str) -> Worker:
        """Ask one to stop; from now on it may end."""
        worker = self._serving.pop(name)
        worker.ask_to_stop()
        return worker

    def kill_one(self, name: str) -> None:
        """Kill one without warning."""
        self._serving.pop(name).kill()

    def check_alive(self) -> None:
        """Raise Halt if one has ended unasked."""
        for worker in self._serving.values():
            worker.check_alive()

    def stop(self) -> None:
        """Stop all in order."""
        for worker in self._serving.values():
            worker.ask_to_stop()
        for worker in self._serving.values():
            worker.stop()

    def kill(self) -> None:
        """Kill all."""
        for worker in self._all:
            worker.kill()
