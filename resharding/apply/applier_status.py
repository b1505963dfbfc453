"""How far an applier is: for its terminal and metrics, and for the status of everything."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from event_token import StreamPosition
from topics.readers.reporter import ReaderReporter

# A status line is for people.
TELL_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ApplierStatus:
    """How far a target's applier is.

    `seqs`: per source. `behind_ms`: age of the merged frontier by this host's clock. `skips`: the
    accepted ones that it has passed since it started.
    """

    target: str
    seqs: dict[str, int]
    rows_total: int
    rows_per_s: float
    behind_ms: int
    note: str = ""
    skips: int = 0


class Told:
    """Counts what was applied, and reports it once per interval; to Kafka by `reporter`."""

    def __init__(
        self, target: str, tell: Callable[[ApplierStatus], None], reporter: ReaderReporter
    ) -> None:
        self.reporter = reporter
        self.rows_total = 0
        self.skips = 0
        self._target = target
        self._tell = tell
        self._last_s = time.monotonic()
        self._last_rows = 0
        self._seqs: dict[str, int] = {}
        self._frontier_us = 0

    def applied(self, rows: int, position: StreamPosition) -> None:
        """Take in a transaction that the target has committed."""
        self.rows_total += rows
        self._seqs = {shard: at.seq for shard, at in position.shards.items()}
        self._frontier_us = position.frontier_us
        self.reporter.note(lambda: position)
        if time.monotonic() - self._last_s >= TELL_INTERVAL_S:
            self.note("")

    def note(self, text: str) -> None:
        """Report now, with a remark or none."""
        now_s = time.monotonic()
        rate = (self.rows_total - self._last_rows) / max(now_s - self._last_s, 0.001)
        self._last_s, self._last_rows = now_s, self.rows_total
        behind_ms = max(0, time.time_ns() // 1_000 - self._frontier_us) // 1_000
        self._tell(
            ApplierStatus(
                self._target, self._seqs, self.rows_total, rate, behind_ms, text, self.skips
            )
        )
