"""A second database: a streaming query whose tasks stage changes that the driver applies."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Unpack

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.readwriter import DataStreamWriter

from event_token.errors import UsageError
from event_token.position import StreamPosition
from sinks.database.database import SqlDatabase
from sinks.database.options import DatabaseOptions
from sinks.database.staging import StagedChanges
from sinks.database.urls import left_tables, refuse_own_source
from sinks.resume import Applied, resumed
from sinks.rule.policy import SHADOW_TABLE
from sinks.rule.task_changes import FollowedTables, changes_of
from sinks.same_keys import SameKeyWatch
from sinks.subscriber_batches import Batches, StreamBatch
from sinks.unlogged_copies import UnloggedCopies
from spark_consumers.sink_query import (
    INTERVAL_S,
    LOOK_S,
    Running,
    SinkProgress,
    checkpoint_state,
    planned_batch,
    query_of,
    routed,
    run_query,
    sink_frame,
    task,
    with_restarts,
)
from spark_consumers.source.data_source import schema_ids_of
from spark_consumers.source.options import SourceOptions
from topics.arrow.decoders import TableDecoder
from topics.arrow.key_scope import KeyScope
from topics.kafka.client import ClientConfig
from topics.named_readers import ReaderKind, ReaderReporter
from topics.records.vevent import EventType
from topics.start.start_forms import StartWord
from topics.stream.subscriber import StreamSubscriber

# Decoders of all table versions that a worker process keeps, by cluster.
_CLUSTERS_MAX = 4


@dataclass
class StagedTask(WriterCommitMessage):
    """What one task has staged, per table."""

    staged: list[StagedChanges]


@dataclass(frozen=True)
class DatabaseWriter(DataSourceStreamArrowWriter):
    """Stages the changes in the tasks, each those of its keys, and applies them on the driver."""

    url: str
    keyspace: str
    policy: DatabaseOptions
    kafka: ClientConfig
    registry_url: str | None
    checkpoint: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stage what the rows of a task change."""
        batches = [batch for batch in iterator if batch.num_rows]
        if not batches:
            return StagedTask([])
        database = SqlDatabase(self.url, self.policy)
        followed = FollowedTables(
            database.known(), self.policy, on_unlogged=UnloggedCopies(self.kafka, self.keyspace)
        )
        changes = changes_of(
            pa.Table.from_batches(batches),
            _decoder(self.kafka, self.registry_url, self.policy.key_scope),
            partitions=self.policy.partitions,
            task=task(),
            followed=followed,
        )
        return StagedTask(database.stage(changes))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Apply what the tasks have staged, and move the position, also without any rows."""
        batch = planned_batch(self.checkpoint, batchId, {})
        staged = [
            each
            for message in messages
            if isinstance(message, StagedTask)
            for each in message.staged
        ]
        SqlDatabase(self.url, self.policy).apply(batch, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave the staging tables to the next start: the commit may have succeeded."""


@lru_cache(maxsize=_CLUSTERS_MAX)
def _decoder(kafka: ClientConfig, registry_url: str | None, key_scope: KeyScope) -> TableDecoder:
    return TableDecoder(schema_ids_of(kafka, registry_url).text_of, key_scope)


def run_database(
    spark: SparkSession,
    keyspace: str,
    url: str,
    checkpoint: str,
    options: Mapping[str, str],
    policy: DatabaseOptions | None = None,
    **running: Unpack[Running],
) -> SinkProgress:
    """Let the tables of database `url` follow a keyspace; return the final progress.

    `options` are those of format `shardstream`; `start` applies only while the target has no
    position of this follower. The run ends as `running` says. A batch that is cut off runs again
    and is applied once.

    Raises the ShardstreamError that ended the query; a transient one only after some restarts.
    """
    source = {"start": "earliest", **options}
    parsed = SourceOptions.parse({**source, "keyspace": keyspace})
    policy = _prepared(url, policy or DatabaseOptions(), parsed)
    writer = DatabaseWriter(url, keyspace, policy, parsed.kafka, parsed.registry_url, checkpoint)
    database = SqlDatabase(url, policy)

    def query() -> DataStreamWriter:
        database.clean_up()
        held, begun = database.held(), checkpoint_state(checkpoint, {})
        begin = resumed(source, database.where, held, begun)
        frame = sink_frame(spark, keyspace, begin, tables=policy.tables)
        rows = routed(frame, policy.partitions)
        return query_of(rows, writer, checkpoint, f"database {keyspace}")

    watch = SameKeyWatch(database.where, policy.on_same_key)

    def applied() -> Applied:
        watch.see(*database.same_keys())
        return Applied(*database.applied())

    with database.claimed():
        return run_query(query, applied, running, watch.end)


# Rows of a batch in one process: beside its record, whose bytes `Batches` bounds, an event takes a
# kilobyte.
LOCAL_ROWS_MAX = 50_000
# Batches without Spark belong to one query: the claim lets nobody else write for the follower.
LOCAL_QUERY = "local"


def run_database_locally(
    keyspace: str,
    url: str,
    options: Mapping[str, str],
    policy: DatabaseOptions | None = None,
    **running: Unpack[Running],
) -> SinkProgress:
    """Let the tables of database `url` follow as `run_database` does, in this process alone.

    There is no JVM and no checkpoint: the position lies in the database. A batch has at most
    LOCAL_ROWS_MAX rows. UsageError with trigger `availableNow`, because what is there is not known.
    """
    if running.get("trigger") == "availableNow":
        raise UsageError("--local follows until it is stopped: leave --available-now out")
    start = options.get("start", "earliest")
    source = SourceOptions.parse({**options, "start": start, "keyspace": keyspace})
    policy = _prepared(url, policy or DatabaseOptions(), source)
    run = _LocalRun(SqlDatabase(url, policy), policy, source, start, running)
    with run.database.claimed():
        with_restarts(run.follow, lambda: run.progress.batch_id, run.stop)
    return run.progress


