"""Reads Delta tables with delta-spark, in a JVM of its own.

It has no release for the newest Spark, so it runs with the oldest PySpark that is supported.
As a program: JARS RESULT TABLE... writes the rows of each table as Parquet.
"""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shardstream.local.fetching.maven import MavenArtifact, fetch_all
from spark_consumers.session import build_session
from tests.repository import ROOT

# `make test` installs it here, beside the newest PySpark of the environment.
OLD_SPARK = Path(sys.prefix) / "pyspark-4.2"
DELTA_VERSION = "4.4.0"
ARTIFACTS = [
    MavenArtifact("io.delta", "delta-spark_4.2_2.13", DELTA_VERSION, transitive=False),
    MavenArtifact("io.delta", "delta-storage", DELTA_VERSION, transitive=False),
]
# A JVM, its first query and a table each, on a machine that runs other tests.
READ_S_MAX = 600


def read_with_delta_spark(tables: list[str], folder: Path) -> list[pa.Table]:
    """Return the rows of each table, in any order; `folder` takes the result."""
    jars = fetch_all(f"maven-delta-spark-{DELTA_VERSION}", ARTIFACTS)
    kept = {k: v for k, v in os.environ.items() if k not in {"SPARK_HOME", "PYSPARK_PYTHON"}}
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, str(jars), str(folder), *tables],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(OLD_SPARK)},
        check=False,
        capture_output=True,
        text=True,
        timeout=READ_S_MAX,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    return [pq.read_table(folder / str(i)) for i in range(len(tables))]


def main(jars: str, result: str, *tables: str) -> None:
    """Write the rows of each table as Parquet, below `result` by the table's number."""
    spark = build_session(
        "delta-spark",
        "local[1]",
        {
            "spark.driver.memory": "1g",
            "spark.jars": ",".join(str(jar) for jar in Path(jars).glob("*.jar")),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
    )
    for number, table in enumerate(tables):
        rows = spark.read.format("delta").load(table)
        rows.coalesce(1).write.parquet(str(Path(result) / str(number)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
