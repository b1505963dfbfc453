"""What a producer's process counts, for its metrics: plain numbers, summed once per commit.

The thread that runs the producer writes them, and any other may read: a number may be a commit
ahead of its neighbour, and none is ever half written.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from databases.errors import LoginRefused, ServerLost, ServerSilent
from event_token.errors import Rebuild, Retry, ShardstreamError
from producers.copy.errors import RowNotCopied
from producers.decoder.errors import QueueStayedFull, RolledBack, ServerError, StreamEnded
from producers.errors import (
    BetterServer,
    PublisherSpent,
    ReplicaBehindLog,
    StopsBehindOthers,
    StreamFailed,
    TransactionTooLong,
)
from topics.errors import NoBrokerAnswers
from topics.kafka.errors import TopicMissing

# What ends a session, and is counted by its class. Each count begins at 0: Prometheus'
# `increase()` takes the first value of a series for its beginning, and would miss that fault.
SESSION_FAULTS: Final[tuple[type[ShardstreamError], ...]] = (
    BetterServer,
    LoginRefused,
    NoBrokerAnswers,
    PublisherSpent,
    QueueStayedFull,
    Rebuild,
    ReplicaBehindLog,
    Retry,
    RolledBack,
    RowNotCopied,
    ServerError,
    ServerLost,
    ServerSilent,
    StopsBehindOthers,
    StreamEnded,
    StreamFailed,
    TopicMissing,
    TransactionTooLong,
)

# Upper bounds in seconds: a commit at the live edge takes 5 ms, one that waits for a broker 30 s.
COMMIT_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# From commit in the database to commit on Kafka: 50 ms at the live edge, hours behind a backlog.
AGE_BOUNDS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class Histogram:
    """Counts of values up to each bound, not cumulated; the last slot has those above all."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Nothing has been observed."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def _commit_seconds() -> Histogram:
    return Histogram(COMMIT_BOUNDS_S)


def _age_seconds() -> Histogram:
    return Histogram(AGE_BOUNDS_S)


def _no_faults() -> Counter[str]:
    return Counter(dict.fromkeys((fault.__name__ for fault in SESSION_FAULTS), 0))


@dataclass(slots=True)
class ProducerCounters:
    """Sums since the process began, over all its sessions.

    `records`: of the log. `transactions`: of the database, with those whose rows filters exclude.
    `rows_filtered`: rows that WHERE conditions exclude. `prepared_us`: when the XA transactions
    were prepared that now wait for their decision.
    `binlog_bytes`: decoded. `queue_bytes`: of records that are not committed yet. `produced_bytes`:
    of those that are. `event_age_s`: age of the newest
    transaction of a commit, by the server's clock, when Kafka had it. `reconnects`: by class of the
    fault that ended a session. `restarts_in_place`: those since the log last got on.
    `server_changes`: sessions on another server than the one before.
    `clock_ahead_us`: the server's clock against this host's. `binlog_kept_s`: for how long the
    server keeps binlogs, None for ever or while unknown. `turned_s`: when (monotonic) the
    producer's loop last turned, or waited for Kafka.
    """

    records: int = 0
    transactions: int = 0
    commits: int = 0
    rows_filtered: int = 0
    prepared_us: Sequence[int] = ()
    binlog_bytes: int = 0
    queue_bytes: int = 0
    produced_bytes: int = 0
    server: str = ""
    restarts_in_place: int = 0
    server_changes: int = 0
    clock_ahead_us: int = 0
    binlog_kept_s: int | None = None
    turned_s: float = field(default_factory=time.monotonic)
    reconnects: Counter[str] = field(default_factory=_no_faults)
    commit_s: Histogram = field(default_factory=_commit_seconds)
    event_age_s: Histogram = field(default_factory=_age_seconds)

    def turn(self) -> None:
        """Note that the producer's loop turns."""
        self.turned_s = time.monotonic()

    def committed(self, *, records: int, transactions: int, size: int, took_s: float) -> None:
        """Add a commit; `size` in bytes of records."""
        self.records += records
        self.transactions += transactions
        self.produced_bytes += size
        self.queue_bytes = 0
        self.commits += 1
        self.commit_s.observe(took_s)

    def follow(self, server: str, binlog_kept_s: int | None) -> None:
        """Note that a session streams from this server."""
        if self.server not in {"", server}:
            self.server_changes += 1
        self.server = server
        self.queue_bytes = 0  # what the session before had not committed is aborted
        self.binlog_kept_s = binlog_kept_s
