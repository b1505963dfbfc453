"""Run a command that dies with the process that asked for it: `guard.py PARENT_PID COMMAND...`.

The kernel is asked first and the command replaces this process afterwards, so the pid stays the
same and nothing runs between fork and exec in a parent that has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask for SIGKILL on the parent's death; exits if it is dead already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before the kernel was asked.
    if os.getppid() != parent_pid:
        sys.exit(1)


def main(arguments: list[str]) -> None:
    """Die with the parent, and become the command."""
    parent_pid, *command = arguments
    die_with_parent(int(parent_pid))
    os.execvp(command[0], command)  # noqa: S606 - the command is the caller's


if __name__ == "__main__":
    main(sys.argv[1:])
