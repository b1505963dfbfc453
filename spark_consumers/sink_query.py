"""The streaming query of a sink: its rows, its format, its checkpoint, and how it is run.

What drives a query is pickled whole, as one option: the writer of its tasks and commits. Spark
hides options of such names in its pages and plans, and this one may hold passwords.

Spark writes a query's id to the checkpoint before the first batch, and the end of a batch before
that batch runs. Files on object stores are read as the table is, with the same storage options;
others (local folders, HDFS) through pyarrow.

A task owns keys: it sees every change of them, of all shards, tables and versions, and every record
that is not a row (DDL, COPY_COMPLETED, SKIP, marks), because that may concern any key.
"""

import base64
import json
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, TypeVar

from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from databases.errors import LoginRefused
from event_token.errors import Halt, Rebuild, Retry, UsageError
from sinks.lake.delta.storage import filesystem_of
from sinks.resume import Applied, CheckpointState, PlannedBatch
from sinks.rule.policy import SHADOW_TABLE
from spark_consumers.source.data_source import SOURCE_FORMAT
from spark_consumers.source.stream_offset import StreamOffset
from spark_consumers.spark_errors import ended_with_spark, original_error, translated
from topics.arrow.output_columns import PRESENT_OP, ROUTE, SINK_COLUMNS
from topics.kafka.errors import AuthenticationFailed
from topics.records.vevent import EventType, Op

SINK_FORMAT = "shardstream_sink"
SPEC = "secret.spec"

Spec = TypeVar("Spec")

STORAGE_PREFIX = "storage."
# Spark hides values by the names of options, and does not know `account_key`, for one.
SECRET_STORAGE_PREFIX = f"secret.{STORAGE_PREFIX}"
_BATCH_ID = "streaming.sql.batchId"


class PreparedSink(DataSource):
    """The data source that `register` registers with Spark."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return SINK_FORMAT

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,  # noqa: ARG002 - Spark passes it by position
        overwrite: bool,
    ) -> DataSourceStreamArrowWriter:
        """Return the writer of a query; UsageError unless `query_of` made the query."""
        if overwrite or SPEC not in self.options:
            raise UsageError(f"{SINK_FORMAT}: start the query by run_database or its like")
        kind = DataSourceStreamArrowWriter
        return spec_of(self.options, kind, SINK_FORMAT)  # type: ignore[type-abstract]


def query_of(
    frame: DataFrame, writer: DataSourceStreamArrowWriter, checkpoint: str, name: str
) -> DataStreamWriter:
    """Return the query that writes a frame; it is not started, and the same thread starts it."""
    # Spark looks up Python formats in the thread's active session. A new thread has none until a
    # frame is made in it.
    frame.sparkSession.createDataFrame([], StructType())
    query = frame.writeStream.format(SINK_FORMAT).option(SPEC, spec_text(writer))
    return query.option("checkpointLocation", checkpoint).queryName(name)


def spec_text(spec: object) -> str:
    """Return an object as the text of option SPEC."""
    return base64.b64encode(pickle.dumps(spec)).decode()


def spec_of(options: Mapping[str, str], kind: type[Spec], where: str) -> Spec:
    """Return the object in the option; UsageError, naming the format `where`, unless a `kind`."""
    found = pickle.loads(base64.b64decode(options[SPEC]))  # noqa: S301 - made by this process
    if not isinstance(found, kind):
        raise UsageError(f"{where}: option {SPEC} is not of this release")
    return found


def storage_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the storage options among those of a sink: `storage.*` and `secret.storage.*`."""
    return {
        name.removeprefix(prefix): text
        for prefix in (STORAGE_PREFIX, SECRET_STORAGE_PREFIX)
        for name, text in options.items()
        if name.startswith(prefix)
    }


def batch_id() -> int:
    """Return the id of the micro-batch of the task that calls this. Halt outside of one."""
    text = _context().getLocalProperty(_BATCH_ID)
    if text is None:
        raise Halt(f"Spark's property {_BATCH_ID} is not set: sinks write in streaming queries")
    return int(text)


