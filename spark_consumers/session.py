"""A Spark session that the product's jobs need: the two formats registered, times in UTC."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from spark_consumers.change_log.sink import ChangeLogSink
from spark_consumers.source.data_source import ShardstreamSource

LOOPBACK = "127.0.0.1"

# Spark's own stop of a Python query runs a regular expression over a long message, which
# overflows the default stack of its threads.
JVM_STACK = "-Xss8m"

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": JVM_STACK,
    # The checkpoint of a query that is read by hand for its batch's end (checkpoint_files).
    "spark.sql.streaming.offsetLog.formatVersion": "1",
    # A batch's files are for restarts only: two would do, and people look at some more.
    "spark.sql.streaming.minBatchesToRetain": "20",
}


def register(spark: SparkSession) -> None:
    """Make formats `shardstream` and `shardstream_delta` known to a session."""
    spark.dataSource.register(ShardstreamSource)
    spark.dataSource.register(ChangeLogSink)


def build_session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session with both formats. Under spark-submit leave `master` to it.

    A local master stays on loopback. The JVM's settings hold only where none runs yet in this
    process.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    builder = SparkSession.builder.appName(name)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
            builder = builder.config("spark.driver.host", LOOPBACK)
            builder = builder.config("spark.driver.bindAddress", LOOPBACK)
    spark = builder.getOrCreate()
    register(spark)
    return spark
