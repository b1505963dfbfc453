"""Notices shards that hold a stream back: without that, a silent shard looks like an idle one."""

import threading
import time
from collections.abc import Callable
from typing import Final, Self

from topics.stream.subscriber import StreamSubscriber

# A producer advances its head every 250 ms, so this is neither a slow poll nor a short pause.
SILENT_S: Final = 2.0
POLL_S: Final = 0.2


class SilentShards:
    """Watches a subscriber from a thread of its own; says once per stop what it waits for."""

    def __init__(self, events: StreamSubscriber, say: Callable[[str], None]) -> None:
        self._events = events
        self._say = say
        self._frontier_us: int | None = None
        self._since_s = time.monotonic()
        self._shards: frozenset[str] = frozenset()
        self._reason = ""
        self._told = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def waiting_for(self, at_least_s: float) -> str | None:
        """Return what the stream has waited for for so long; None while it advances."""
        if not self._shards or time.monotonic() - self._since_s < at_least_s:
            return None
        return f"waiting for {', '.join(sorted(self._shards))}: {self._reason}"

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            self._look()
            waiting = self.waiting_for(SILENT_S)
            if waiting is not None and not self._told:
                self._told = True
                self._say(waiting)

    def _look(self) -> None:
        waiting, position = self._events.waiting, self._events.position
        frontier_us = None if position is None else position.frontier_us
        if waiting is None or frontier_us != self._frontier_us:
            self._frontier_us = frontier_us
            self._since_s = time.monotonic()
            self._shards, self._told = frozenset(), False
        if waiting is not None:
            # A shard that advances may still stand in one of the looks, never in all of them.
            held = frozenset(waiting.shards)
            self._shards = held & self._shards or held
            self._reason = waiting.reason
