"""What a session reports, and the status that the process makes of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from producers.settings import ProducerState, ProducerStatus
from topics.progress.record import LastDdl, Progress, Skipped

# Rates are averaged over at least this time.
RATE_S: Final = 1.0
# In these states rows come to the log as they are committed.
STREAMS: Final = frozenset({ProducerState.STREAMING, ProducerState.IDLE})

OnStatus = Callable[[ProducerStatus], None]


@dataclass(slots=True)
class Committed:
    """What one session knows to be committed on Kafka; `progress`: the last record.

    `is_live`: the session has committed that the log had all that the server had executed.
    """

    position: str
    head_us: int
    end_offset: int
    is_live: bool = False
    lag_ms: int = 0
    rows_total: int = 0
    commits: int = 0
    skipped: Skipped | None = None
    ddl: LastDdl | None = None
    progress: Progress | None = None


Report = Callable[[ProducerState, Committed, str], None]


class StatusReporter:
    """Turns the reports of successive sessions into ProducerStatus, with totals of the process."""

    def __init__(self, shard: str, on_status: OnStatus) -> None:
        self._on_status = on_status
        self._seen_s = time.monotonic()
        self._seen_rows = 0
        self._session: Committed | None = None
        self._rows_before = 0
        self._last = ProducerStatus(shard, "", 0, 0, 0, 0.0, ProducerState.STARTING)

    @property
    def committed(self) -> Committed:
        """What the last session had committed."""
        return self._session or Committed("", 0, 0)

    def report(self, state: ProducerState, committed: Committed, note: str) -> None:
        """Pass on a session's state."""
        if committed is not self._session:
            self._rows_before = self._last.rows_total
            self._session = committed
        rows_total = self._rows_before + committed.rows_total
        now_s = time.monotonic()
        lag_ms = committed.lag_ms
        if state not in STREAMS and committed.head_us:
            # The last commit's lag is over: what is written meanwhile nobody has seen.
            lag_ms = max(lag_ms, time.time_ns() // 1_000_000 - committed.head_us // 1_000)
        rate = self._last.rows_per_s
        if now_s - self._seen_s >= RATE_S:
            rate = (rows_total - self._seen_rows) / (now_s - self._seen_s)
            self._seen_s, self._seen_rows = now_s, rows_total
        self._last = replace(
            self._last,
            position=committed.position,
            head_us=committed.head_us,
            lag_ms=lag_ms,
            rows_total=rows_total,
            rows_per_s=rate,
            state=state,
            note=note,
            skipped=committed.skipped,
        )
        self._on_status(self._last)
