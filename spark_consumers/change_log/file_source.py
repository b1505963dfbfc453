"""The stream as Parquet files: tasks write the rows that they read, and yield a row for each file.

Rows that Spark carries from a reader to a writer cross from Python to the JVM and back, which costs
more than decoding them. A query whose tasks write while they read has only names of files to carry.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructType

from event_token.errors import UsageError
from spark_consumers.change_log.delta_commit import SeqSpan, WrittenFile
from spark_consumers.change_log.parquet_files import write_files
from spark_consumers.change_log.spec import ChangeLogSpec
from spark_consumers.sink_query.secret_spec import SPEC, spec_of
from spark_consumers.source.data_source import (
    ShardstreamReader,
    ShardstreamSource,
    ShardstreamStreamReader,
)
from spark_consumers.source.options import SourceOptions
from spark_consumers.source.read_tasks import LogSource

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
