"""Notices shards that hold a stream back: without that, a silent shard looks like an idle one."""

import threading
from collections.abc import Callable
from typing import Final, Self

from topics.reading.stall import Stall
from topics.stream.progress_feed import clock_ms
from topics.stream.subscriber import StreamSubscriber

# A producer advances its head every 250 ms, so this is neither a slow poll nor a short pause.
SILENT_MS: Final = 2_000
POLL_S: Final = 0.2


class SilentShards:
    """Watches a subscriber from a thread of its own; says at each stop what it waits for."""

    def __init__(self, events: StreamSubscriber, say: Callable[[str], None]) -> None:
        self._events = events
        self._say = say
        self._stall = Stall(clock_ms())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def waiting_for(self, at_least_ms: int) -> str | None:
        """Return what the stream has waited for for so long; None while it advances."""
        return self._stall.text(at_least_ms, clock_ms())

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            waiting, position = self._events.waiting, self._events.position
            frontier_us = None if position is None else position.frontier_us
            self._stall.observe(waiting, frontier_us, clock_ms())
            news = self._stall.news(SILENT_MS, clock_ms())
            if news is not None:
                self._say(news)
