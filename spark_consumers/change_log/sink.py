"""The sink of a change log: adds the files that its tasks wrote to the Delta table, each once.

The reading tasks write the files (`file_source`), and the driver commits them through delta-rs
(`delta_commit` tells how replays are recognized).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from event_token.errors import UsageError
from spark_consumers.change_log.delta_commit import (
    Batch,
    SeqSpan,
    WrittenFile,
    check_disjoint,
    commit,
    join_spans,
    open_table,
    record_origin,
)
from spark_consumers.change_log.file_source import (
    FILE_COLUMN,
    FILE_COLUMNS,
    FILE_SOURCE_FORMAT,
    parse_file,
)
from spark_consumers.change_log.spec import ChangeLogSpec
from spark_consumers.sink_query.checkpoint_files import batch_end, query_id
from spark_consumers.sink_query.secret_spec import spec_of

SINK_FORMAT = "shardstream_change_log"


@dataclass
class TaskFiles(WriterCommitMessage):
    """The files of one task, each with the seqs of each shard in it."""

    files: list[tuple[WrittenFile, dict[str, SeqSpan]]]


class ChangeLogSink(DataSource):
    """The data source that `register` registers with Spark."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return SINK_FORMAT

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> "ChangeLogWriter":
        """Return the writer of a query; UsageError for other rows."""
        if overwrite or schema.names != FILE_COLUMNS.names:
            raise UsageError(f"{SINK_FORMAT} appends what {FILE_SOURCE_FORMAT} reads")
        spec = spec_of(self.options, ChangeLogSpec, SINK_FORMAT)
        return ChangeLogWriter(spec, self.options["checkpointLocation"])


class ChangeLogWriter(DataSourceStreamArrowWriter):
    """Collects files on executors and commits them on the driver."""

    def __init__(self, spec: ChangeLogSpec, checkpoint: str) -> None:
        """Keep what the query told."""
        self._spec = spec
        self._checkpoint = checkpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Return the files that the rows of a task name."""
        return TaskFiles(
            [parse_file(text.as_py()) for batch in iterator for text in batch.column(FILE_COLUMN)]
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch unless the table holds it. An empty batch is not committed."""
        spec = self._spec
        written = [message for message in messages if isinstance(message, TaskFiles)]
        files = [file for message in written for file in message.files]
        if not files:
            return
        check_disjoint(spans for _, spans in files)
        end = batch_end(self._checkpoint, batchId, spec.storage)
        spans = join_spans(spans for _, spans in files)
        batch = Batch(
            batch_id=batchId,
            query_id=query_id(self._checkpoint, spec.storage),
            spans=spans,
            files=[file for file, _ in files],
            end=None if end is None else end.position,
            contiguous=spec.contiguous,
            hopped=frozenset() if end is None else frozenset(end.seen),
            partial=frozenset(shard for shard in spans if not spec.has_whole(shard)),
        )
        table = open_table(spec.path, spec.storage)
        if commit(table, spec.schema, batch):
            record_origin(table, spec.origin)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keep the files: the commit may have succeeded without Spark's knowledge."""
