"""Runs a second database: a streaming query from the merged stream into its tables."""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_consumers.applying.on_truncate import OnTruncate
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.second_database.catalog import FOLLOWING, LOADING
from spark_consumers.second_database.database import SqlDatabase, TargetOptions
from spark_consumers.second_database.sink import DATABASE_FORMAT, DatabaseSink, DatabaseSpec
from spark_consumers.second_database.start.left_tables import left_tables
from spark_consumers.second_database.start.own_source import refuse_own_source
from spark_consumers.sink_query.checkpoint_files import checkpoint_state
from spark_consumers.sink_query.frame import routed, sink_frame
from spark_consumers.sink_query.resume import resumed
from spark_consumers.sink_query.run import Applied, SinkProgress, Trigger, run_watched, triggered
from spark_consumers.sink_query.same_keys import SameKeyWatch
from spark_consumers.sink_query.secret_spec import SPEC, spec_text
from spark_consumers.source.options import SourceOptions
from topics.start.start_forms import StartWord

# Time between batches: each pays for one transaction and a staging table per task and table.
INTERVAL_S = 1.0
# Tasks that decode and stage side by side; the transaction that applies is one, on one core.
PARTITIONS = 4


def run_database(
    spark: SparkSession,
    keyspace: str,
    url: str,
    checkpoint: str,
    options: Mapping[str, str],
    *,
    target: TargetOptions | None = None,
    tables: Collection[tuple[str, str]] = (),
    partitions: int = PARTITIONS,
    accept_skip: Collection[str] = (),
    on_type_change: OnTypeChange = OnTypeChange.HALT,
    on_truncate: OnTruncate = OnTruncate.APPLY,
    trigger: Trigger = "processingTime",
    interval_s: float = INTERVAL_S,
    on_progress: Callable[[SinkProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> SinkProgress:
    """Let the tables of database `url` follow a keyspace; return the final progress.

    `options` are those of format `shardstream`; `start` applies only while the target has no
    position of this follower (`target.follower`, default: the keyspace). With `availableNow` the
    run ends once everything that was on Kafka is applied, else when `stop` is set. A batch that is
    cut off runs again and is applied once. `tables`: (database, table), empty for all.

    Raises the ShardstreamError that ended the query; a transient one only after some restarts.
    """
    source = {"start": "earliest", **options}
    parsed = SourceOptions.parse({**source, "keyspace": keyspace})
    target = _with_source(target or TargetOptions(keyspace), parsed, on_type_change)
    target = _prepared(url, target, tables, parsed)
    spec = DatabaseSpec(
        *(url, keyspace, target, parsed.kafka, parsed.registry_url, checkpoint, partitions),
        tables=frozenset(tables) or None,
        accept_skip=frozenset(accept_skip),
        on_truncate=on_truncate,
    )
    database = SqlDatabase(url, target)

    def start() -> StreamingQuery:
        database.clean_up()
        begin = resumed(source, database.where, database.held(), checkpoint_state(checkpoint, {}))
        return triggered(_writer(spark, keyspace, spec, begin), trigger, interval_s).start()

    watch = SameKeyWatch(database.where, target.on_same_key)
    applied = partial(_applied, database, watch)
    with database.claimed():
        return run_watched(
            start, applied, watch, trigger=trigger, on_progress=on_progress, stop=stop
        )


def _prepared(
    url: str, target: TargetOptions, tables: Collection[tuple[str, str]], source: SourceOptions
) -> TargetOptions:
    """Check and prepare the target; return its options with the tables that it leaves out."""
    if not tables:
        refuse_own_source(url, source)
    SqlDatabase(url, target).prepare_for_tasks()
    return replace(target, left=left_tables(url, target.follower, tables))


def _with_source(
    target: TargetOptions, source: SourceOptions, on_type_change: OnTypeChange
) -> TargetOptions:
    return replace(
        target,
        key_range=source.key_range,
        key_scope=source.key_scope,
        on_type_change=on_type_change,
        state=LOADING if source.start is StartWord.COPY else FOLLOWING,
    )


def _applied(database: SqlDatabase, watch: SameKeyWatch) -> Applied:
    watch.see(*database.same_keys())
    return Applied(*database.applied())


def _writer(
    spark: SparkSession, keyspace: str, spec: DatabaseSpec, source: Mapping[str, str]
) -> DataStreamWriter:
    spark.dataSource.register(DatabaseSink)
    tables = [f"{database}.{table}" for database, table in spec.tables or ()]
    frame = routed(sink_frame(spark, keyspace, source, tables=tables), spec.partitions)
    return (
        frame.writeStream.format(DATABASE_FORMAT)
        .option(SPEC, spec_text(spec))
        .option("checkpointLocation", spec.checkpoint)
        .queryName(f"database {keyspace}")
    )
