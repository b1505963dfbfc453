"""The Spark side of `kafka_to_spark`: `python -m benchmarks.spark_job JOB.json RESULT.json`.

A separate process, so that its JVM ends with it. It reads the log into each sink in turn and
writes the micro-batches of every turn.
"""

import json
import sys
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from benchmarks.figures import MicroBatch
from benchmarks.spark_read import CHANGELOG, NOOP
from spark_consumers.change_log.delta_commit import ROWS_MARK
from spark_consumers.change_log.run import run_changelog
from spark_consumers.session import build_session
from spark_consumers.source.data_source import SOURCE_FORMAT

CORES = 2
QUERY_S_MAX = 300


def main(job_path: Path, result_path: Path) -> None:
    """Run the job and write its result."""
    job = json.loads(job_path.read_text())
    folder = job_path.parent
    spark = session(folder)
    try:
        # Starts the workers and lets the JVM compile; not counted.
        _read_once(spark, job, NOOP, folder / "warm-up")
        result: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in job["names"]}
        for run in range(job["runs"]):
            for name in job["names"]:
                batches = _read_once(spark, job, name, folder / f"{name}-{run}")
                result[name].append([asdict(batch) for batch in batches])
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


def _read_once(
    spark: SparkSession, job: dict[str, Any], name: str, folder: Path
) -> list[MicroBatch]:
    """Read the whole log with a new checkpoint; return the micro-batches."""
    if name == NOOP:
        return _to_nowhere(spark, job, folder)
    if name == CHANGELOG:
        return _to_change_log(spark, job, folder)
    raise ValueError(f"no sink for {name}")


def _source_options(job: dict[str, Any]) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": job["brokers"],
        "start": "earliest",
        "maxRowsPerBatch": str(job["rows_per_batch"]),
    }


def _to_nowhere(spark: SparkSession, job: dict[str, Any], folder: Path) -> list[MicroBatch]:
    """Read one table with typed columns, all of them decoded."""
    options = {**_source_options(job), "keyspace": job["keyspace"], "table": job["table"]}
    query = (
        spark.readStream.format(SOURCE_FORMAT)
        .options(**options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(QUERY_S_MAX):
        query.stop()
        raise TimeoutError(f"{NOOP} has not finished after {QUERY_S_MAX} s")
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
