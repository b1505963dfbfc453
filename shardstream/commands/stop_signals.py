"""A command that runs until it is stopped: SIGINT and SIGTERM ask it to end in order."""

import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# The commands that call `stop_on_signals`.
_ENDING_IN_ORDER: Final = (
    ("produce",),
    ("changelog",),
    ("database",),
    ("table-topics",),
    ("state",),
    ("invalidate",),
    ("serve",),
    ("reshard", "run"),
    ("local", "produce"),
)
# Status 0 would mean that no row differs.
_VERIFY: Final = ("database", "verify")


def take_signals(arguments: Sequence[str]) -> None:
    """Prepare for signals that come before a command has read its settings.

    A command that ends in order has nothing to put in order yet, and ends at once with status 0.
    In any other, SIGINT raises KeyboardInterrupt: a shell starts background jobs with SIGINT
    ignored, and servers would outlive a stop.
    """
    words = tuple(each for each in arguments if not each.startswith("--"))
    if words[:2] != _VERIFY and any(words[: len(name)] == name for name in _ENDING_IN_ORDER):
        for number in _SIGNALS:
            signal.signal(number, _end)
    else:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_signal: int, _frame: FrameType | None) -> None:
    # An exception could be raised inside a callback, where Python reports it and goes on.
    os._exit(0)


def stop_on_signals(event: threading.Event | None = None) -> threading.Event:
    """Return an event (a new one, or the one given) that SIGINT and SIGTERM set from now on."""
    stop = event or threading.Event()

    def ask_to_stop(_signal: int, _frame: FrameType | None) -> None:
        # Not here: this thread may be inside `stop.wait`, holding the lock that `set` takes.
        threading.Thread(target=stop.set).start()

    for number in _SIGNALS:
        signal.signal(number, ask_to_stop)
    return stop
