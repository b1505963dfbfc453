"""Writes and reads Delta tables with delta-spark, in a JVM of its own.

It has no release for the newest Spark, so it runs with the oldest PySpark that is supported, with
which it also writes a change log.
As a program: JARS RESULT OPTIONS HISTORY TABLE... merges what is on Kafka into the table
RESULT/own, as a user would, writes the change log RESULT/log, and the rows of a batch read, of the
history, of its view and of each table as Parquet.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import SparkSession

from shardstream.local.fetching import MavenArtifact, fetch_all
from spark_consumers.change_log import run_changelog
from spark_consumers.session import build_session
from tests.repository import ROOT
from tests.sinks.lake.state.own_merge import merge_what_is_there
from tests.spark_consumers.queries import forget_last_commit

# `make test-all` installs it here, beside the newest PySpark of the environment.
OLD_SPARK = Path(sys.prefix) / "pyspark-4.2"
DELTA_VERSION = "4.4.0"
ARTIFACTS = [
    MavenArtifact("io.delta", "delta-spark_4.2_2.13", DELTA_VERSION, transitive=False),
    MavenArtifact("io.delta", "delta-storage", DELTA_VERSION, transitive=False),
]
# A JVM, its first query and a table each, on a machine that runs other tests.
READ_S_MAX = 600


OWN = "own"
READ = "read"
# The statement of docs/current-state.md: with the names that AUTO CDC gives a history.
AUTO_CDC_VIEW = Path(__file__).with_name("auto_cdc_view.sql")
VIEW, PATH_OF_PAGE = "orders_history", "lake/commerce/_shardstream_history/shop/orders"


@dataclass(frozen=True, slots=True)
class Found:
    """Rows, in any order: of each table, and last of a user's own MERGE; of a history, its view.

    `read`: what a batch read has of the stream.
    """

    tables: list[pa.Table]
    history: pa.Table
    view: pa.Table
    read: pa.Table


def read_with_delta_spark(
    tables: list[str], history: str, folder: Path, options: Mapping[str, str]
) -> Found:
    """Return what delta-spark reads.

    `folder` takes the results; `options`: of format shardstream, for the MERGE.
    """
    tables = [*tables, str(folder / OWN)]
    arguments = [str(folder), json.dumps({**options}), history, *tables]
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
    names = [*map(str, range(len(tables))), "history", VIEW, READ]
    *found, versions, view, read = (pq.read_table(folder / name) for name in names)
    return Found(found, versions, view, read)


def write_change_log(spark: SparkSession, options: Mapping[str, str], folder: Path) -> None:
    """Write `log` of a folder; the last batch runs again, as after a death behind its commit."""
    source = {name: text for name, text in options.items() if name not in {"keyspace", "table"}}
    checkpoint = folder / "checkpoint"

    def run() -> None:
        places = (str(folder / "log"), str(checkpoint))
        run_changelog(spark, options["keyspace"], *places, source, trigger="availableNow")

    run()
    forget_last_commit(checkpoint)
    run()


def main(jars: str, result: str, options: str, history: str, *tables: str) -> None:
    """Merge, then write the rows of each table as Parquet, below `result` by its number."""
    assert pyspark.__version__.startswith("4.2."), f"`make test-all` installs it in {OLD_SPARK}"
    spark = build_session(
        "delta-spark",
        "local[1]",
        {
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "1",
            # By default it divides even the log of a small table among 50 tasks.
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.jars": ",".join(str(jar) for jar in Path(jars).glob("*.jar")),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.warehouse.dir": str(Path(result) / "warehouse"),
        },
    )
    given = json.loads(options)
    merge_what_is_there(spark, given, str(Path(result) / OWN), str(Path(result) / "own checkpoint"))
    write_change_log(spark, given, Path(result))
    spark.sql(AUTO_CDC_VIEW.read_text().replace(PATH_OF_PAGE, history))
    load = spark.read.format("delta").load
    found = {str(number): load(table) for number, table in enumerate(tables)}
    found |= {"history": load(history), VIEW: spark.table(VIEW)}
    found[READ] = spark.read.format("shardstream").options(**given).load().select("shard", "seq")
    for name, rows in found.items():
        rows.coalesce(1).write.parquet(str(Path(result) / name))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
