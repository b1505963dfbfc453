"""Whether a process works, for `/livez`, `/readyz` and systemd."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, Generic, TypeVar

# A loop turns ten times a second. Connections to servers and brokers time out after 10 s.
LIVE_S_MAX: Final = 30.0
# A failover takes some seconds; an outage shorter than that need not be shown.
READY_S_MAX: Final = 60.0

ProbeResult = tuple[bool, str]
T = TypeVar("T")


class Probe:
    """Whether a process works. One thread reports, any may ask."""

    def __init__(self, turned_s: Callable[[], float] | None = None, *, is_ready: bool) -> None:
        """`turned_s`: when (monotonic) its loop last turned; None if that is unknown.

        `is_ready`: whether it counts as working before its first report.
        """
        self._turned_s = turned_s
        self._worked_s = time.monotonic() if is_ready else float("-inf")
        self._fault = "" if is_ready else "starting"
        self._on_working: Callable[[], None] | None = None

    def when_working(self, callback: Callable[[], None]) -> None:
        """Call `callback` as soon as the process works."""
        if self._fault:
            self._on_working = callback
        else:
            callback()

    def report(self, fault: str) -> None:
        """Report a fault that keeps the process from its work, or "" for none."""
        if not (self._fault and fault):
            self._worked_s = time.monotonic()
        self._fault = fault
        if self._on_working is not None and not fault:
            callback, self._on_working = self._on_working, None
            callback()

    def live(self) -> ProbeResult:
        """Return False if a restart may help: the loop stands still, and no fault is reported.

        A process that waits for a server or for Kafka is alive: a new one would wait, too.
        """
        if self._turned_s is None or self._fault:
            return (True, "ok")
        still_s = time.monotonic() - self._turned_s()
        is_live = still_s <= LIVE_S_MAX
        return (is_live, "ok" if is_live else f"the loop has not turned for {still_s:.0f} s")

    def ready(self) -> ProbeResult:
        """Return True while it works, and for READY_S_MAX after that."""
        fault = self._fault
        if not fault:
            return (True, "ok")
        return (time.monotonic() - self._worked_s <= READY_S_MAX, fault)


class StatusRelay(Generic[T]):
    """Passes statuses on, keeps the last one for scrapes, and reports it to the probe."""

    def __init__(
        self, receive: Callable[[T], None], probe: Probe, fault: Callable[[T], str]
    ) -> None:
        """`fault`: returns what keeps the process from its work, "" if nothing does."""
        self.last: T | None = None
        self._receive = receive
        self._probe = probe
        self._fault = fault

    def __call__(self, status: T) -> None:
        """Pass a status on."""
        self.last = status
        self._probe.report(self._fault(status))
        self._receive(status)


# Two would do for systemd.service(5), which asks for a sign of life in each WATCHDOG_USEC.
_SIGNS_OF_LIFE: Final = 3


@contextmanager
def systemd_notified(probe: Probe, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Within the block, report to systemd, if it started this process (sd_notify(3))."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        yield
        return
    manager = _ServiceManager(address, int(environment.get("WATCHDOG_USEC", "0")) / 1e6)
    probe.when_working(lambda: manager.is_working(probe))
    try:
        yield
    finally:
        manager.is_stopping()


class _ServiceManager:
    """A datagram that cannot be sent is dropped.

    systemd restarts what it does not hear from; a command that works must not stop for it.
    """

    def __init__(self, address: str, watchdog_s: float) -> None:
        # An address that begins with @ is abstract: its first byte is zero.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._interval_s = watchdog_s / _SIGNS_OF_LIFE
        self._is_ended = threading.Event()

    def is_working(self, probe: Probe) -> None:
        self._tell("READY=1")
        if self._interval_s > 0:
            threading.Thread(target=self._watch, args=(probe,), daemon=True).start()

    def is_stopping(self) -> None:
        self._is_ended.set()
        self._tell("STOPPING=1")

    def _watch(self, probe: Probe) -> None:
        while not self._is_ended.wait(self._interval_s):
            if probe.live()[0]:
                self._tell("WATCHDOG=1")

    def _tell(self, text: str) -> None:
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as client,
        ):
            client.sendto(text.encode(), self._address)
