"""Runs the change log: a streaming query from the merged stream into a Delta table."""

import importlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from deltalake import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from event_token.errors import Halt, Rebuild, Retry, ShardstreamError
from spark_consumers.change_log.delta_commit import ROWS_MARK, ensure_table, open_table
from spark_consumers.change_log.sink import SINK_FORMAT, STORAGE_PREFIX, arrow_schema
from spark_consumers.errors import ChangeLogConflict
from spark_consumers.sink_query.checkpoint_files import is_begun
from spark_consumers.source.data_source import SOURCE_FORMAT
from spark_consumers.source.stream_offset import StreamOffset

Trigger = Literal["availableNow", "processingTime"]

# How often progress is reported, and so how soon a stop is noticed.
LOOK_S = 0.2
# Time between batches: one file per shard and second keeps the table readable; a shorter interval
# would show changes sooner and leave more small files to compact.
INTERVAL_S = 1.0
# A query that fails on a transient fault (brokers unreachable) restarts from its checkpoint. After
# this many restarts without a batch in between, the fault is not transient.
RESTARTS_MAX = 10
RESTART_PAUSE_S = 5.0

_OURS = ("event_token.", "topics.", "spark_consumers.")
# Spark gives a Python worker 10 s to start, without a setting; a loaded machine may take longer.
_TRANSIENT = (
    "Timed out while waiting for the Python worker to connect back",
    "Python worker failed to connect back",
)
_RAISED = re.compile(r"^([A-Za-z_][\w.]*\.[A-Z]\w*): (.*)$", re.MULTILINE)


class UnknownSparkError(Halt):
    """Raised when Spark fails for a reason that is not ours."""


@dataclass(frozen=True, slots=True)
class ChangeLogProgress:
    """Progress of the change log: rows in the table, the frontier, and which shard holds it back.

    `frontier_us` is None before the first batch; `waiting` is "" when no shard is waited for.
    """

    rows: int
    frontier_us: int | None
    batch_id: int
    waiting: str


@contextmanager
def ended_with_spark(stop: threading.Event) -> Iterator[None]:
    """Take the errors of a JVM that has ended for a part of the stop, if one is set.

    A signal to a whole unit or process group (systemd) ends Spark's JVM, too.
    """
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, UnknownSparkError):
        if not stop.is_set():
            raise


