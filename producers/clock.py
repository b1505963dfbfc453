"""The clock of this host: how far it may be off, and how far a server's is from it."""

import math
import threading
import time
from dataclasses import dataclass
from typing import Final, Protocol

from credentials.command import command_output
from credentials.errors import SecretUnavailable
from producers.errors import ClockUnknown

CHRONYC: Final = ("chronyc", "-c", "tracking")
# It asks a daemon on this host; a heartbeat row waits for it.
CHRONYC_S_MAX: Final = 1.0
# How long an answer, or a failure, is used again: longer than a run may take, so that the shards of
# a process do not wait for one run each.
CHRONY_KEPT_S: Final = 2.0
# How fast a clock may drift away meanwhile: crystals are good to about this without correction.
DRIFT_PPM: Final = 50

_TRACKING_FIELDS: Final = 14
# "Insert second" and "Delete second" announce a leap second, around which a clock is off by one.
_SYNCHRONIZED: Final = "Normal"
# What chronyd shows as its reference while it serves this host's own clock (`local`).
_OWN_CLOCK: Final = "7F7F0101"


class ClockSource(Protocol):
    """Knows how far the clock of this host may be off."""

    def bound_us(self) -> int:
        """The most by which the clock may be ahead of or behind true time now.

        ClockUnknown if nothing says so. Threads share a source.
        """


@dataclass(frozen=True, slots=True)
class ConstantBound:
    """What the operator states: `uncertainty_us`."""

    uncertainty_us: int = 0

    def bound_us(self) -> int:
        """See ClockSource."""
        return self.uncertainty_us


class ChronyBound:
    """What the chronyd of this host says, by `chronyc`."""

    def __init__(self) -> None:
        """Ask nothing yet."""
        self._lock = threading.Lock()
        self._asked_s = -math.inf
        self._found_us = 0
        self._problem = ""

    def bound_us(self) -> int:
        """See ClockSource."""
        with self._lock:
            if time.monotonic() - self._asked_s >= CHRONY_KEPT_S:
                self._ask()
            if self._problem:
                raise ClockUnknown(self._problem)
            return self._found_us + math.ceil((time.monotonic() - self._asked_s) * DRIFT_PPM)

    def _ask(self) -> None:
        self._asked_s, self._problem = time.monotonic(), ""
        try:
            line = command_output("clock.source", CHRONYC, CHRONYC_S_MAX)
            self._found_us = tracking_bound_us(line)
        except (SecretUnavailable, ClockUnknown) as fault:
            self._problem = str(fault)


def tracking_bound_us(line: str) -> int:
    """The bound that a line of `chronyc -c tracking` gives, as chrony's documentation adds it up.

    |system time offset| + root dispersion + root delay / 2. ClockUnknown if chrony is not
    synchronized. Pure.
    """
    fields = line.split(",")
    if len(fields) != _TRACKING_FIELDS:
        raise ClockUnknown(
            f"clock.source: chronyc printed {len(fields)} fields instead of {_TRACKING_FIELDS}: "
            f"{line!r}"
        )
    try:
        offset_s, delay_s, dispersion_s = (abs(float(fields[at])) for at in (4, 10, 11))
        bound_us = math.ceil((offset_s + dispersion_s + delay_s / 2) * 1e6)
    except (ValueError, OverflowError) as error:
        raise ClockUnknown(f"clock.source: chronyc printed {line!r}: {error}") from error
    reference, status = fields[0].upper(), fields[-1]
    if status != _SYNCHRONIZED or reference == _OWN_CLOCK:
        found = "its reference is this host's own clock" if status == _SYNCHRONIZED else status
        raise ClockUnknown(
            f"clock.source: chrony does not know how far this host's clock is off: {found}. "
            "`chronyc tracking` and `chronyc sources` show more"
        )
    return bound_us


def clock_ahead_us(asked_us: int, server_us: int, answered_us: int) -> int:
    """How far, at least, a server's clock is ahead of this host's; negative where it is behind.

    It read `server_us` at some time between question and answer; what may have passed on the way
    does not count as a difference. Pure.
    """
    return max(0, server_us - answered_us) + min(0, server_us - asked_us)


def believed_us(server_us: int, own_us: int, bound_us: int) -> int:
    """The time that a head may promise: the server's clock, or this host's if they are far apart.

    A head may be any time, for later records are clamped to it. But a server's clock that is far
    behind would hold back the merged stream, and one far ahead would put the shard's own records
    behind everybody else's. Pure.
    """
    return server_us if abs(server_us - own_us) <= bound_us else own_us


def now_us() -> int:
    """The clock of this host, in microseconds since the epoch."""
    return time.time_ns() // 1000
