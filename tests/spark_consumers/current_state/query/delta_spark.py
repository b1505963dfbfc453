"""Writes and reads Delta tables with delta-spark, in a JVM of its own.

It has no release for the newest Spark, so it runs with the oldest PySpark that is supported.
As a program: JARS RESULT OPTIONS TABLE... merges what is on Kafka into the table RESULT/own, as a
user would, and writes the rows of each table as Parquet.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shardstream.local.fetching.maven import MavenArtifact, fetch_all
from spark_consumers.session import build_session
from tests.repository import ROOT
from tests.spark_consumers.current_state.query.own_merge import merge_what_is_there

# `make test` installs it here, beside the newest PySpark of the environment.
OLD_SPARK = Path(sys.prefix) / "pyspark-4.2"
DELTA_VERSION = "4.4.0"
ARTIFACTS = [
    MavenArtifact("io.delta", "delta-spark_4.2_2.13", DELTA_VERSION, transitive=False),
    MavenArtifact("io.delta", "delta-storage", DELTA_VERSION, transitive=False),
]
# A JVM, its first query and a table each, on a machine that runs other tests.
READ_S_MAX = 600


OWN = "own"


def read_with_delta_spark(
    tables: list[str], folder: Path, options: Mapping[str, str]
) -> list[pa.Table]:
    """Return the rows of each table, in any order, then those of a user's own MERGE.

    `folder` takes the results; `options`: of format shardstream, for the MERGE.
    """
    tables = [*tables, str(folder / OWN)]
    arguments = [str(folder), json.dumps({**options}), *tables]
    jars = fetch_all(f"maven-delta-spark-{DELTA_VERSION}", ARTIFACTS)
    kept = {k: v for k, v in os.environ.items() if k not in {"SPARK_HOME", "PYSPARK_PYTHON"}}
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, str(jars), *arguments],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(OLD_SPARK)},
        check=False,
        capture_output=True,
        text=True,
        timeout=READ_S_MAX,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    return [pq.read_table(folder / str(i)) for i in range(len(tables))]


def main(jars: str, result: str, options: str, *tables: str) -> None:
    """Merge, then write the rows of each table as Parquet, below `result` by its number."""
    spark = build_session(
        "delta-spark",
        "local[1]",
        {
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "1",
            "spark.jars": ",".join(str(jar) for jar in Path(jars).glob("*.jar")),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
    )
    checkpoint = str(Path(result) / "checkpoint")
    merge_what_is_there(spark, json.loads(options), str(Path(result) / OWN), checkpoint)
    for number, table in enumerate(tables):
        rows = spark.read.format("delta").load(table)
        rows.coalesce(1).write.parquet(str(Path(result) / str(number)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
