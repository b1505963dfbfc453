"""Tells systemd what the probes of a command say (sd_notify(3)): ready, alive, stopping."""

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from shardstream.commands.http.probe import Probe

# Two would do for systemd.service(5), which asks for a sign of life in each WATCHDOG_USEC.
_SIGNS_OF_LIFE: Final = 3


@contextmanager
def told(probe: Probe, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Tell the service manager, if one asks for it, what happens within the block."""
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
