import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from event_token import StreamPosition
from event_token.errors import UsageError
from shardstream.local.processes import with_parent_guard
from sinks.errors import ChangeLogConflict, TargetConflict
from sinks.lake.change_log.delta_commit import TABLE_SETTINGS, ensure_table
from sinks.lake.change_log.reading import check_changelog, replay_changelog
from sinks.lake.delta.log import POSITION_KEY
from sinks.resume import Origin
from spark_consumers import change_log_job
from spark_consumers.change_log import run_changelog
from spark_consumers.session import JVM_STACK
from tests.java_options import options_of_executors
from tests.sinks.lake.change_log.log_rows import SCHEMA
from tests.spark_consumers.queries import forget_last_commit, rows_of_batches, run_now
from tests.spark_consumers.shop import SHARDS, Shop

JOB_S_MAX = 240.0
SPARK_HOME = str(Path(pyspark.__file__).parent)
PLAIN = (sys.executable, "-m", "spark_consumers.change_log_job")


def counts(folder: Path) -> tuple[int, int, int, int]:
    """Return the numbers of changes, lost, repeated and out of order."""
    report = check_changelog(str(folder / "log"))
    return report.changes, report.lost, report.repeated, report.out_of_order


def spark_submit(master: str) -> list[str]:
    """The command that submits the change log's job to a cluster."""
    executors = f"spark.executor.extraJavaOptions={options_of_executors()}"
    options = ["--master", master, "--driver-java-options", JVM_STACK, "--conf", executors]
    return [f"{SPARK_HOME}/bin/spark-submit", *options, change_log_job.__file__]


def job(
    shop: Shop, folder: Path, *more: str, starter: Sequence[str] = PLAIN
) -> "subprocess.Popen[str]":
    """Start the change log as a separate process, as a user would."""
    options = [f"--option={name}={value}" for name, value in shop.options().items()]
    command = [*starter, shop.keyspace]
    command += [str(folder / "log"), "--checkpoint", str(folder / "checkpoint")]
    with (folder / "job.log").open("a") as log:
        return subprocess.Popen(
            with_parent_guard([*command, *options, *more]),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": str(Path.cwd()),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_HOME": SPARK_HOME,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )


