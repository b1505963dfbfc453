"""What `/livez` and `/readyz` of a process answer."""

import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

# A loop turns ten times a second. Connections to servers and brokers time out after 10 s.
LIVE_S_MAX: Final = 30.0
# A failover takes some seconds, and what is over by then need not be shown.
READY_S_MAX: Final = 60.0

Answer = tuple[bool, str]
T = TypeVar("T")


class Probe:
    """Whether a process works. One thread reports, others may ask."""

    def __init__(self, turned_s: Callable[[], float] | None = None, *, is_ready: bool) -> None:
        """`turned_s`: when (monotonic) its loop last turned; None where that is not known.

        `is_ready`: whether it works from the beginning, before its first report.
        """
        self._turned_s = turned_s
        self._worked_s = time.monotonic() if is_ready else float("-inf")
        self._fault = "" if is_ready else "starting"
        self._tell_working: Callable[[], None] | None = None

    def when_working(self, tell: Callable[[], None]) -> None:
        """Call `tell` at once if it works, else as soon as it does."""
        if self._fault:
            self._tell_working = tell
        else:
            tell()

    def report(self, fault: str) -> None:
        """Say that it works, or with a fault that it does not."""
        if not (self._fault and fault):
            self._worked_s = time.monotonic()
        self._fault = fault
        if self._tell_working is not None and not fault:
            tell, self._tell_working = self._tell_working, None
            tell()

    def live(self) -> Answer:
        """False if a restart may help: the loop stands still though nothing keeps it.

        While a process waits for a server or for Kafka it waits as the next one would.
        """
        if self._turned_s is None or self._fault:
            return (True, "ok")
        still_s = time.monotonic() - self._turned_s()
        is_live = still_s <= LIVE_S_MAX
        return (is_live, "ok" if is_live else f"the loop has not turned for {still_s:.0f} s")

    def ready(self) -> Answer:
        """True while it works, and READY_S_MAX after that."""
        fault = self._fault
        if not fault:
            return (True, "ok")
        return (time.monotonic() - self._worked_s <= READY_S_MAX, fault)


class Watched(Generic[T]):
    """Passes statuses on, keeps the last one for scrapes, and reports it to the probe."""

    def __init__(self, tell: Callable[[T], None], probe: Probe, fault: Callable[[T], str]) -> None:
        """`fault`: what keeps the process from its work, "" if nothing does."""
        self.last: T | None = None
        self._tell = tell
        self._probe = probe
        self._fault = fault

    def __call__(self, status: T) -> None:
        """Take a status."""
        self.last = status
        self._probe.report(self._fault(status))
        self._tell(status)
