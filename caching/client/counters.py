"""What a client counts."""

from collections.abc import Mapping
from threading import Lock
from typing import Literal, get_args

Counted = Literal[
    "hits",
    "negative_hits",
    "misses",
    "behind_hits",
    "bypassed",
    "stale_hits",
    "fills",
    "loads",
    "load_seconds",
    "shared_loads",
    "lease_waits",
    "own_write_reads",
    "own_write_waits",
    "own_write_primary",
    "store_errors",
    "unreadable",
    "fills_refused_older",
    "fills_refused_unknown",
    "fills_refused_uncovered",
    "fills_refused_changed",
    "fills_refused_no_floor",
    "fills_refused_replaced",
    "fills_refused_leased",
]


class Counters:
    """Sums since the client was made; any thread may add and read."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = dict.fromkeys(get_args(Counted), 0)
        self._lock = Lock()

    def add(self, name: Counted, count: float = 1) -> None:
        """Add to one sum."""
        if count:
            with self._lock:
                self._sums[name] += count

    def read(self) -> Mapping[str, float]:
        """Return all sums by name, so that a metric is there before anything is counted."""
        with self._lock:
            return dict(self._sums)