def run_changelog(
    spark: SparkSession,
    keyspace: str,
    target: str,
    checkpoint: str,
    options: Mapping[str, str],
    *,
    trigger: Trigger = "processingTime",
    interval_s: float = INTERVAL_S,
    storage_options: Mapping[str, str] | None = None,
    on_progress: Callable[[ChangeLogProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> ChangeLogProgress:
    """Write every change of a keyspace to the Delta table `target` once; return the final progress.

    `options` are those of format `shardstream` (kafka.bootstrap.servers, start, keyRange,
    maxRowsPerBatch, ...); `start` applies only to a new checkpoint. With `availableNow` the run
    ends once everything that was on Kafka is in the table, else when `stop` is set. A batch cut
    off by `stop` or a crash runs again from the checkpoint and is in the table once.

    Raises the ShardstreamError that ended the query; a transient one only after RESTARTS_MAX
    restarts.
    """
    run = _Run(spark, target, on_progress, stop or threading.Event())
    source = {"start": "earliest", **options, "keyspace": keyspace}
    storage = dict(storage_options or {})
    frame = run.translated(lambda: spark.readStream.format(SOURCE_FORMAT).options(**source).load())
    check_table_is_there(target, checkpoint, storage)
    ensure_table(target, arrow_schema(frame.schema), storage)
    sink = {
        "path": target,
        "checkpointLocation": checkpoint,
        # A filter leaves out seqs on purpose.
        "contiguous": "true" if "table" not in source else "false",
        "keyRange": source.get("keyRange", "-"),
        **{STORAGE_PREFIX + name: value for name, value in storage.items()},
    }
    writer = (
        frame.writeStream.format(SINK_FORMAT).options(**sink).queryName(f"changelog {keyspace}")
    )
    if trigger == "availableNow":
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{int(interval_s * 1000)} milliseconds")
    run.storage = storage
    return run.until_done(writer.start)


class _Run:
    """A query that is watched, and restarted after transient faults."""

    def __init__(
        self,
        spark: SparkSession,
        target: str,
        on_progress: Callable[[ChangeLogProgress], None] | None,
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._target = target
        self._on_progress = on_progress
        self._stop = stop
        self.storage: dict[str, str] = {}
        self._last = ChangeLogProgress(0, None, -1, "")

    def translated(self, ask: Callable[[], Any]) -> Any:
        """Call Spark; raise the ShardstreamError behind a Spark exception."""
        try:
            return ask()
        except PySparkException as error:
            raise original_error(str(error)) from error

    def until_done(self, start: Callable[[], StreamingQuery]) -> ChangeLogProgress:
        """Run the query until it ends or `stop` is set."""
        restarts = 0
        while True:
            batch_before = self._last.batch_id
            try:
                with ended_with_spark(self._stop):  # the batch that it cuts off runs again
                    self._watch(self.translated(start))
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
                self._tell(query)
                self._stop.wait(LOOK_S)
            failure = query.exception()
            if failure is not None:
                raise original_error(str(failure)) from failure
            self._tell(query)
        finally:
            query.stop()

    def _tell(self, query: StreamingQuery) -> None:
        found = progress_of(query, rows_in(self._target, self.storage), self._last)
        if found != self._last:
            self._last = found
            if self._on_progress is not None:
                self._on_progress(found)


def check_table_is_there(target: str, checkpoint: str, storage_options: Mapping[str, str]) -> None:
    """Raise ChangeLogConflict when a checkpoint has outlived its table.

    The table is created before the checkpoint, and a new one would begin where the lost one ended.
    """
    if DeltaTable.is_deltatable(target, dict(storage_options)):
        return
    if is_begun(checkpoint, storage_options):
        raise ChangeLogConflict(
            f"there is no change log at {target}, but the checkpoint {checkpoint} is one of a "
            f"change log: it was removed or moved, and a new one would lack all changes up to "
            f"the checkpoint. Put it back, or remove the checkpoint to start a new change log"
        )


def rows_in(target: str, storage_options: Mapping[str, str]) -> int:
    """Return the number of rows in the change log without reading them."""
    return open_table(target, storage_options).transaction_version(ROWS_MARK) or 0


def progress_of(query: StreamingQuery, rows: int, last: ChangeLogProgress) -> ChangeLogProgress:
    """Return the progress that the query reports for its newest batch."""
    progress = query.lastProgress
    if progress is None or not progress["sources"]:
        return ChangeLogProgress(rows, last.frontier_us, last.batch_id, last.waiting)
    source = progress["sources"][0]
    frontier_us = last.frontier_us
    end = _document(source["endOffset"])
    if end:
        frontier_us = StreamOffset.from_document(end).position.frontier_us
    waiting = str(_document(source["latestOffset"]).get("waiting", ""))
    return ChangeLogProgress(rows, frontier_us, int(progress["batchId"]), waiting)


def _document(value: object) -> dict[str, object]:
    """Parse an offset: Spark reports it as JSON text, as parsed JSON, or not at all."""
    found = json.loads(value) if isinstance(value, str) and value else value
    return found if isinstance(found, dict) else {}


def original_error(text: str) -> ShardstreamError:
    """Return the ShardstreamError named in the text of a Spark exception, else a Halt or Retry."""
    for name, message in reversed(_RAISED.findall(text)):
        if name.startswith(_OURS):
            module, _, class_name = name.rpartition(".")
            found = getattr(importlib.import_module(module), class_name, None)
            if isinstance(found, type) and issubclass(found, ShardstreamError):
                return found(message)
    if any(message in text for message in _TRANSIENT):
        return Retry(f"Spark: {text}")
    return UnknownSparkError(f"Spark: {text}")
