"""Kills Python workers and executors of a cluster while a case runs on it."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

# Spark gives up a task that fails this often.
TASK_FAILURES_MAX = 4
# Between looks at all processes, each of which takes some milliseconds.
LOOK_S = 0.1
# The process of the cluster, and the JVM of its driver.
ANCESTORS_MIN = 2


class Process(NamedTuple):
    """A process: its id, that of its parent, and its command line."""

    pid: int
    parent: int
    command: str


def is_executor(line: list[Process]) -> bool:
    """Whether a process is the JVM of an executor."""
    return "CoarseGrainedExecutorBackend" in line[0].command


def is_worker(line: list[Process]) -> bool:
    """Whether a process runs an executor's tasks: the executor's daemon forked it."""
    worker, daemon, executor = line[:3]
    is_forked = "pyspark.daemon" in worker.command and "pyspark.daemon" in daemon.command
    return is_forked and "CoarseGrainedExecutorBackend" in executor.command


@contextmanager
def killing(
    ancestor: int,
    kind: Callable[[list[Process]], bool],
    number: int,
    is_time: Callable[[], bool] = lambda: True,
) -> Iterator[list[int]]:
    """Kill `number` processes of a kind, one after the other, as soon as they are seen.

    `is_time`: whether the first one may be killed yet.
    Only descendants of process `ancestor` are killed. Gives the ids of those that were.
    """
    assert number < TASK_FAILURES_MAX
    killed: list[int] = []
    done = threading.Event()

    def kill() -> None:
        while len(killed) < number and not done.wait(LOOK_S):
            if not killed and not is_time():
                continue
            for line in _descendants(ancestor):
                if kind(line) and line[0].pid not in killed:
                    with suppress(ProcessLookupError):  # it has ended by itself meanwhile
                        os.kill(line[0].pid, signal.SIGKILL)
                        killed.append(line[0].pid)
                        break

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


def _descendants(ancestor: int) -> Iterator[list[Process]]:
    """The descendants of a process from the third generation, each with its parent and so on."""
    processes = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_text()
                processes[int(folder.name)] = Process(int(folder.name), parent, command)
    for process in processes.values():
        line = [process]
        while line[-1].parent in processes and line[-1].pid != ancestor:
            line.append(processes[line[-1].parent])
        if line[-1].pid == ancestor and len(line) > ANCESTORS_MIN:
            yield line
