"""Forks the test's process, as servers of applications do with what they have loaded."""

import os
import signal
import traceback
from collections.abc import Callable

# Whoever waits for an answer that another process has read is ended.
WAIT_S_MAX = 60


def in_children(*works: Callable[[], object]) -> Callable[[], None]:
    """Do each work in a forked process; return what waits until all of them have succeeded."""
    children = [_fork(work) for work in works]

    def wait() -> None:
        statuses = [os.waitpid(child, 0)[1] for child in children]
        assert statuses == [0] * len(works)

    return wait


def _fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    signal.alarm(WAIT_S_MAX)
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - nothing of the test may go on in this process
        traceback.print_exc()
    finally:
        os._exit(status)
