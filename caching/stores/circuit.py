"""A circuit breaker: after a failure a server is left alone for a moment."""

import time
from collections.abc import Callable

from caching.errors import StoreUnreachable

# How long a client waits for a store: a database read takes about as long.
TIMEOUT_MS = 50
# The invalidator waits for its store rather than leave a server alone.
FLOORS_TIMEOUT_MS = 5_000
# How long a server that failed is not asked, so that not every call waits for its timeout.
OPEN_S = 1.0


class Circuit:
    """The state of one server; `clock` gives seconds that never go backwards."""

    def __init__(
        self, server: str, open_s: float = OPEN_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin closed: the server is asked."""
        self.server = server
        self._open_s = open_s
        self._clock = clock
        self._open_until: float | None = None

    def check(self) -> None:
        """Raise StoreUnreachable while the circuit is open."""
        if self._open_until is not None and self._clock() < self._open_until:
            raise StoreUnreachable(
                self.server, f"cache server {self.server}: not asked, it failed a moment ago"
            )

    def failed(self, fault: Exception) -> StoreUnreachable:
        """Open the circuit; return the error to raise."""
        self._open_until = self._clock() + self._open_s
        return StoreUnreachable(self.server, f"cache server {self.server} does not answer: {fault}")
