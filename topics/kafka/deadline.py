"""One budget of time shared by several waits."""

import time


class Deadline:
    """Ends `seconds` from now; waits take what is left of it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end_s - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self.left_s == 0.0
