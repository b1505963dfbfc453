"""Runs the current state: one streaming query from the merged stream into a table per table."""

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_consumers.applying.on_truncate import OnTruncate
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.current_state.query.frontiers import Frontiers
from spark_consumers.current_state.query.kept_tables import check_kept
from spark_consumers.current_state.query.sink import PARTITIONS_DEFAULT, SINK_FORMAT, named_tables
from spark_consumers.decoding.on_partial import OnPartial
from spark_consumers.sink_query.checkpoint_files import checkpoint_state
from spark_consumers.sink_query.frame import routed, sink_frame
from spark_consumers.sink_query.origin import Origin, origin_of
from spark_consumers.sink_query.resume import resumed
from spark_consumers.sink_query.run import Applied, SinkProgress, Trigger, run_watched, triggered
from spark_consumers.sink_query.same_keys import OnSameKey, SameKeyWatch
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
    *,
    token: bool = False,
) -> DataFrame:
    """Return the rows that format `shardstream_state` writes: all tables, divided by key.

    `options` are those of format `shardstream`. `tables`: `database.table`, none for all. `token`:
    with the column that a history needs.
    """
    frame = sink_frame(spark, keyspace, options, tables=tables, token=token)
    return routed(frame, partitions)


def run_state(
    spark: SparkSession,
    keyspace: str,
    target: str,
    checkpoint: str,
    options: Mapping[str, str],
    *,
    tables: Sequence[str] = (),
    histories: Mapping[str, Sequence[str]] | None = None,
    partitions: int = PARTITIONS_DEFAULT,
    buckets: int | None = None,
    deletion_vectors: bool = True,
    accept_skip: Collection[str] = (),
    on_type_change: OnTypeChange = OnTypeChange.HALT,
    on_truncate: OnTruncate = OnTruncate.APPLY,
    on_same_key: OnSameKey = OnSameKey.STOP,
    on_partial: OnPartial = OnPartial.STOP,
    drop_columns: bool = False,
    trigger: Trigger = "processingTime",
    interval_s: float = INTERVAL_S,
    storage_options: Mapping[str, str] | None = None,
    on_progress: Callable[[SinkProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> SinkProgress:
    """Keep the present rows of a keyspace's tables below `target`; return the final progress.

    `options` are those of format `shardstream` (kafka.bootstrap.servers, start, keyRange, ...).
    `start` applies only to a new target: with a new checkpoint the query goes on where the target
    ends. `histories`: by `database.table`, the columns that are tracked. The others are options of
    `sink`. The run ends when `stop` is set, with `availableNow` once all of Kafka is applied.
    Raises the ShardstreamError that ended the query, a transient one after RESTARTS_MAX restarts.
    """
    target, storage = target.rstrip("/"), dict(storage_options or {})
    frontiers, token = Frontiers(target, storage, origin_of(keyspace, options)), bool(histories)
    check_kept(target, frontiers.newest(), named_tables(tables), histories or {})
    begun = frontiers.state(), checkpoint_state(checkpoint, storage)
    source = resumed({"start": "earliest", **options}, target, *begun)
    rows = translated(lambda: state_frame(spark, keyspace, source, tables, partitions, token=token))
    sink = {
        **_passed_on(options, storage, origin_of(keyspace, options)),
        "path": target,
        "checkpointLocation": checkpoint,
        **_layout(partitions, buckets or partitions, deletion_vectors, drop_columns),
        **_choices(on_truncate, on_type_change, on_same_key, on_partial),
        **_lists(tables, histories or {}, accept_skip),
    }
    start = triggered(_writer(rows, sink), trigger, interval_s).start
    watch = SameKeyWatch(target, on_same_key)
    applied = partial(_applied, frontiers, watch)
    return run_watched(start, applied, watch, trigger=trigger, on_progress=on_progress, stop=stop)


def _lists(
    tables: Sequence[str], histories: Mapping[str, Sequence[str]], accept_skip: Collection[str]
) -> dict[str, str]:
    """Return the options of which each is a list."""
    return {
        "tables": json.dumps([*tables]),
        "history": json.dumps({name: [*columns] for name, columns in histories.items()}),
        "acceptSkip": json.dumps([*accept_skip]),
    }


def _layout(
    partitions: int,
    buckets: int,
    deletion_vectors: bool,
    drop_columns: bool,
) -> dict[str, str]:
    return {
        "partitions": str(partitions),
        "buckets": str(buckets),
        "deletionVectors": json.dumps(deletion_vectors),
        "dropColumns": json.dumps(drop_columns),
    }


def _choices(
    on_truncate: OnTruncate,
    on_type_change: OnTypeChange,
    on_same_key: OnSameKey,
    on_partial: OnPartial,
) -> dict[str, str]:
    return {
        "onTruncate": on_truncate.value,
        "onTypeChange": on_type_change.value,
        "onSameKey": on_same_key.value,
        "onPartial": on_partial.value,
    }


def _writer(frame: DataFrame, sink: Mapping[str, str]) -> DataStreamWriter:
    writer = frame.writeStream.format(SINK_FORMAT).options(**sink)
    return writer.queryName(f"state {sink['keyspace']}")


def _passed_on(
    options: Mapping[str, str], storage: Mapping[str, str], origin: Origin
) -> dict[str, str]:
    """Return the options that source and sink share, and those of the tables' storage."""
    shared = {
        name: text
        for name, text in options.items()
        if name.startswith(KAFKA_PREFIX) or name == "registryUrl"
    }
    return shared | origin.options() | secret_storage(storage)


def _applied(frontiers: Frontiers, watch: SameKeyWatch) -> Applied:
    newest = frontiers.newest()
    if newest is None:
        watch.see(0, ())
        return Applied(0)
    watch.see(newest.frontier_us, newest.same_keys)
    return Applied(sum(newest.rows.values()), newest.frontier_us)
