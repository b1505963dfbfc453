"""A time budget shared by several waits."""

import time


class Deadline:
    """Expires `seconds` from now; each wait uses what is left."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end_s - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the deadline has expired."""
        return self.left_s == 0.0