def task() -> int:
    """Return the number of the task that calls this: the partition that `routed` chose."""
    return int(_context().partitionId())


def _context() -> TaskContext:
    found = TaskContext.get()
    if found is None:
        raise Halt("not inside a Spark task")
    return found


# `v1`, one line of query metadata, then one line per source (`-`: no offset).
_OFFSET_LOG_VERSION = "v1"
_SOURCES_FROM_LINE = 2
# Spark writes to S3 under `s3a`; pyarrow knows neither that scheme nor the storage options.
_OBJECT_STORES = ("s3://", "s3a://", "gs://", "az://", "abfs://", "abfss://")


def is_begun(checkpoint: str, storage_options: Mapping[str, str]) -> bool:
    """Tell whether a query has created the checkpoint."""
    filesystem, path = _place(checkpoint, "metadata", storage_options)
    return bool(filesystem.get_file_info(path).type != fs.FileType.NotFound)


def query_id(checkpoint: str, storage_options: Mapping[str, str]) -> str:
    """Return the query id that Spark chose when it created the checkpoint."""
    text = _read(checkpoint, "metadata", storage_options)
    try:
        found = json.loads(text)["id"]
    except (ValueError, KeyError, TypeError) as error:
        raise Halt(f"{checkpoint}/metadata holds no query id: {text[:200]!r}") from error
    return str(found)


def checkpoint_state(checkpoint: str, storage_options: Mapping[str, str]) -> CheckpointState | None:
    """Return the query of a checkpoint and its last committed batch; None without a checkpoint."""
    if not is_begun(checkpoint, storage_options):
        return None
    query = query_id(checkpoint, storage_options)
    filesystem, folder = _place(checkpoint, "commits", storage_options)
    files = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    committed = [int(file.base_name) for file in files if file.base_name.isdecimal()]
    if not committed:
        return CheckpointState(query)
    last = max(committed)
    return CheckpointState(query, last, _end_of(checkpoint, last, storage_options).position)


def batch_end(
    checkpoint: str, batch_id: int, storage_options: Mapping[str, str]
) -> StreamOffset | None:
    """Return where a planned batch ends, or None if the query has other sources too."""
    lines = _read(checkpoint, f"offsets/{batch_id}", storage_options).splitlines()
    if not lines or lines[0] != _OFFSET_LOG_VERSION:
        raise Halt(f"{checkpoint}/offsets/{batch_id} does not have version {_OFFSET_LOG_VERSION}")
    sources = lines[_SOURCES_FROM_LINE:]
    if len(sources) != 1:
        return None
    try:
        return StreamOffset.from_document(json.loads(sources[0]))
    except (ValueError, Halt):
        return None


def planned_batch(
    checkpoint: str, batch_id: int, storage_options: Mapping[str, str]
) -> PlannedBatch:
    """Return a batch that is planned. Halt if the query has other sources too.

    The end of the batch before it is kept for as long as Spark may run the batch again.
    """
    end = _end_of(checkpoint, batch_id, storage_options)
    begin = end.begin or _end_of(checkpoint, batch_id - 1, storage_options)
    query = query_id(checkpoint, storage_options)
    return PlannedBatch(query, batch_id, begin.position, end.position)


def _end_of(checkpoint: str, batch_id: int, storage_options: Mapping[str, str]) -> StreamOffset:
    found = batch_end(checkpoint, batch_id, storage_options)
    if found is None:
        raise Halt(f"{checkpoint}/offsets/{batch_id} is not of one shardstream source alone")
    return found


def _read(checkpoint: str, name: str, storage_options: Mapping[str, str]) -> str:
    filesystem, path = _place(checkpoint, name, storage_options)
    try:
        with filesystem.open_input_stream(path) as stream:
            return bytes(stream.read()).decode("utf-8")
    except FileNotFoundError as error:
        raise Halt(
            f"{checkpoint.rstrip('/')}/{name} is missing: set option checkpointLocation on the "
            f"query itself, and keep the checkpoint for as long as the target is written"
        ) from error


