"""`writeStream.format("shardstream_delta")`: appends the merged stream to Delta, each change once.

Executors write Parquet files and the driver commits them through delta-rs (`delta_commit` tells
how replays are recognized). The rows need the columns timestamp_us, shard, seq and offset.

| option | meaning |
|---|---|
| path | folder or URL of the Delta table (required) |
| checkpointLocation | the query's checkpoint (required, set on the query itself) |
| contiguous | `true`: the query takes every record of its shards, so a hole is an error |
| keyRange | the key range that the query reads; shards that reach beyond it may have holes |
| keyspace, keyScope | what the query reads: the table keeps keyspace, range and key scope |
| storage.*, secret.storage.* | storage options for delta-rs; Spark hides the latter |
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from event_token import KeyRange, ShardName
from event_token.errors import UsageError
from spark_consumers.change_log.delta_commit import (
    Batch,
    SeqSpan,
    WrittenFile,
    commit,
    ensure_table,
    join_spans,
    open_table,
    record_origin,
)
from spark_consumers.change_log.parquet_files import write_files
from spark_consumers.sink_query.checkpoint_files import batch_end, query_id
from spark_consumers.sink_query.origin import Origin, given_origin
from spark_consumers.sink_query.secret_spec import storage_of

SINK_FORMAT = "shardstream_delta"
NEEDED = ("timestamp_us", "shard", "seq", "offset")


@dataclass
class TaskFiles(WriterCommitMessage):
    """The files that one task has written."""

    files: list[WrittenFile]
    spans: dict[str, SeqSpan]


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The sink's options."""

    path: str
    checkpoint: str
    contiguous: bool
    key_range: KeyRange
    storage: dict[str, str]
    origin: Origin | None = None

    @classmethod
    def parse(cls, options: Any) -> "SinkOptions":
        """Parse the options; UsageError when one is missing."""
        path, checkpoint = options.get("path"), options.get("checkpointLocation")
        if not path:
            raise UsageError(
                f"{SINK_FORMAT}: set option path to the folder or URL of the Delta table"
            )
        if not checkpoint:
            raise UsageError(
                f"{SINK_FORMAT}: set option checkpointLocation on the query: the checkpoint's id "
                f"tells replayed batches"
            )
        storage = storage_of(options)
        is_contiguous = options.get("contiguous", "false") == "true"
        key_range = KeyRange.parse(options.get("keyRange", "-"))
        origin = given_origin(options)
        return cls(path, checkpoint, is_contiguous, key_range, storage, origin)


class ChangeLogSink(DataSource):
    """The data source that `register` registers with Spark."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return SINK_FORMAT

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> "ChangeLogWriter":
        """Return the writer of a query; UsageError on bad options or missing columns."""
        if overwrite:
            raise UsageError(f"{SINK_FORMAT} supports output mode append only")
        missing = [name for name in NEEDED if name not in schema.names]
        if missing:
            raise UsageError(f"{SINK_FORMAT}: the rows lack {', '.join(missing)}")
        options = SinkOptions.parse(self.options)
        # Tasks write into the table's folder, so the table must exist before the first one.
        ensure_table(options.path, arrow_schema(schema), options.storage, options.origin)
        return ChangeLogWriter(options, schema)


class ChangeLogWriter(DataSourceStreamArrowWriter):
    """Writes on executors and commits on the driver."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Keep the options and the schema."""
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Write the rows of a task; a task without rows writes no file."""
        files, spans = write_files(self._options.path, iterator, self._options.storage)
        return TaskFiles(files, spans)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch unless the table holds it. An empty batch is not committed."""
        written = [message for message in messages if isinstance(message, TaskFiles)]
        files = [file for message in written for file in message.files]
        if not files:
            return
        checkpoint = self._options.checkpoint
        end = batch_end(checkpoint, batchId, self._options.storage)
        spans = join_spans(message.spans for message in written)
        batch = Batch(
            batch_id=batchId,
            query_id=query_id(checkpoint, self._options.storage),
            spans=spans,
            files=files,
            end=None if end is None else end.position,
            contiguous=self._options.contiguous,
            hopped=frozenset() if end is None else frozenset(end.seen),
            partial=frozenset(shard for shard in spans if not self._is_whole(shard)),
        )
        table = open_table(self._options.path, self._options.storage)
        is_added = commit(table, arrow_schema(self._schema), batch)
        if is_added and self._options.origin is not None:
            record_origin(table, self._options.origin)

    def _is_whole(self, shard: str) -> bool:
        return self._options.key_range.includes(ShardName.parse(shard).key_range)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keep the files: the commit may have succeeded without Spark's knowledge."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the files; timestamps are in UTC in every session time zone."""
    return to_arrow_schema(schema, timezone="UTC")
