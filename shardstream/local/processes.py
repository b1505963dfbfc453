"""Processes: a server logs to a file, is found again by its pid file, and is stopped reliably."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from event_token.errors import Halt, Retry, UsageError

# How long a clean stop may take before SIGKILL: a database flushes its pages first.
STOP_S_MAX = 30.0
# A killed process is gone at once, unless the kernel waits for a disk.
KILL_S_MAX = 30.0
POLL_S = 0.05
# Lines of the server's log that a failed start shows.
LOG_TAIL_LINES = 25
LOG_TAIL_BYTES = 64 * 1024
# The initialisation of a server's data takes 2-10 s; after this long it hangs.
INITIALISE_S_MAX = 300
OUTPUT_TAIL_LINES = 15

_GUARD = Path(__file__).with_name("guard.py")
# The kernel's "parent died" means the *thread* that forked. This one lives as long as the process
# does.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-spawner")


def with_parent_guard(command: Sequence[str]) -> list[str]:
    """Wrap a command so that the kernel kills it when this process ends, for any reason.

    Raises UsageError on anything but Linux.
    """
    if sys.platform != "linux":
        raise UsageError("a server that dies with its parent needs Linux")
    return [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), *command]


def wait_or_kill(process: subprocess.Popen[bytes], stop_s_max: float) -> None:
    """Wait for a process that was asked to end; kill it if it does not within the time."""
    try:
        process.wait(stop_s_max)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def command_line(pid: int) -> str:
    """Return the command line of a process; empty if it is gone or a zombie."""
    proc = Path("/proc")
    if proc.joinpath("self").exists():
        try:
            arguments = (proc / str(pid) / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return arguments.replace(b"\0", b" ").decode(errors="replace")
    listed = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    return listed.stdout.strip()


def start_mark(pid: int) -> str:
    """Return the start time of a process, which distinguishes it from a later one with its pid.

    Empty if the system has no /proc, and if the process is gone or entirely a zombie.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # Counted from after the name, whose parentheses may contain anything.
    fields = stat.rpartition(")")[2].split()
    state, threads, began = fields[0], fields[17], fields[19]
    # While one thread of a zombie lives, its files and ports are not free.
    return "" if state in "ZX" and int(threads) <= 1 else began


def run_step(
    command: Sequence[str],
    *,
    what: str,
    timeout_s: float,
    error: type[Halt | Retry] = Halt,
    env: dict[str, str] | None = None,
    given: str = "",
) -> None:
    """Run a command to its end, with `given` as its input.

    Raises `error` with the end of its output if it fails or takes too long.
    """
    try:
        done = subprocess.run(
            command,
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_s,
            env=None if env is None else {**os.environ, **env},
        )
    except subprocess.TimeoutExpired as slow:
        raise error(f"{what} has not finished after {timeout_s:.0f} s") from slow
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-OUTPUT_TAIL_LINES:])
        raise error(f"{what} failed with status {done.returncode}:\n{tail}")


class ServerProcess:
    """A process identified by its folder, which its command line names and which holds its log."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        die_with_parent: bool,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        """Start nothing yet. `stop_signal` asks for a clean shutdown."""
        self.name = name
        self.folder = folder
        self.die_with_parent = die_with_parent
        self._stop_signal = stop_signal
        self.log_path = folder / "server.log"
        self._pid_path = folder / "server.pid"
        self._marker = f"{folder}{os.sep}"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The pid of the running server; None if it is not running.

        Pids are reused: the one in the file counts only if its command line names this folder and
        it started when the file says.
        """
        if self._child is not None:
            return self._child.pid if self._child.poll() is None else None
        try:
            pid_text, _, kept_mark = self._pid_path.read_text().strip().partition(" ")
        except FileNotFoundError:
            return None
        pid = int(pid_text)
        if start_mark(pid) != kept_mark:
            return None
        named = command_line(pid)
        # A process that is exiting has no command line any more, but still holds its ports.
        return pid if self._marker in named or (kept_mark and not named) else None

    def launch(self, command: Sequence[str]) -> None:
        """Start the process without waiting until it serves. Raises Halt if it already runs."""
        if (pid := self.pid) is not None:
            raise Halt(f"{self.name} is already running with pid {pid}")
        if self._marker not in " ".join(command):
            raise ValueError(
                f"{self.name}: the command does not name {self.folder}, it could not be found again"
            )
        full = with_parent_guard(command) if self.die_with_parent else list(command)
        spawning = _spawner.submit(self._spawn, full)
        try:
            spawning.result()
        except KeyboardInterrupt:
            # Only once the pid is known: otherwise nobody could stop the process.
            wait([spawning])
            raise

    def check_alive(self) -> None:
        """Raise Halt with the log's tail if the process has ended."""
        if self.pid is None:
            code = None if self._child is None else self._child.returncode
            raise Halt(f"{self.name} ended (status {code}); {self._show_log()}")

    def fail_start(self, seconds: float) -> Halt:
        """Return the error for a server that runs but has not answered in time."""
        return Halt(f"{self.name} did not answer within {seconds:.0f} s; {self._show_log()}")

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        return "\n".join(self._log_end().splitlines()[-LOG_TAIL_LINES:])

    def log_says(self, words: str) -> bool:
        """Return whether the words are near the log's end (the last `LOG_TAIL_BYTES`)."""
        return words in self._log_end()

    def ask_to_stop(self) -> None:
        """Ask for a shutdown without waiting; do nothing if the server is not running."""
        self._signal(self._stop_signal)

    def stop(self, timeout_s: float = STOP_S_MAX) -> None:
        """Stop cleanly, wait, and kill after `timeout_s` seconds."""
        self.ask_to_stop()
        if not self._wait_gone(timeout_s):
            self.kill()
        self._pid_path.unlink(missing_ok=True)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone. Raises Halt if the kernel keeps it."""
        self._signal(signal.SIGKILL)
        if not self._wait_gone(KILL_S_MAX):
            raise Halt(
                f"{self.name} (pid {self.pid}) is still there {KILL_S_MAX:.0f} s after SIGKILL"
            )
        self._pid_path.unlink(missing_ok=True)

    def _show_log(self) -> str:
        return f"its log {self.log_path} ends:\n{self.log_tail()}"

    def _log_end(self) -> str:
        if not self.log_path.exists():
            return "(no log)"
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def _spawn(self, command: Sequence[str]) -> None:
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A separate session: Ctrl-C in the terminal reaches only the parent, which then
                # stops its servers in order.
                start_new_session=True,
                cwd=self.folder,
            )
        self._pid_path.write_text(f"{self._child.pid} {start_mark(self._child.pid)}\n")

    def _signal(self, number: signal.Signals) -> None:
        if (pid := self.pid) is not None:
            with suppress(ProcessLookupError):  # it ended by itself just now
                os.kill(pid, number)

    def _wait_gone(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.pid is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True