def _place(
    checkpoint: str, name: str, storage_options: Mapping[str, str]
) -> tuple[fs.FileSystem, str]:
    """Return the file system of a checkpoint, and the path of one of its files there."""
    if checkpoint.startswith(_OBJECT_STORES):
        return filesystem_of(checkpoint, storage_options), name
    try:
        filesystem, folder = fs.FileSystem.from_uri(checkpoint)
    except ValueError:  # a plain relative or absolute path
        filesystem, folder = fs.LocalFileSystem(), checkpoint
    return filesystem, f"{folder.rstrip('/')}/{name}"


# The metric of a batch that names the tables whose rows it left out by rule, in column `tables`.
LEFT_OUT = "shardstream_left_out"
# Buckets of a lake are a power of two too, so a task has whole ones.
PARTITIONS_MAX = 1024


def sink_frame(
    spark: SparkSession,
    keyspace: str,
    options: Mapping[str, str],
    *,
    tables: Sequence[str] = (),
    token: bool = True,
    more: Sequence[str] = (),
) -> DataFrame:
    """Return the stream of a keyspace with SINK_COLUMNS and `more` of the source's columns.

    `token`: whether the sink needs that column. Of a system-versioned table the rows are its
    present ones, and their column op is what becomes of them.

    `options` are those of format `shardstream`. `tables` are the tables (`database.table`) whose
    rows are wanted, none: all but those in which gh-ost and pt-online-schema-change prepare an
    ALTER, which metric LEFT_OUT then names. Records other than rows are those of all tables.
    """
    columns = [name for name in (*SINK_COLUMNS, *more, PRESENT_OP) if token or name != "token"]
    source = {**options, "keyspace": keyspace, "columns": ",".join(columns)}
    frame = _present_rows(translated(spark.readStream.format(SOURCE_FORMAT).options(**source).load))
    is_row = f.col("type") == EventType.ROW.value
    name = f.concat_ws(".", "database", "table")
    if tables:
        return frame.where(~is_row | name.isin(*tables))
    is_shadow = is_row & f.col("table").rlike(SHADOW_TABLE)
    # As a column the name is found by compiled code; inside the aggregate it took twice as long.
    named = frame.withColumn(LEFT_OUT, f.when(is_shadow, name))
    seen = named.observe(LEFT_OUT, f.sort_array(f.collect_set(LEFT_OUT)).alias("tables"))
    return seen.where(f.col(LEFT_OUT).isNull()).drop(LEFT_OUT)


def _present_rows(frame: DataFrame) -> DataFrame:
    """Leave out what a system-versioned table keeps as history: the rest is as of other tables."""
    op = f.coalesce(PRESENT_OP, "op")
    is_history = f.col("type").eqNullSafe(EventType.ROW.value) & (op == Op.NONE.value)
    return frame.where(~is_history).withColumn("op", op).drop(PRESENT_OP)


def routed(frame: DataFrame, partitions: int) -> DataFrame:
    """Divide the rows of `sink_frame` over `partitions` tasks by key, and add column ROUTE.

    A row goes to task pmod(key_hash, partitions). One that changed its key comes a second time, to
    the task of its old key; ROUTE has the key that it came for. A row without a primary key goes to
    task 0, and every other record to each task. UsageError unless `partitions` is a power of two.
    """
    if not 1 <= partitions <= PARTITIONS_MAX or partitions & (partitions - 1):
        raise UsageError(
            f"--partitions {partitions}: must be a power of two, at most {PARTITIONS_MAX}"
        )
    key, old_key = f.col("key_hash"), f.col("old_key_hash")
    routes = (
        f.when(f.col("type") != EventType.ROW.value, f.sequence(f.lit(0), f.lit(partitions - 1)))
        .when(old_key.isNull() | (old_key == key), f.array(f.coalesce(key, f.lit(0))))
        .otherwise(f.array(key, old_key))
    )
    rows = frame.withColumn(ROUTE, f.explode(routes.cast("array<bigint>")))
    task = f.pmod(f.col(ROUTE), f.lit(partitions)).cast("int")
    return rows.repartitionById(partitions, task)


