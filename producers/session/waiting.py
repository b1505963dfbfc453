"""Waits out faults that may pass by themselves: at a producer's start as in mid-run."""

import time
from collections.abc import Callable
from threading import Event
from typing import Final, TypeVar

from event_token.errors import Halt, Rebuild, Retry
from topics.errors import NoBrokerAnswers

BACKOFF_S_FIRST: Final = 0.2
BACKOFF_S_MAX: Final = 5.0
# A restart or failover takes seconds to minutes; beyond that an operator must look.
AWAY_S_MAX: Final = 600.0

T = TypeVar("T")


def backoff_s(faults: int) -> float:
    """How long to wait after this number of consecutive faults."""
    return min(BACKOFF_S_MAX, BACKOFF_S_FIRST * 2.0 ** min(faults - 1, 10))


def wait_until_ready(
    name: str, call: Callable[[], T], stop: Event, on_fault: Callable[[str], None]
) -> T | None:
    """Repeat `call` while its fault may pass; return its result, or None if stopped before.

    `on_fault` gets the text of each fault. Raises Halt, naming `name`, when faults do not pass
    within AWAY_S_MAX, and all other errors of `call` at once.
    """
    began_s = time.monotonic()
    faults = 0
    while not stop.is_set():
        try:
            return call()
        except (Retry, Rebuild, NoBrokerAnswers) as fault:
            away_s = time.monotonic() - began_s
            if away_s > AWAY_S_MAX:
                message = f"{name}: not ready after {away_s:.0f} s; the last fault: {fault}"
                raise Halt(message) from fault
            faults += 1
            on_fault(str(fault))
            stop.wait(backoff_s(faults))
    return None
