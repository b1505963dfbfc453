"""The Spark side of `kafka_to_spark`: `python -m benchmarks.spark_job JOB.json RESULT.json`.

A process of its own, so that its JVM ends with it. It reads the log into each sink in turn and
writes the micro-batches of every turn.
"""

import json
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.figures import MicroBatch
from benchmarks.spark_read import CHANGELOG, NOOP
from spark_consumers.change_log_sink import SINK_FORMAT
from spark_consumers.session import build_session

CORES = 2
QUERY_S_MAX = 300


def main(job_path: Path, result_path: Path) -> None:
    """Run the job and write its result."""
    job = json.loads(job_path.read_text())
    folder = job_path.parent
    spark = _session(folder)
    try:
        # Starts the workers and lets the JVM compile: it is not counted.
        _read_once(spark, job, NOOP, folder / "warm-up")
        result: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in job["names"]}
        for run in range(job["runs"]):
            for name in job["names"]:
                batches = _read_once(spark, job, name, folder / f"{name}-{run}")
                result[name].append([asdict(batch) for batch in batches])
    finally:
        spark.stop()
    result_path.write_text(json.dumps(result))


def _session(folder: Path) -> SparkSession:
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
    """Read the whole log with a new checkpoint; gives the micro-batches."""
    rows = (
        spark.readStream.format("shardstream")
        .option("keyspace", job["keyspace"])
        .option("kafka.bootstrap.servers", job["brokers"])
        .option("table", job["table"])
        .option("start", "earliest")
        .option("maxRowsPerBatch", job["rows_per_batch"])
        .load()
    )
    query = _start(rows, name, folder)
    if not query.awaitTermination(QUERY_S_MAX):
        query.stop()
        raise TimeoutError(f"{name} has not finished after {QUERY_S_MAX} s")
    return [_micro_batch(progress) for progress in query.recentProgress]


def _start(rows: DataFrame, name: str, folder: Path) -> StreamingQuery:
    writer = rows.writeStream.option("checkpointLocation", str(folder / "checkpoint")).trigger(
        availableNow=True
    )
    if name == NOOP:
        return writer.format("noop").start()
    if name == CHANGELOG:
        return writer.format(SINK_FORMAT).option("path", str(folder / "table")).start()
    raise ValueError(f"no sink for {name}")


def _micro_batch(progress: Any) -> MicroBatch:
    return MicroBatch(
        start_s=datetime.fromisoformat(progress["timestamp"]).timestamp(),
        duration_s=progress["durationMs"]["triggerExecution"] / 1000,
        rows=progress["numInputRows"],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
