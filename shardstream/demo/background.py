"""Work in threads that goes on until it is stopped, and whose errors are raised here."""

import threading
from collections.abc import Callable, Iterable


class BackgroundWork:
    """Threads that look at `_stop`; the first error of one is kept for `check`."""

    def __init__(self) -> None:
        """Begin without work."""
        self._stop = threading.Event()
        self._errors: list[Exception] = []
        self._threads: list[threading.Thread] = []

    def _prepare(self, work: Iterable[Callable[[], None]]) -> None:
        """Make a thread of each, which `start` starts."""
        self._threads = [
            threading.Thread(target=self._guarded, args=(part,), daemon=True) for part in work
        ]

    def start(self) -> None:
        """Start all."""
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise what went wrong in one of them."""
        if self._errors:
            raise self._errors[0]

    def ask_to_stop(self) -> None:
        """Ask all to stop after what they are at, without waiting."""
        self._stop.set()

    def stop(self) -> None:
        """Stop all and wait; raise what went wrong."""
        self.ask_to_stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self.check()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - kept for check(), which raises it
            self._errors.append(error)
