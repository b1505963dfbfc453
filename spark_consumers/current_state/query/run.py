"""Runs the current state: one streaming query from the merged stream into a table per table."""

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from spark_consumers.applying.on_truncate import OnTruncate
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.current_state.query.frontiers import Frontiers
from spark_consumers.current_state.query.sink import PARTITIONS_DEFAULT, SINK_FORMAT
from spark_consumers.sink_query.checkpoint_files import checkpoint_state
from spark_consumers.sink_query.frame import routed, sink_frame
from spark_consumers.sink_query.resume import resumed
from spark_consumers.sink_query.run import Applied, SinkProgress, Trigger, run_query, triggered
from spark_consumers.sink_query.secret_spec import secret_storage
from spark_consumers.sink_query.spark_errors import translated
from spark_consumers.source.options import KAFKA_PREFIX

# Time between batches: each costs a few files per table that it changes.
INTERVAL_S = 1.0


def state_frame(
    spark: SparkSession,
    keyspace: str,
    options: Mapping[str, str],
    tables: Sequence[str] = (),
    partitions: int = PARTITIONS_DEFAULT,
) -> DataFrame:
    """Return the rows that format `shardstream_state` writes: all tables, divided by key.

    `options` are those of format `shardstream`. `tables`: `database.table`, none for all.
    """
    frame = sink_frame(spark, keyspace, options, tables=tables, token=False)
    return routed(frame, partitions)


def run_state(
    spark: SparkSession,
    keyspace: str,
    target: str,
    checkpoint: str,
    options: Mapping[str, str],
    *,
    tables: Sequence[str] = (),
    partitions: int = PARTITIONS_DEFAULT,
    buckets: int | None = None,
    deletion_vectors: bool = True,
    accept_skip: Collection[str] = (),
    on_type_change: OnTypeChange = OnTypeChange.HALT,
    on_truncate: OnTruncate = OnTruncate.APPLY,
    trigger: Trigger = "processingTime",
    interval_s: float = INTERVAL_S,
    storage_options: Mapping[str, str] | None = None,
    on_progress: Callable[[SinkProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> SinkProgress:
    """Keep the present rows of a keyspace's tables below `target`; return the final progress.

    `options` are those of format `shardstream` (kafka.bootstrap.servers, start, keyRange, ...).
    `start` applies only to a new target: with a new checkpoint the query goes on where the target
    ends. `tables`: `database.table`, none for all. `partitions`: tasks, a power of two. `buckets`:
    of a new table, a power of two, at least `partitions`. For the others see `task.Target`. The run
    ends when `stop` is set, with `availableNow` once everything that was on Kafka is applied.

    Raises the ShardstreamError that ended the query, a transient one after RESTARTS_MAX restarts.
    """
    target, storage = target.rstrip("/"), dict(storage_options or {})
    frontiers = Frontiers(target, storage)
    source, state = {"start": "earliest", **options}, frontiers.state()
    source = resumed(source, target, state, checkpoint_state(checkpoint, storage))
    frame = translated(lambda: state_frame(spark, keyspace, source, tables, partitions))
    sink = {
        **_passed_on(options, storage),
        "path": target,
        "checkpointLocation": checkpoint,
        "partitions": str(partitions),
        "buckets": str(buckets or partitions),
        "deletionVectors": "true" if deletion_vectors else "false",
        "onTruncate": str(on_truncate),
        "acceptSkip": ",".join(accept_skip),
        "onTypeChange": on_type_change.value,
        "tables": json.dumps([*tables]),
    }
    writer = frame.writeStream.format(SINK_FORMAT).options(**sink).queryName(f"state {keyspace}")
    start = triggered(writer, trigger, interval_s).start
    return run_query(start, lambda: _applied(frontiers), on_progress, stop)


def _passed_on(options: Mapping[str, str], storage: Mapping[str, str]) -> dict[str, str]:
    """Return the options that source and sink share, and those of the tables' storage."""
    shared = {
        name: text
        for name, text in options.items()
        if name.startswith(KAFKA_PREFIX) or name == "registryUrl"
    }
    return shared | secret_storage(storage)


def _applied(frontiers: Frontiers) -> Applied:
    newest = frontiers.newest()
    if newest is None:
        return Applied(0)
    return Applied(sum(newest.rows.values()), newest.frontier_us)
