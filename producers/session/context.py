"""What every part of a session may use: settings, counters, and the status that it reports."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Final

from databases.errors import LoginRefused, ServerLost, ServerSilent
from event_token.errors import Rebuild, Retry, ShardstreamError
from producers.copy.definition import RowNotCopied
from producers.decoder.errors import QueueStayedFull, RolledBack, ServerError, StreamEnded
from producers.errors import (
    AnswerTooLate,
    BetterServer,
    PublisherSpent,
    ReplicaBehindLog,
    StopsBehindOthers,
    StreamFailed,
    TransactionTooLong,
)
from producers.servers.definitions_ahead import Looked
from producers.session.ownership import Ownership
from producers.settings import ProducerState, ProducerStatus, ShardProducerSettings
from producers.skip.skip_order import SkipOrder
from topics.errors import NoBrokerAnswers
from topics.kafka.errors import Fenced, LoginEnded, TopicMissing
from topics.names import ShardTopics
from topics.progress.record import LastDdl, LastTransaction, PassedStatements, Progress, Skipped
from topics.records.table_shape import SchemaIds

# What ends a session, and is counted by its class. Each count begins at 0: Prometheus'
# `increase()` takes the first value of a series for its beginning, and would miss that fault.
SESSION_FAULTS: Final[tuple[type[ShardstreamError], ...]] = (
    AnswerTooLate,
    BetterServer,
    Fenced,
    LoginEnded,
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
    `rows_filtered`: rows that WHERE conditions exclude. `statements_passed`: changes logged as
    statements that concern no table of the log. `prepared_us`: when the XA transactions
    were prepared that now wait for their decision.
    `binlog_bytes`: decoded. `queue_bytes`: of records that are not committed yet. `produced_bytes`:
    of those that are. `event_age_s`: age of the newest
    transaction of a commit, by the server's clock, when Kafka had it. `reconnects`: by class of the
    fault that ended a session. `restarts_in_place`: those since the log last got on.
    `server_changes`: sessions on another server than the one before.
    `clock_ahead_us`: the server's clock against this host's. `binlog_kept_s`: for how long the
    server keeps binlogs, None for ever or while unknown. `oldest_binlog_us`: when it began the
    oldest, None while unknown. `turned_s`: when (monotonic) the
    producer's loop last turned, or waited for Kafka.
    """

    records: int = 0
    transactions: int = 0
    commits: int = 0
    rows_filtered: int = 0
    statements_passed: int = 0
    prepared_us: Sequence[int] = ()
    binlog_bytes: int = 0
    queue_bytes: int = 0
    produced_bytes: int = 0
    server: str = ""
    restarts_in_place: int = 0
    server_changes: int = 0
    clock_ahead_us: int = 0
    binlog_kept_s: int | None = None
    oldest_binlog_us: int | None = None
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

    def follow(self, server: str) -> None:
        """Note that a session streams from this server."""
        if self.server not in {"", server}:
            self.server_changes += 1
        self.server = server
        self.queue_bytes = 0  # what the session before had not committed is aborted
        self.binlog_kept_s = self.oldest_binlog_us = None


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
    passed: PassedStatements | None = None
    progress: Progress | None = None

    @property
    def lasts(self) -> tuple[LastTransaction, ...]:
        """The last transactions in the log; see Progress."""
        return () if self.progress is None else self.progress.lasts


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


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Made once per process; `server_id` is how replication connections are known to servers.

    `ownership`: whether the process has the shard.

    `message_bytes_max`: the largest message of the log.

    `stops_at`: GTIDs of transactions that stopped a session before it had committed those before
    them; until they are passed each transaction is committed by itself.
    `rolled_back`: GTIDs of MariaDB whose rows a session produced before it met their ROLLBACK.
    `failed_copies`: copies that have ended a session, by id, each with the reason; the next session
    marks them as failed.
    `skip_order`: the stops that are passed; the process ends with it.
    `has_streamed`: a session has opened its stream; `has_committed`: one has committed.
    `looked`: what sessions have found ahead of the stream.
    """

    settings: ShardProducerSettings
    topics: ShardTopics
    schema_ids: SchemaIds
    ownership: Ownership
    transaction_timeout_ms: int
    message_bytes_max: int
    server_id: int
    stop: Event
    report: Report
    has_streamed: Event = field(default_factory=Event)
    failed_copies: dict[str, str] = field(default_factory=dict)
    rolled_back: set[str] = field(default_factory=set)
    stops_at: set[str] = field(default_factory=set)
    looked: Looked = field(default_factory=Looked)
    skip_order: SkipOrder | None = None
    has_committed: Event = field(default_factory=Event)
    counters: ProducerCounters = field(default_factory=ProducerCounters)
