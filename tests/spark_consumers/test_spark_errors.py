import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from event_token.errors import Retry, UsageError
from spark_consumers.spark_errors import (
    STARTS_MAX,
    UnknownSparkError,
    ended_with_spark,
    original_error,
    translated,
)

START_S_MAX = 120


def test_errors_come_through_spark() -> None:
    """The innermost ShardstreamError in the text of a Spark exception is raised again."""
    text = (
        "[STREAM_FAILED] Query failed: boom\n  File x\n"
        "topics.errors.LogGap: ks.-80: seq 3 is missing\n"
        "topics.errors.ShapeConflict: column 'n' is int there\n\n"
        "\tat org.apache.spark"
    )

    found = original_error(text)
    other = original_error("java.lang.OutOfMemoryError: heap")
    slow = original_error(
        "org.apache.spark.SparkException: Python worker failed to connect back.\n"
        "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python "
        "worker to connect back"
    )

    killed = original_error(
        "org.apache.spark.SparkException: EOFException occurred while reading the port number from "
        "pyspark.daemon's stdout and terminated with code: 137."
    )

    assert isinstance(found, UsageError)
    assert str(found) == "column 'n' is int there"
    assert type(other) is UnknownSparkError
    assert type(slow) is Retry
    assert type(killed) is Retry


def test_a_killed_worker_is_a_transient_fault(spark: SparkSession) -> None:
    """F30: a task whose Python worker the kernel kills, for its memory, may be run again."""

    def die(_: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    rows = spark.sparkContext.parallelize([1], 1).map(die)

    with pytest.raises(Retry, match="Python worker exited unexpectedly"):
        translated(rows.collect)


def test_a_worker_that_starts_late_is_started_again() -> None:
    """Spark gives up on it after ten seconds, before anything has begun; not without an end."""
    late = PySparkException("org.apache.spark.SparkException: Python worker failed to connect back")
    asked: list[int] = []

    def answer_at(number: int) -> str:
        asked.append(number)
        if len(asked) < number:
            raise late
        return "answer"

    assert translated(lambda: answer_at(STARTS_MAX)) == "answer"
    asked.clear()
    with pytest.raises(Retry, match="failed to connect back"):
        translated(lambda: answer_at(STARTS_MAX + 1))


def test_what_spark_says_comes_without_its_stack_trace() -> None:
    """A folder that cannot be made is one sentence, not a page of the JVM's frames."""
    text = (
        "An error occurred while calling o184.start.\n"
        ": java.io.IOException: mkdir of file:/lake.checkpoint failed\n"
        "\tat org.apache.hadoop.fs.FileContext$4.next(FileContext.java:812)\n"
        "\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
        "Caused by: java.io.IOException: Read-only file system\n"
        "\t... 23 more\n"
    )

    assert str(original_error(text)) == (
        "Spark: An error occurred while calling o184.start.\n"
        ": java.io.IOException: mkdir of file:/lake.checkpoint failed\n"
        "Caused by: java.io.IOException: Read-only file system"
    )


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError("refused"), Py4JNetworkError("no answer")], ids=repr
)
def test_a_jvm_that_ends_is_named_unless_a_stop_was_asked_for(error: Exception) -> None:
    """A killed JVM is one sentence with the way on; as part of a stop it is no error."""
    stop = threading.Event()

    with (
        pytest.raises(UnknownSparkError, match=r"JVM has ended .* goes on where it was"),
        ended_with_spark(stop),
    ):
        raise error
    stop.set()
    with ended_with_spark(stop):
        raise error


def test_a_jvm_that_is_killed_while_it_starts_is_one_sentence(tmp_path: Path) -> None:
    """What PySpark raises then is not shown as a Python error."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nkill -9 $$\n")
    java.chmod(0o755)
    start = "from spark_consumers.session import build_session; build_session('killed', 'local[1]')"

    ended = subprocess.run(
        [sys.executable, "-c", start],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        timeout=START_S_MAX,
    )

    assert "UnknownSparkError: Spark did not start ([JAVA_GATEWAY_EXITED]" in ended.stderr
    assert ended.stderr.rstrip().endswith("start again: nothing is lost")
