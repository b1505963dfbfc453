"""Runs a sink's streaming query: watches it, restarts it after transient faults, stops it."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from event_token.errors import Rebuild, Retry
from spark_consumers.sink_query.frame import LEFT_OUT
from spark_consumers.sink_query.same_keys import SameKeyWatch
from spark_consumers.sink_query.spark_errors import ended_with_spark, original_error, translated
from spark_consumers.source.stream_offset import StreamOffset

Trigger = Literal["availableNow", "processingTime"]

# How often the query is looked at, and so how soon a stop is noticed.
LOOK_S = 0.2
# The target is asked after each batch, and this often while there is none.
ASK_S = 2.0
# A query that fails on a transient fault (brokers unreachable) restarts from its checkpoint. After
# this many restarts without a batch in between, the fault is not transient.
RESTARTS_MAX = 10
RESTART_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Applied:
    """What a sink's target holds: rows applied, and the frontier up to which it is complete.

    `frontier_us` is None where the target does not keep it: then Spark's progress tells. `rejected`
    counts changes that the target could not hold and that were put aside.
    """

    rows: int
    frontier_us: int | None = None
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """Progress of a sink: rows in the target, the frontier, and which shard holds it back.

    `frontier_us` is None before the first batch; `waiting` is "" when no shard is waited for;
    `rejected` counts changes that the target could not hold and that were put aside. `seqs` has the
    last record of each shard log that the newest batch of this run has read. `left_out` names the
    tables of online schema changes (`database.table`) whose rows this run has left out.
    """

    rows: int
    frontier_us: int | None
    batch_id: int
    waiting: str
    rejected: int = 0
    seqs: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def triggered(writer: DataStreamWriter, trigger: Trigger, interval_s: float) -> DataStreamWriter:
    """Set when the query's batches begin: every `interval_s` seconds, or only what is there now."""
    if trigger == "availableNow":
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{int(interval_s * 1000)} milliseconds")


def run_query(
    start: Callable[[], StreamingQuery],
    applied: Callable[[], Applied],
    on_progress: Callable[[SinkProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> SinkProgress:
    """Run the query that `start` starts until it ends or `stop` is set; return the final progress.

    `applied` asks the target, after each batch and every ASK_S seconds. Raises the ShardstreamError
    that ended the query; a transient one only after RESTARTS_MAX restarts without a batch between
    them.
    """
    return _Run(applied, on_progress, stop or threading.Event()).until_done(start)


def run_watched(
    start: Callable[[], StreamingQuery],
    applied: Callable[[], Applied],
    watch: SameKeyWatch,
    *,
    trigger: Trigger,
    on_progress: Callable[[SinkProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> SinkProgress:
    """Run a query as `run_query` does, with a `watch` that `applied` tells of keys.

    SameKeys also at the end of a run with `availableNow`.
    """
    applied()
    found = run_query(start, applied, on_progress, stop)
    if trigger == "availableNow" and not (stop and stop.is_set()):
        watch.end()
    return found


class _Run:
    """A query that is watched, and restarted after transient faults."""

    def __init__(
        self,
        applied: Callable[[], Applied],
        on_progress: Callable[[SinkProgress], None] | None,
        stop: threading.Event,
    ) -> None:
        self._applied = applied
        self._on_progress = on_progress
        self._stop = stop
        self._last = SinkProgress(0, None, -1, "")
        self._batch: object = None
        self._ask_again_s = 0.0

    def until_done(self, start: Callable[[], StreamingQuery]) -> SinkProgress:
        """Run the query until it ends or `stop` is set."""
        restarts = 0
        while True:
            batch_before = self._last.batch_id
            try:
                with ended_with_spark(self._stop):  # the batch that it cuts off runs again
                    self._watch(translated(start))
            except (Retry, Rebuild):
                restarts = 1 if self._last.batch_id > batch_before else restarts + 1
                if restarts > RESTARTS_MAX:
                    raise
                if self._stop.wait(RESTART_PAUSE_S):
                    return self._last
            else:
                return self._last

    def _watch(self, query: StreamingQuery) -> None:
        try:
            while query.isActive and not self._stop.is_set():
                self._look(query)
                self._stop.wait(LOOK_S)
            failure = query.exception()
            if failure is not None:
                raise original_error(str(failure)) from failure
            self._tell(query)
        finally:
            query.stop()

    def _look(self, query: StreamingQuery) -> None:
        """Report progress if the query has ended a batch, and from time to time."""
        progress, now_s = query.lastProgress, time.monotonic()
        batch = None if progress is None else (progress["batchId"], progress["timestamp"])
        if batch != self._batch or now_s >= self._ask_again_s:
            self._tell(query)
            self._batch, self._ask_again_s = batch, now_s + ASK_S

    def _tell(self, query: StreamingQuery) -> None:
        found = _progress_of(query, self._applied(), self._last)
        if found != self._last:
            self._last = found
            if self._on_progress is not None:
                self._on_progress(found)


def _progress_of(query: StreamingQuery, applied: Applied, last: SinkProgress) -> SinkProgress:
    """Return the progress that the target and the query report for its newest batch."""
    frontier_us = last.frontier_us if applied.frontier_us is None else applied.frontier_us
    progress = query.lastProgress
    if progress is None or not progress["sources"]:
        return replace(last, rows=applied.rows, frontier_us=frontier_us, rejected=applied.rejected)
    source = progress["sources"][0]
    end = _document(source["endOffset"])
    seqs = last.seqs
    if end:
        position = StreamOffset.from_document(end).position
        seqs = {shard: at.seq for shard, at in position.shards.items()}
        frontier_us = position.frontier_us if applied.frontier_us is None else frontier_us
    waiting = str(_document(source["latestOffset"]).get("waiting", ""))
    batch_id = int(progress["batchId"])
    # Several batches may have ended since the last look.
    batches = [progress] if batch_id <= last.batch_id + 1 else query.recentProgress
    names = (name for each in batches for name in _left(each))
    left_out = tuple(sorted({*last.left_out, *names}))
    rejected = applied.rejected
    return SinkProgress(applied.rows, frontier_us, batch_id, waiting, rejected, seqs, left_out)


def _left(progress: Mapping[str, Any]) -> list[str]:
    """Return the tables whose rows a batch left out."""
    found = progress["observedMetrics"].get(LEFT_OUT)
    return [] if found is None else list(found["tables"])


def _document(value: object) -> dict[str, object]:
    """Parse an offset: Spark reports it as JSON text, as parsed JSON, or not at all."""
    found = json.loads(value) if isinstance(value, str) and value else value
    return found if isinstance(found, dict) else {}
