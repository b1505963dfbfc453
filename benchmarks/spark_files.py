"""The rows of the log as files that Spark reads itself: what its own formats take for these rows.

Spark's Kafka source with `from_avro` would be nearer, but `spark-avro` could not be fetched for a
supported version. The decoder that `from_avro` calls is in Spark itself, and reads Avro files.
"""

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

# By their formats: only spark-avro brings the short name "avro".
FORMATS: Final = {
    "kafka_to_spark.noop.beside_parquet": "parquet",
    "kafka_to_spark.noop.beside_avro": "org.apache.spark.sql.avro.AvroFileFormat",
}
PEERS: Final = {
    "kafka_to_spark.noop.beside_parquet": "Spark, Parquet files",
    "kafka_to_spark.noop.beside_avro": "Spark, Avro files",
}


@dataclass(frozen=True, slots=True)
class RowFiles:
    """A folder of files of one format, with the columns of a query."""

    format: str
    folder: Path
    schema: StructType

    def writer(self, rows: DataFrame) -> DataStreamWriter:
        """Return what writes the rows of a streaming query to the folder."""
        return rows.writeStream.format(self.format).option("path", str(self.folder))

    def read(self, spark: SparkSession, batches: int) -> DataFrame:
        """Return a streaming query that reads all files again, in that many batches."""
        files = sum(1 for _ in self.folder.glob("part-*"))
        return (
            spark.readStream.format(self.format)
            .schema(self.schema)
            .option("maxFilesPerTrigger", ceil(files / batches))
            .load(str(self.folder))
        )