class _LocalRun:
    """A subscriber whose batches are applied one after the other."""

    def __init__(
        self,
        database: SqlDatabase,
        policy: DatabaseOptions,
        source: SourceOptions,
        start: str,
        running: Running,
    ) -> None:
        self.database = database
        self.progress = SinkProgress(0, None, -1, "")
        self.stop = running.get("stop") or threading.Event()
        self._policy = policy
        self._source = source
        self._start = start
        self._interval_ms = max(1, int(running.get("interval_s", INTERVAL_S) * 1000))
        self._on_progress = running.get("on_progress")
        self._watch = SameKeyWatch(database.where, policy.on_same_key)

    def follow(self) -> None:
        """Apply batches from where the database ends, until the stop."""
        self.database.clean_up()
        held, source = self.database.held(locked=True), self._source
        reader = StreamSubscriber(
            source.keyspace,
            str(source.key_range),
            self._start if held is None else held.position,
            config=source.kafka,
            registry_url=source.registry_url,
            mode=source.mode,
            clock=source.clock,
        )
        # A reporter of the subscriber's own would name what is not applied yet.
        reporter = None
        if source.name is not None:
            reporter = ReaderReporter(
                source.kafka, source.keyspace, source.name, source.key_range, ReaderKind.QUERY
            )
        number = 0 if held is None else held.batch_id + 1
        batches = Batches(
            reader,
            min(source.max_rows_per_batch, LOCAL_ROWS_MAX),
            self._interval_ms,
            key_scope=source.key_scope,
            lasts_ms=self._interval_ms,
        )
        with ExitStack() as opened:
            if reporter is not None:
                opened.callback(reporter.close)
            opened.enter_context(_closed_at(self.stop, reader))
            for batch in batches:
                if batch.begin != batch.end:
                    self._apply(batch, number)
                    number += 1
                if reporter is not None:
                    reporter.note(partial(_end, batch.end))
                self._tell(batch, number - 1, reader)

    def _apply(self, batch: StreamBatch, number: int) -> None:
        copies = UnloggedCopies(self._source.kafka, self._source.keyspace)
        followed = FollowedTables(self.database.known(), self._policy, on_unlogged=copies)
        rows, left = _followed(batch.rows, self._policy.tables)
        left_out = tuple(sorted({*self.progress.left_out, *left}))
        self.progress = replace(self.progress, left_out=left_out)
        changes = replace(batch, rows=rows).changes(followed)
        self.database.apply_arrow(batch.planned(LOCAL_QUERY, number), changes)

    def _tell(self, batch: StreamBatch, number: int, reader: StreamSubscriber) -> None:
        self._watch.see(*self.database.same_keys())
        applied = Applied(*self.database.applied())
        waiting = reader.waiting
        found = replace(
            self.progress,
            rows=applied.rows,
            frontier_us=applied.frontier_us,
            batch_id=number,
            waiting="" if waiting is None else waiting.reason,
            rejected=applied.rejected,
            seqs={shard: at.seq for shard, at in batch.end.shards.items()},
        )
        if found != self.progress:
            self.progress = found
            if self._on_progress is not None:
                self._on_progress(found)


def _end(position: StreamPosition) -> StreamPosition:
    """The position itself: a reporter asks for it when it writes."""
    return position


def _followed(rows: pa.Table, tables: Sequence[str]) -> tuple[pa.Table, list[str]]:
    """Return the rows that are followed, with all other records, and the tables left out by rule.

    As `sink_frame` does: of `tables`; with none, of all but those of online schema changes.
    """
    is_row = pc.equal(rows["type"], EventType.ROW.value)
    names = pc.binary_join_element_wise(rows["database"], rows["table"], ".")
    if tables:
        is_other = pc.and_(is_row, pc.invert(pc.is_in(names, pa.array(tables, pa.string()))))
        return rows.filter(pc.invert(is_other)), []
    is_shadow = pc.and_(is_row, pc.match_substring_regex(rows["table"], SHADOW_TABLE))
    is_shadow = pc.fill_null(is_shadow, False)
    return rows.filter(pc.invert(is_shadow)), names.filter(is_shadow).unique().to_pylist()


@contextmanager
def _closed_at(stop: threading.Event, reader: StreamSubscriber) -> Iterator[None]:
    """Close a reader at the end of the context, and as soon as the stop is set."""
    is_done = threading.Event()

    def wait() -> None:
        while not is_done.is_set():
            if stop.wait(LOOK_S):
                reader.close()
                return

    waiting = threading.Thread(target=wait, name="stop of a sink", daemon=True)
    waiting.start()
    try:
        yield
    finally:
        is_done.set()
        waiting.join()
        reader.close()


def _prepared(url: str, policy: DatabaseOptions, source: SourceOptions) -> DatabaseOptions:
    """Check and prepare the target; return the policy with what source and target say."""
    policy = replace(
        policy,
        follower=policy.follower or source.keyspace,
        key_range=source.key_range,
        key_scope=source.key_scope,
        is_loading=source.start is StartWord.COPY,
    )
    if not policy.tables:
        schema_ids = schema_ids_of(source.kafka, source.registry_url)
        refuse_own_source(url, source.kafka, source.keyspace, schema_ids)
    SqlDatabase(url, policy).prepare()
    return replace(policy, left=left_tables(url, policy))
