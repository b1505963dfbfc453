"""Makes Kafka and Spark start in half the CPU time: archives of the classes that they load.

`make test` runs it once in an environment:
python -m tests.java_classes
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shardstream.local.kafka_cluster import KafkaCluster
from spark_consumers.session import JVM_STACK, build_session
from tests.java_options import FOLDER, KAFKA, QUIET, SMALL, SPARK
from tests.spark_consumers.queries import run_now
from tests.spark_consumers.shop import Shop


def write_archives() -> None:
    """Run Kafka and Spark once, as the tests do, and keep the classes that they have loaded."""
    FOLDER.mkdir(exist_ok=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        cluster = KafkaCluster(folder / "kafka", die_with_parent=True)
        os.environ["JAVA_TOOL_OPTIONS"] = f"{SMALL} {_archived_at_exit(KAFKA)}"
        cluster.start()
        os.environ["JAVA_TOOL_OPTIONS"] = SMALL
        try:
            _run_spark(cluster.bootstrap_servers, folder)
        finally:
            cluster.stop()
    for archive in (KAFKA, SPARK):
        # A JVM that was killed while it wrote leaves none: the tests run without it, only slower.
        if _unfinished(archive).exists():
            _unfinished(archive).replace(archive)


def _run_spark(bootstrap_servers: str, folder: Path) -> None:
    settings = {"spark.driver.extraJavaOptions": f"{JVM_STACK} {_archived_at_exit(SPARK)}"}
    spark = build_session("classes", "local[2]", settings)
    shop = Shop(bootstrap_servers, "classes")
    shop.write(30)
    run_now(spark, shop, folder)
    spark.read.parquet(str(folder / "log")).collect()
    shop.close()
    # Only it knows the JVM's process.
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _archived_at_exit(archive: Path) -> str:
    return f"{QUIET} -XX:ArchiveClassesAtExit={_unfinished(archive)}"


def _unfinished(archive: Path) -> Path:
    """A dump takes seconds: the archive gets its name when it is whole."""
    return archive.with_suffix(".new")


if __name__ == "__main__":
    write_archives()
