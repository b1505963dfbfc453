"""A command that runs until it is stopped: SIGINT and SIGTERM ask it to end in order."""

import signal
import threading
from types import FrameType


def stop_on_signals(event: threading.Event | None = None) -> threading.Event:
    """Return an event (a new one, or the one given) that SIGINT and SIGTERM set from now on."""
    stop = event or threading.Event()

    def ask_to_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGINT, ask_to_stop)
    signal.signal(signal.SIGTERM, ask_to_stop)
    return stop
