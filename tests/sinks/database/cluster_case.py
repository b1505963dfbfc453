"""A second database on executors of their own; its parts are passed as JSON."""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from spark_consumers.database import run_database


def follow(
    spark: SparkSession, keyspace: str, url: str, checkpoint: str, options: Mapping[str, str]
) -> int:
    """Apply what is on Kafka; return the number of changes that the target has taken."""
    done = run_database(spark, keyspace, url, checkpoint, options, trigger="availableNow")
    return done.rows
