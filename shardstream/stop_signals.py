"""SIGINT and SIGTERM: commands that run until they are stopped shut down cleanly."""

import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# The commands that call `stop_on_signals`.
_STOPPABLE: Final = (
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
# Its status 0 means that no row differs, so a signal must not end it with that.
_VERIFY: Final = ("database", "verify")


def take_signals(arguments: Sequence[str]) -> None:
    """Prepare for signals that come before a command has read its settings.

    Such a command has nothing to clean up yet, and ends at once with status 0.
    In any other command SIGINT raises KeyboardInterrupt: a shell starts background jobs with
    SIGINT ignored, and servers would outlive a stop.
    """
    words = tuple(each for each in arguments if not each.startswith("--"))
    if words[:2] != _VERIFY and any(words[: len(name)] == name for name in _STOPPABLE):
        for number in _SIGNALS:
            signal.signal(number, _end)
    else:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_signal: int, _frame: FrameType | None) -> None:
    # An exception could be raised inside a callback, where Python reports it and continues.
    os._exit(0)


def stop_on_signals(event: threading.Event | None = None) -> threading.Event:
    """Return an event (a new one, or the one given) that SIGINT and SIGTERM set from now on."""
    stop = event or threading.Event()

    def ask_to_stop(_signal: int, _frame: FrameType | None) -> None:
        # In another thread: this one may be inside `stop.wait`, holding the lock that `set` takes.
        threading.Thread(target=stop.set).start()

    for number in _SIGNALS:
        signal.signal(number, ask_to_stop)
    return stop
