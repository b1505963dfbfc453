"""Run a command that dies with the process that asked for it: `guard.py PARENT_PID COMMAND...`.

The kernel is asked first and the command replaces this process afterwards, so the pid stays the
same and nothing runs between fork and exec in a parent that has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Ask for SIGKILL on the parent's death, then become the command."""
    parent_pid, *command = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before the kernel was asked.
    if os.getppid() != int(parent_pid):
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - the command is the caller's


if __name__ == "__main__":
    main(sys.argv[1:])
