"""Starts programs from a process that has imported most of them: imports take most of a start.

Each is still a process of its own, forked from one that has run nothing, and does what
`python -m MODULE ARGUMENTS` does. Run as a program, this is the process that is forked.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from select import select
from typing import IO, Any

from shardstream.local.guard import die_with_parent
from tests.repository import ROOT

# The commands that tests start most.
COMMANDS = (
    *("app", "audit", "changelog", "copy", "invalidate", "local", "preflight", "produce"),
    *("readers", "reshard", "serve", "skip", "sinks.database", "sinks.state", "sinks.table_topics"),
    *("status", "tail", "topics", "topology"),
)
# Arguments and environment; Linux limits the environment of a process to about as much.
REQUEST_BYTES_MAX = 1 << 17
# The connection for answers, output, errors, input.
FILES_MAX = 4
# A status, or a process id.
ANSWER_BYTES_MAX = 32


class StartedProgram:
    """A running program, with what tests use of `subprocess.Popen`."""

    def __init__(self, answers: socket.socket) -> None:
        """Take over the connection to the process that waits for the program."""
        self._answers = answers
        self.pid = int(answers.recv(ANSWER_BYTES_MAX))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends, and return the exit status; subprocess.TimeoutExpired."""
        status = self._look(timeout)
        if status is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        # Its process id is nobody else's until the end has been seen.
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select([self._answers], [], [], timeout)[0]:
            self.returncode = int(self._answers.recv(ANSWER_BYTES_MAX))
            self._answers.close()
        return self.returncode


class _Starter:
    """The process that is forked. It ends with this one, whose end of the socket closes then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None

    def start(self, program: dict[str, Any], files: Sequence[int]) -> StartedProgram:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        place = {"cwd": str(Path.cwd()), "environment": dict(os.environ)}
        request = json.dumps(program | place).encode()
        with its:
            socket.send_fds(self._connected(), [request], [its.fileno(), *files])
        return StartedProgram(mine)

    def _connected(self) -> socket.socket:
        with self._lock:
            if self._requests is None:
                self._requests, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                program = [sys.executable, "-m", __name__, str(its.fileno())]
                with its:
                    process = subprocess.Popen(
                        program,
                        cwd=ROOT,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=[its.fileno()],
                    )
                atexit.register(process.wait)
                atexit.register(self._requests.close)
            return self._requests


_starter = _Starter()


def start_program(
    module: str,
    arguments: Sequence[str],
    out: IO[Any],
    err: IO[Any],
    given: IO[Any] | None = None,
) -> StartedProgram:
    """Start a module in the present folder and environment; its output goes to two files.

    `given`: its input, if it has any.
    """
    program = {"module": module, "arguments": arguments}
    files = [each.fileno() for each in (out, err, given) if each is not None]
    return _starter.start(program, files)


def _serve(requests: socket.socket) -> str:
    """Fork for each request; returns in the process that is to become the program: its module."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that wait are not waited for
    starter = os.getpid()
    while True:
        request, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, FILES_MAX)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    requests.close()
    die_with_parent(starter)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    answers, *streams = files
    waiting, program = os.getpid(), os.fork()
    if program != 0:
        for stream in streams:
            os.close(stream)
        _wait_for(program, socket.socket(fileno=answers))
    die_with_parent(waiting)
    os.close(answers)
    for stream, number in zip(streams, (1, 2, 0), strict=False):
        os.dup2(stream, number)
        os.close(stream)
    asked = json.loads(request)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv[1:] = asked["arguments"]
    return str(asked["module"])


def _wait_for(program: int, answers: socket.socket) -> None:
    """Tell who asked the id of the process and its status; does not return."""
    answers.send(str(program).encode())
    ended = os.waitid(os.P_PID, program, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    answers.send(str(status).encode())
    answers.recv(ANSWER_BYTES_MAX)  # until it is closed nobody else may have the id
    os.waitpid(program, 0)
    os._exit(0)


if __name__ == "__main__":
    import_module("tests.producers.session.producing")
    # Their dependencies are what takes long; modules that are run must not be imported.
    for name in COMMANDS:
        import_module(f"shardstream.commands.{name}")
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests_socket:
        wanted = _serve(requests_socket)
    runpy.run_module(wanted, run_name="__main__", alter_sys=True)
