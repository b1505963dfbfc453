"""Processes that are stopped by a signal, and known to stand still."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import wait_for


def stop(pid: int) -> None:
    """Send SIGSTOP, and return when no thread of the process runs any more.

    `kill` returns earlier: threads on other processors go on for a moment, and may still answer.
    """
    os.kill(pid, signal.SIGSTOP)
    wait_for(f"process {pid} stands still", lambda: is_stopped(pid), lambda: _thread_states(pid))


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
