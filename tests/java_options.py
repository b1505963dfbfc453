"""What the JVMs of the tests are started with, and the archives of classes that they map.

A JVM with another class path than an archive's, or another Java, goes on without it.
"""

import os
import sys
from pathlib import Path

FOLDER = Path(sys.prefix) / "java-classes"
KAFKA = FOLDER / "kafka.jsa"
SPARK = FOLDER / "spark.jsa"
# Tests are too short for the second compiler to pay off: it takes half the CPU time of a start, and
# a third of all that a broker takes during the tests.
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Not a word from the JVMs that cannot use the archive they are given.
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def options_of_tests() -> dict[str, str]:
    """Return the variables of all JVMs of the tests. Spark's driver maps its own archive."""
    found = {"JAVA_TOOL_OPTIONS": SMALL}
    if KAFKA.exists() and SPARK.exists():
        found["JAVA_TOOL_OPTIONS"] += f" {QUIET} -XX:SharedArchiveFile={KAFKA}"
        found["SPARK_SUBMIT_OPTS"] = f"-XX:SharedArchiveFile={SPARK}"
    return found


def options_of_executors() -> str:
    """Return what executors in JVMs of their own need: no variable is theirs alone."""
    return os.environ.get("SPARK_SUBMIT_OPTS", "")
