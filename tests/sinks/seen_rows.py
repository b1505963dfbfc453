"""A sink that writes down which task got which row, and a query into it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sinks.resume import Applied
from spark_consumers.sink_query import Running, batch_id, routed, run_query, sink_frame, task

SEEN_FORMAT = "seen_rows"


class SeenRows(DataSource):
    """Appends each row as JSON to a file per batch and task of folder `path`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return SEEN_FORMAT

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> "SeenRowsWriter":
        """Return the writer."""
        assert not overwrite
        assert "route" in schema.names
        return SeenRowsWriter(Path(self.options["path"]))


class SeenRowsWriter(DataSourceStreamArrowWriter):
    """Writes in tasks; commits nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task, without their records and tokens."""
        here = {"batch": batch_id(), "task": task()}
        rows = [
            json.dumps({**row, **here})
            for batch in iterator
            for row in batch.drop_columns(["record", "token"]).to_pylist()
        ]
        # A task that Spark runs twice writes the same file.
        (self._folder / f"{here['batch']}-{here['task']}").write_text("\n".join(rows))
        return WriterCommitMessage()


def seen_rows(
    spark: SparkSession,
    folder: str,
    options: Mapping[str, str],
    partitions: int,
    tables: tuple[str, ...] = (),
    **watching: Unpack[Running],
) -> list[dict[str, Any]]:
    """Run a routed query over what is on Kafka; return the rows with their `batch` and `task`."""
    spark.dataSource.register(SeenRows)
    rows = Path(folder, "rows")
    rows.mkdir(parents=True, exist_ok=True)
    source = dict(options)
    frame = sink_frame(spark, source.pop("keyspace"), source, tables=tables)
    writer = (
        routed(frame, partitions)
        .writeStream.format(SEEN_FORMAT)
        .option("path", str(rows))
        .option("checkpointLocation", f"{folder}/checkpoint")
    )
    run_query(lambda: writer, lambda: Applied(0), {**watching, "trigger": "availableNow"})
    return [
        json.loads(line)
        for path in sorted(rows.iterdir())
        for line in path.read_text().splitlines()
    ]
