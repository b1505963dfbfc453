"""The change log: tasks write the rows that they read as Parquet files, the driver commits them.

Rows that Spark carries from a reader to a writer cross from Python to the JVM and back, which costs
more than decoding them. A query whose tasks write while they read has only names of files to carry.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Unpack

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter, InputPartition, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from event_token.errors import UsageError
from sinks.errors import ChangeLogConflict
from sinks.lake.change_log.delta_commit import (
    ROWS_MARK,
    ChangeLogSpec,
    LogBatch,
    SeqSpan,
    WrittenFile,
    check_disjoint,
    commit,
    ensure_table,
    join_spans,
    open_table,
    write_files,
)
from sinks.lake.change_log.reading import PLACE_COLUMNS
from sinks.resume import Applied
from spark_consumers.sink_query import (
    SPEC,
    Running,
    SinkProgress,
    batch_end,
    is_begun,
    query_id,
    query_of,
    run_query,
    spec_of,
    spec_text,
)
from spark_consumers.source.data_source import (
    LogSource,
    ShardstreamReader,
    ShardstreamSource,
    ShardstreamStreamReader,
    output_of,
    spark_schema,
)
from spark_consumers.source.options import SourceOptions
from spark_consumers.spark_errors import translated

FILE_SOURCE_FORMAT = "shardstream_change_log_files"
FILE_COLUMN = "file"
FILE_COLUMNS = StructType().add(FILE_COLUMN, StringType())


class FileSource(ShardstreamSource):
    """The data source that `register` registers with Spark; option SPEC holds a ChangeLogSpec."""

    def __init__(self, options: Any) -> None:
        self._spec = spec_of(options, ChangeLogSpec, FILE_SOURCE_FORMAT)
        super().__init__({name: text for name, text in options.items() if name != SPEC})

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FILE_SOURCE_FORMAT

    def schema(self) -> StructType:
        """Return the one column."""
        return FILE_COLUMNS

    def reader(self, schema: StructType) -> ShardstreamReader:  # noqa: ARG002 - Spark's parameter
        """Refuse: only a query's commit adds the files to the table."""
        raise UsageError(f"{FILE_SOURCE_FORMAT} is for spark.readStream")

    def streamReader(  # noqa: N802 - Spark's name
        self,
        schema: StructType,  # noqa: ARG002 - Spark's parameter
    ) -> "FileReader":
        """Return the reader of a streaming query."""
        source = LogSource.of(self._parsed, self._spec.output)
        return FileReader(self._parsed, source, self._spec)


class FileReader(ShardstreamStreamReader):
    """Plans micro-batches as format `shardstream` does; its tasks write files."""

    def __init__(self, options: SourceOptions, source: LogSource, spec: ChangeLogSpec) -> None:
        super().__init__(options, source)
        self._spec = spec

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write the rows of one task; yield its files once all are written."""
        spec = self._spec
        rows = (batch.cast(spec.schema) for batch in super().read(partition))
        files = [file_text(*written) for written in write_files(spec.path, rows, spec.storage)]
        if files:
            yield pa.RecordBatch.from_arrays([pa.array(files)], names=[FILE_COLUMN])


def file_text(file: WrittenFile, spans: Mapping[str, SeqSpan]) -> str:
    """Return a file, and the seqs of each shard in it, as the text of FILE_COLUMN."""
    return json.dumps([asdict(file), {shard: asdict(span) for shard, span in spans.items()}])


def parse_file(text: str) -> tuple[WrittenFile, dict[str, SeqSpan]]:
    """Parse what `file_text` returned."""
    file, spans = json.loads(text)
    return WrittenFile(**file), {shard: SeqSpan(**span) for shard, span in spans.items()}


@dataclass
class TaskFiles(WriterCommitMessage):
    """The files of one task, each with the seqs of each shard in it."""

    files: list[tuple[WrittenFile, dict[str, SeqSpan]]]


@dataclass(frozen=True)
class ChangeLogWriter(DataSourceStreamArrowWriter):
    """Collects files on executors and commits them on the driver."""

    spec: ChangeLogSpec
    checkpoint: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Return the files that the rows of a task name."""
        return TaskFiles(
            [parse_file(text.as_py()) for batch in iterator for text in batch.column(FILE_COLUMN)]
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch unless the table holds it. An empty batch is not committed."""
        spec = self.spec
        written = [message for message in messages if isinstance(message, TaskFiles)]
        files = [file for message in written for file in message.files]
        if not files:
            return
        check_disjoint(spans for _, spans in files)
        end = batch_end(self.checkpoint, batchId, spec.storage)
        spans = join_spans(spans for _, spans in files)
        batch = LogBatch(
            batch_id=batchId,
            query_id=query_id(self.checkpoint, spec.storage),
            spans=spans,
            files=[file for file, _ in files],
            end=None if end is None else end.position,
            contiguous=spec.contiguous,
            hopped=frozenset() if end is None else frozenset(end.seen),
            partial=frozenset(shard for shard in spans if not spec.has_whole(shard)),
        )
        table = open_table(spec.path, spec.storage)
        commit(table, spec.schema, batch)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keep the files: the commit may have succeeded without Spark's knowledge."""


# Rows are those in the table.
ChangeLogProgress = SinkProgress


def run_changelog(
    spark: SparkSession,
    keyspace: str,
    target: str,
    checkpoint: str,
    options: Mapping[str, str],
    *,
    storage_options: Mapping[str, str] | None = None,
    **running: Unpack[Running],
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
    output, origin = output_of(parsed), parsed.origin
    missing = [name for name in PLACE_COLUMNS if name not in output.names]
    if missing:
        raise UsageError(f"option columns: a change log needs {', '.join(missing)} as well")
    # Timestamps of the files are in UTC in every session time zone.
    schema = to_arrow_schema(spark_schema(output), timezone="UTC")
    check_table_is_there(target, checkpoint, storage)
    ensure_table(target, schema, storage, origin)
    spec = ChangeLogSpec(target, storage, output, schema, origin)
    source[SPEC] = spec_text(spec)
    frame = translated(spark.readStream.format(FILE_SOURCE_FORMAT).options(**source).load)
    query = query_of(frame, ChangeLogWriter(spec, checkpoint), checkpoint, f"changelog {keyspace}")

    def applied() -> Applied:
        # The rows in the table, without reading them.
        return Applied(open_table(target, storage).transaction_version(ROWS_MARK) or 0)

    return run_query(lambda: query, applied, running)


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
