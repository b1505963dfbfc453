"""What each process has to make for itself: its connections, and its locks."""

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Something that a forked process does not share with its parent. Threads may share it.

    On a parent's connection a child would read the parent's answers, and a lock that another thread
    of the parent holds is never released in the child. A process is known by its id, so that forks
    that run none of Python's own hooks count, too. What a parent has made is kept: to close a
    connection may send a goodbye, which would end the parent's session.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        """Make nothing yet."""
        self._make = make
        self._made: dict[int, T] = {}

    def here(self) -> T:
        """Return this process's own, made when it first asks."""
        pid = os.getpid()
        try:
            return self._made[pid]
        except KeyError:
            return self._made.setdefault(pid, self._make())