def kill_group(process: "subprocess.Popen[str]") -> None:
    """Kill driver, JVM and Python workers at once."""
    with suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_every_change_is_there_once_whatever_is_lost(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """F30: Deaths in batches, a lost table and a lost checkpoint lose and repeat nothing.

    A first batch from `latest` that runs again begins where it began, and one that the table has
    writes nothing. A table that is gone is not begun in the middle of the stream; a new checkpoint
    is refused, and the fix that the error names works. The last commit has the position.
    """
    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    shop.write(10)
    run_now(spark, shop, tmp_path, start="latest")
    forget_last_commit(checkpoint)
    shop.write(30)
    first = run_now(spark, shop, tmp_path, start="latest", maxRowsPerBatch="25")
    bounded = rows_of_batches(checkpoint)

    forget_last_commit(checkpoint)
    version = DeltaTable(log).version()
    shop.write(20)
    second = run_now(spark, shop, tmp_path)

    assert (first.rows, second.rows) == (60, 100)
    assert sum(bounded) == 60
    assert max(bounded) <= 25
    assert DeltaTable(log).version() == version + 1
    assert counts(tmp_path) == (100, 0, 0, 0)
    orders = replay_changelog(str(log))["shop", "orders"].by_key()
    assert Counter(order.shard for order in orders.values()) == dict.fromkeys(SHARDS, 50)
    assert DeltaTable(log).metadata().configuration == (
        TABLE_SETTINGS | Origin(shop.keyspace).properties()
    )
    position = DeltaTable(log).history(1)[0][POSITION_KEY]
    end = StreamPosition.from_string(position)
    assert end.frontier_us == second.frontier_us
    assert {shard: at.seq for shard, at in end.shards.items()} == dict.fromkeys(SHARDS, 60)

    shop.write(10)
    log.rename(tmp_path / "moved")
    with pytest.raises(ChangeLogConflict, match="it was removed or moved"):
        run_now(spark, shop, tmp_path)
    (tmp_path / "moved").rename(log)
    checkpoint.rename(tmp_path / "lost")
    with pytest.raises(ChangeLogConflict, match="its checkpoint was lost") as stopped:
        run_now(spark, shop, tmp_path)
    checkpoint.rename(tmp_path / "bad")
    run_now(spark, shop, tmp_path, start=position)

    assert str(stopped.value).endswith(f"start from (--from) {position}")
    assert counts(tmp_path) == (120, 0, 0, 0)


def test_a_log_of_another_keyspace_is_refused(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """With a new checkpoint too, whose seqs would follow on: nothing is written."""
    ensure_table(str(tmp_path / "log"), SCHEMA, {}, Origin("users"))

    with pytest.raises(TargetConflict, match=rf"begun with keyspace users.* has {shop.keyspace}:"):
        run_now(spark, shop, tmp_path)
    assert DeltaTable(tmp_path / "log").version() == 0


@pytest.mark.full
def test_killed_at_a_random_moment(shop: Shop, tmp_path: Path) -> None:
    """F30: After kill -9 of driver, JVMs and workers under load each change is in the table once.

    First under spark-submit, with executors in separate JVMs; then alone, until SIGTERM ends it.
    """
    writing = threading.Event()

    def write() -> None:
        # Slow enough to leave the processor to Spark, which is what is tested.
        while not writing.wait(0.2):
            shop.write(20)

    def lines_of(process: "subprocess.Popen[str]") -> Iterator[int]:
        """The rows that each line of progress has."""
        assert process.stdout is not None
        for line in process.stdout:
            assert line.startswith("batch"), line
            yield int(line.split()[2])
        raise AssertionError((tmp_path / "job.log").read_text()[-3000:])

    writer = threading.Thread(target=write)
    writer.start()
    cluster = job(shop, tmp_path, starter=spark_submit("local-cluster[2,1,1024]"))
    try:
        assert next(rows for rows in lines_of(cluster) if rows)
        time.sleep(random.Random(7).uniform(0.5, 3.0))
    finally:
        kill_group(cluster)
        writing.set()
        writer.join()
    shop.write(10)
    written = sum(writer.seq for writer in shop.writers.values())

    alone = job(shop, tmp_path, "--master", "local[2]")
    try:
        assert next(rows for rows in lines_of(alone) if rows == written)
        # A unit of systemd is ended by SIGTERM to all of its processes, the JVM among them.
        os.killpg(alone.pid, signal.SIGTERM)
        assert alone.wait(JOB_S_MAX) == 0, (tmp_path / "job.log").read_text()[-3000:]
    finally:
        kill_group(alone)

    assert counts(tmp_path) == (written, 0, 0, 0)


class _Stop(threading.Event):
    """A stop that remembers the threads that set it."""

    def __init__(self) -> None:
        super().__init__()
        self.setters: list[threading.Thread] = []

    def set(self) -> None:
        self.setters.append(threading.current_thread())
        super().set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_does_not_stop_the_job_inside_its_handler(number: signal.Signals) -> None:
    """C2: a signal that comes while the job waits for the stop does not wait for that wait."""
    stop = _Stop()
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        change_log_job.stop_on_signals(stop)
        signal.raise_signal(number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)

    assert stop.wait(JOB_S_MAX)
    assert threading.main_thread() not in stop.setters


@pytest.mark.full
def test_missing_keyspace_is_named(spark: SparkSession, kafka: Any, tmp_path: Path) -> None:
    """An unknown keyspace is a usage error, not a Spark stack trace."""
    with pytest.raises(UsageError, match="nothere"):
        run_changelog(
            spark,
            "nothere",
            str(tmp_path / "log"),
            str(tmp_path / "checkpoint"),
            {"kafka.bootstrap.servers": kafka.bootstrap_servers},
            trigger="availableNow",
        )
