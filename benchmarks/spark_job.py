"""The Spark side of `kafka_to_spark`: `python -m benchmarks.spark_job JOB.json RESULT.json`.

A separate process, so that its JVM ends with it. It reads the log into each sink, and the files
beside it, in turn, and writes the micro-batches and the processor time of every turn.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.figures import MicroBatch
from benchmarks.spark_files import FORMATS, RowFiles
from benchmarks.spark_read import BATCH_PARTS, CHANGELOG, NARROW, NOOP, SparkReading
from benchmarks.watch import tree_cpu_s
from sinks.lake.change_log.delta_commit import ROWS_MARK
from spark_consumers.change_log import run_changelog
from spark_consumers.session import build_session
from spark_consumers.source.data_source import SOURCE_FORMAT

CORES = 2
QUERY_S_MAX = 300
# What a query needs that follows rows: the image, and what orders it. Without `absent` and
# `invalid_dates` a NULL in the image might stand for either.
NARROW_COLUMNS = "op,after,absent,invalid_dates,shard,seq,timestamp_us"

# Reads all rows with a new checkpoint in the folder that it is given.
Way = Callable[[Path], list[MicroBatch]]


def main(job_path: Path, result_path: Path) -> None:
    """Run the job and write its result."""
    job = json.loads(job_path.read_text())
    folder = job_path.parent
    spark = session(folder)
    try:
        ways = _ways(spark, job, folder)
        result: dict[str, list[dict[str, Any]]] = {name: [] for name in job["names"]}
        for run in range(job["runs"]):
            for name in job["names"]:
                begun_cpu_s = tree_cpu_s(os.getpid())
                batches = ways[name](folder / f"{name}-{run}")
                reading = SparkReading(batches, tree_cpu_s(os.getpid()) - begun_cpu_s)
                result[name].append(asdict(reading))
    finally:
        spark.stop()
    result_path.write_text(json.dumps(result))


def session(folder: Path) -> SparkSession:
    """Start Spark on two cores, with its files in a folder."""
    settings = {
        "spark.driver.memory": "2g",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark = build_session("shardstream-benchmark", f"local[{CORES}]", settings)
    spark.sparkContext.setLogLevel("WARN")
    return spark


def _ways(spark: SparkSession, job: dict[str, Any], folder: Path) -> dict[str, Way]:
    """Return how each benchmark reads; Spark's own formats get their files.

    Each way has then read once, which starts the workers and lets the JVM compile; not counted.
    """
    rows = _log(spark, job)
    ways: dict[str, Way] = {
        NOOP: lambda checkpoint: _to_nowhere(_log(spark, job), checkpoint),
        NARROW: lambda checkpoint: _to_nowhere(_log(spark, job, NARROW_COLUMNS), checkpoint),
        CHANGELOG: partial(_to_change_log, spark, job),
    }
    for name in filter(ways.__contains__, job["names"]):
        ways[name](folder / f"{name}-warm-up")
    for name in filter(FORMATS.__contains__, job["names"]):
        files = RowFiles(FORMATS[name], folder / name, rows.schema)
        _run_to_end(files.writer(rows), folder / f"{name}-written")
        # The next format has its rows from there: that is faster than the log.
        rows = files.read(spark, BATCH_PARTS)
        ways[name] = partial(_to_nowhere, rows)
        ways[name](folder / f"{name}-warm-up")
    return ways


def _source_options(job: dict[str, Any]) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": job["brokers"],
        "start": "earliest",
        "maxRowsPerBatch": str(job["rows_per_batch"]),
    }


def _log(spark: SparkSession, job: dict[str, Any], columns: str | None = None) -> DataFrame:
    """Return the query of one table with typed columns; None: all of them."""
    options = {**_source_options(job), "keyspace": job["keyspace"], "table": job["table"]}
    if columns is not None:
        options["columns"] = columns
    return spark.readStream.format(SOURCE_FORMAT).options(**options).load()


def _to_nowhere(rows: DataFrame, folder: Path) -> list[MicroBatch]:
    return _run_to_end(rows.writeStream.format("noop"), folder)


def _run_to_end(writer: DataStreamWriter, folder: Path) -> list[MicroBatch]:
    """Write all rows that are there; return the micro-batches."""
    checkpoint = str(folder / "checkpoint")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    if not query.awaitTermination(QUERY_S_MAX):
        query.stop()
        raise TimeoutError(f"{folder.name} has not finished after {QUERY_S_MAX} s")
    return [
        MicroBatch(
            start_s=datetime.fromisoformat(progress["timestamp"]).timestamp(),
            duration_s=progress["durationMs"]["triggerExecution"] / 1000,
            rows=progress["numInputRows"],
        )
        for progress in query.recentProgress
    ]


def _to_change_log(spark: SparkSession, job: dict[str, Any], folder: Path) -> list[MicroBatch]:
    """Do what `shardstream changelog` does; a micro-batch ends with a Delta commit."""
    target = str(folder / "table")
    run_changelog(
        spark,
        job["keyspace"],
        target,
        str(folder / "checkpoint"),
        _source_options(job),
        trigger="availableNow",
    )
    commits = sorted(DeltaTable(target).history(), key=lambda commit: int(commit["version"]))
    batches = []
    for before, commit in pairwise(commits):
        start_s, end_s = before["timestamp"] / 1000, commit["timestamp"] / 1000
        rows = _rows_at(target, commit["version"]) - _rows_at(target, before["version"])
        batches.append(MicroBatch(start_s, end_s - start_s, rows))
    return batches


def _rows_at(target: str, version: int) -> int:
    table = DeltaTable(target, version=version, without_files=True)
    return table.transaction_version(ROWS_MARK) or 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
