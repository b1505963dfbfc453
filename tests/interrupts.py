"""Raises at one line of the code under test, as a signal handler may at any of them.

But for those of `with`: Python handles no signal between a block and what ends it.
"""

import sys
from collections.abc import Callable
from linecache import getline
from types import FrameType, ModuleType
from typing import Any


class SoftTimeLimit(Exception):  # noqa: N818 - as others call theirs
    """As Celery's, which `except Exception` catches."""


class Interrupt(BaseException):
    """As KeyboardInterrupt, which pytest would take for one of its own."""


class RaiseAt:
    """Raises `error` at the line with this number of all those that run in these packages."""

    def __init__(self, line: int, error: type[BaseException], *packages: ModuleType) -> None:
        self.has_raised = False
        self._left = line
        self._error = error
        self._folders = tuple(str(package.__path__[0]) for package in packages)

    def call(self, function: Callable[[], object]) -> None:
        """Call the function; what is raised ends here, unless it is something else."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            function()
        except self._error:
            assert self.has_raised
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._trace_lines if frame.f_code.co_filename.startswith(self._folders) else None

    def _trace_lines(self, frame: FrameType, event: str, _argument: Any) -> Any:
        line = getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not line.startswith(("with ", "async with ")):
            self._left -= 1
            if self._left == 0:
                self.has_raised = True
                raise self._error
        return self._trace_lines


def lines_raised(
    call: Callable[[], object],
    check: Callable[[], None],
    error: type[BaseException],
    *packages: ModuleType,
    step: int = 1,
) -> int:
    """Raise at every `step`-th line of a call, and check after each; return how often."""
    count = 0
    while True:
        raising = RaiseAt(1 + count * step, error, *packages)
        raising.call(call)
        if not raising.has_raised:
            return count
        check()
        count += 1
