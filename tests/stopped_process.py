"""Processes that are stopped by a signal, and known to stand still."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# The kernel stops threads within milliseconds; a busy machine may take longer.
STOP_S_MAX = 60.0
POLL_S = 0.01


def stop(pid: int) -> None:
    """Send SIGSTOP, and return when no thread of the process runs any more.

    `kill` returns earlier: threads on other processors go on for a moment, and may still answer.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline_s = time.monotonic() + STOP_S_MAX
    while not is_stopped(pid):
        assert time.monotonic() < deadline_s, f"process {pid} does not stop: {_thread_states(pid)}"
        time.sleep(POLL_S)


def is_stopped(pid: int) -> bool:
    """Whether every thread of a process is stopped."""
    return set(_thread_states(pid)) == {"T"}


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Keep a process stopped for the duration of a block."""
    try:
        stop(pid)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _thread_states(pid: int) -> list[str]:
    """The state of each thread, T for a stopped one."""
    states = []
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            # The second field is the thread's name, which may hold anything.
            states.append(path.read_text().rpartition(")")[2].split()[0])
    return states
