"""Runs the change log: a streaming query from the merged stream into a Delta table."""

import threading
from collections.abc import Callable, Mapping

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from event_token.errors import UsageError
from spark_consumers.change_log.delta_commit import ROWS_MARK, ensure_table, open_table
from spark_consumers.change_log.delta_files import PLACE_COLUMNS
from spark_consumers.change_log.file_source import FILE_SOURCE_FORMAT
from spark_consumers.change_log.sink import SINK_FORMAT
from spark_consumers.change_log.spec import ChangeLogSpec
from spark_consumers.errors import ChangeLogConflict
from spark_consumers.sink_query.checkpoint_files import is_begun
from spark_consumers.sink_query.origin import Origin
from spark_consumers.sink_query.run import Applied, SinkProgress, Trigger, run_query, triggered
from spark_consumers.sink_query.secret_spec import SPEC, spec_text
from spark_consumers.sink_query.spark_errors import translated
from spark_consumers.source.data_source import output_of, spark_schema
from spark_consumers.source.options import SourceOptions

# Time between batches: one file per shard and second keeps the table readable; a shorter interval
# would show changes sooner and leave more small files to compact.
INTERVAL_S = 1.0

# Rows are those in the table.
ChangeLogProgress = SinkProgress


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

    The table keeps keyspace, key range and key scope; TargetConflict if it has others. Raises the
    ShardstreamError that ended the query; a transient one only after RESTARTS_MAX restarts.
    """
    source = {"start": "earliest", **options, "keyspace": keyspace}
    storage, parsed = dict(storage_options or {}), SourceOptions.parse(source)
    output, origin = output_of(parsed), Origin.of(parsed)
    missing = [name for name in PLACE_COLUMNS if name not in output.names]
    if missing:
        raise UsageError(f"option columns: a change log needs {', '.join(missing)} as well")
    # Timestamps of the files are in UTC in every session time zone.
    schema = to_arrow_schema(spark_schema(output), timezone="UTC")
    check_table_is_there(target, checkpoint, storage)
    ensure_table(target, schema, storage, origin)
    told = {SPEC: spec_text(ChangeLogSpec(target, storage, output, schema, origin))}
    frame = translated(spark.readStream.format(FILE_SOURCE_FORMAT).options(**source, **told).load)
    sink = {"checkpointLocation": checkpoint, **told}
    writer = (
        frame.writeStream.format(SINK_FORMAT).options(**sink).queryName(f"changelog {keyspace}")
    )
    return run_query(
        triggered(writer, trigger, interval_s).start,
        lambda: Applied(_rows_in(target, storage)),
        on_progress,
        stop,
    )


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


def _rows_in(target: str, storage_options: Mapping[str, str]) -> int:
    """Return the number of rows in the change log without reading them."""
    return open_table(target, storage_options).transaction_version(ROWS_MARK) or 0
