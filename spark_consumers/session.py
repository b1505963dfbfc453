"""Builds the Spark session of the jobs in this package, with all formats registered."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from spark_consumers.change_log import FileSource
from spark_consumers.sink_query import PreparedSink
from spark_consumers.source.data_source import ShardstreamSource
from spark_consumers.spark_errors import SPARK_ERRORS, starting_spark
from spark_consumers.state import HistorySink, StateSink
from spark_consumers.worker_python import worker_python

LOOPBACK = "127.0.0.1"

# When Spark stops a Python query it runs a regular expression over a long message, which overflows
# the default stack of its threads.
JVM_STACK = "-Xss8m"

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": JVM_STACK,
    # Python on a loaded machine may take longer to connect than the default of 15 s.
    "spark.python.authenticate.socketTimeout": "120s",
    # Sinks read the end of each batch from the checkpoint's files (`sink_query.planned_batch`).
    "spark.sql.streaming.offsetLog.formatVersion": "1",
    # Restarts need two batches of checkpoint files; the others help an operator.
    "spark.sql.streaming.minBatchesToRetain": "20",
}


def register(spark: SparkSession) -> None:
    """Register the source `shardstream` and the formats of all sinks with a session."""
    for source in (ShardstreamSource, FileSource, PreparedSink, StateSink, HistorySink):
        spark.dataSource.register(source)


def end_session(spark: SparkSession) -> None:
    """Stop Spark; nothing is left to stop where a signal has ended its JVM."""
    with suppress(*SPARK_ERRORS):
        spark.stop()


def build_session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session with all formats. Under spark-submit, leave out `master`.

    A local master listens on loopback only. JVM settings take effect only if this process runs no
    JVM yet. UnknownSparkError: Spark did not start.
    """
    is_local = master is not None and master.startswith("local")
    os.environ.setdefault("PYSPARK_PYTHON", worker_python() if is_local else sys.executable)
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    builder = SparkSession.builder.appName(name)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
        if is_local:
            os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
            builder = builder.config("spark.driver.host", LOOPBACK)
            builder = builder.config("spark.driver.bindAddress", LOOPBACK)
    with starting_spark():
        spark = builder.getOrCreate()
        register(spark)
    return spark
