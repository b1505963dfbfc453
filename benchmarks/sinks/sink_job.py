"""Spark's part: `python -m benchmarks.sinks.sink_job JOB.json`. Writes topics or a database.

A separate process, so that its JVM ends with it.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Final

from benchmarks.spark_job import session
from sinks.database.options import DatabaseOptions
from sinks.table_topics.options import EnvelopeOptions, TopicOptions
from spark_consumers.database import run_database
from spark_consumers.table_topics import run_table_topics

# One per core.
TASKS: Final = 2
PARTITIONS: Final = 3


def job_command(folder: Path, **job: object) -> list[str]:
    """Return the command that runs a job in a process of its own.

    `keyspace` and `source` (options of the source), and `url` of a database, or the `prefix` of
    topics and whether their messages have `schemas`; if it `stays`, it ends when it is killed, so
    that its CPU time can be read to the last row.
    """
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    return [sys.executable, "-m", "benchmarks.sinks.sink_job", str(path)]


def main(job_path: Path) -> None:
    """Write what is on Kafka to table topics, or to the database if the job has a URL."""
    job = json.loads(job_path.read_text())
    checkpoint = str(job_path.parent / "checkpoint")
    spark = session(job_path.parent)
    try:
        if "url" in job:
            run_database(
                *(spark, job["keyspace"], job["url"], checkpoint, job["source"]),
                DatabaseOptions(partitions=TASKS),
                trigger="availableNow",
            )
            return
        envelope = EnvelopeOptions(job["keyspace"], job["prefix"], schemas=job["schemas"])
        topics = TopicOptions(envelope=envelope, tasks=TASKS, partitions=PARTITIONS)
        run_table_topics(spark, checkpoint, job["source"], topics, trigger="availableNow")
        if job.get("stays"):
            signal.pause()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