Trigger = Literal["availableNow", "processingTime"]

# Time between batches: each costs a transaction per task, or a few files per table. A shorter one
# would show changes sooner and leave more small files to compact.
INTERVAL_S = 1.0
# How often the query is looked at, and so how soon a stop is noticed.
LOOK_S = 0.2
# The target is asked after each batch, and this often while there is none.
ASK_S = 2.0
# A query that fails on a transient fault (brokers unreachable) restarts from its checkpoint. After
# this many restarts without a batch in between, the fault is not transient.
RESTARTS_MAX = 10
RESTART_PAUSE_S = 5.0


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


class Running(TypedDict, total=False):
    """How a sink's query is run, and watched.

    `trigger`: with `availableNow` the run ends once everything that was on Kafka is applied, with
    `processingTime` (default) when `stop` is set. `interval_s`: time between batches (default: 1).
    `on_progress`: called when progress changes.
    """

    trigger: Trigger
    interval_s: float
    on_progress: Callable[[SinkProgress], None]
    stop: threading.Event


def run_query(
    writer: Callable[[], DataStreamWriter],
    applied: Callable[[], Applied],
    running: Running,
    at_end: Callable[[], None] | None = None,
) -> SinkProgress:
    """Run a query until it ends or is stopped; return the final progress.

    `writer` returns the query, before each start. `applied` asks the target, after each batch and
    every ASK_S seconds; it and `at_end`, which is called after a run that has read everything,
    raise SameKeys. Raises the ShardstreamError that ended the query; a transient one only after
    RESTARTS_MAX restarts without a batch between them.
    """
    if unknown := running.keys() - Running.__annotations__.keys():
        raise TypeError(f"unknown options of a query: {', '.join(sorted(unknown))}")
    stop = running.get("stop") or threading.Event()
    is_available_now = running.get("trigger") == "availableNow"

    def start() -> StreamingQuery:
        if is_available_now:
            return writer().trigger(availableNow=True).start()
        interval_ms = int(running.get("interval_s", INTERVAL_S) * 1000)
        return writer().trigger(processingTime=f"{interval_ms} milliseconds").start()

    applied()
    found = _Run(applied, running.get("on_progress"), stop).until_done(start)
    if at_end is not None and is_available_now and not stop.is_set():
        at_end()
    return found


def with_restarts(
    attempt: Callable[[], None], batch_id: Callable[[], int], stop: threading.Event
) -> None:
    """Run a sink until an attempt ends, or `stop` is set between two.

    After a transient fault there is another attempt, at most RESTARTS_MAX without a batch between
    them, by `batch_id`.
    """
    restarts = 0
    while True:
        batch_before = batch_id()
        try:
            return attempt()
        # Logins have worked before the first start. A new process of Spark's may meet a token
        # that has just ended.
        except (Retry, Rebuild, LoginRefused, AuthenticationFailed):
            restarts = 1 if batch_id() > batch_before else restarts + 1
            if restarts > RESTARTS_MAX:
                raise
        if stop.wait(RESTART_PAUSE_S):
            return None


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
        def attempt() -> None:
            with ended_with_spark(self._stop):  # the batch that it cuts off runs again
                self._watch(translated(start))

        with_restarts(attempt, lambda: self._last.batch_id, self._stop)
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
    found = progress["observedMetrics"].get(LEFT_OUT)
    return [] if found is None else list(found["tables"])


def _document(value: object) -> dict[str, object]:
    """Parse an offset: Spark reports it as JSON text, as parsed JSON, or not at all."""
    found = json.loads(value) if isinstance(value, str) and value else value
    return found if isinstance(found, dict) else {}
