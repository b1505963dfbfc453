import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
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
from spark_consumers.change_log import job as change_log_job
from spark_consumers.change_log.check import check_changelog
from spark_consumers.change_log.delta_commit import POSITION_KEY, TABLE_SETTINGS, ensure_table
from spark_consumers.change_log.replay import replay_changelog
from spark_consumers.change_log.run import ChangeLogProgress, run_changelog
from spark_consumers.change_log.state import state_as_of
from spark_consumers.errors import ChangeLogConflict, TargetConflict
from spark_consumers.session import JVM_STACK
from spark_consumers.sink_query.origin import Origin
from tests.java_options import options_of_executors
from tests.spark_consumers.change_log.log_rows import SCHEMA
from tests.spark_consumers.queries import run_now
from tests.spark_consumers.shop import SHARDS, Shop

JOB_S_MAX = 240.0
SPARK_HOME = str(Path(pyspark.__file__).parent)
PLAIN = (sys.executable, "-m", "spark_consumers.change_log.job")


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


def test_every_change_once_with_its_position(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """After a restart each change is in the table once, and the last commit has the position."""
    shop.write(30)
    first = run_now(spark, shop, tmp_path, maxRowsPerBatch="25")
    shop.write(20)
    second = run_now(spark, shop, tmp_path)

    assert (first.rows, second.rows) == (60, 100)
    assert counts(tmp_path) == (100, 0, 0, 0)
    orders = replay_changelog(str(tmp_path / "log"))["shop", "orders"].by_key()
    assert Counter(order.shard for order in orders.values()) == dict.fromkeys(SHARDS, 50)
    kept = DeltaTable(tmp_path / "log").metadata().configuration
    assert kept == TABLE_SETTINGS | Origin(shop.keyspace).properties()
    commit = DeltaTable(tmp_path / "log").history(1)[0]
    end = StreamPosition.from_string(commit[POSITION_KEY])
    assert end.frontier_us == second.frontier_us
    assert {shard: at.seq for shard, at in end.shards.items()} == dict.fromkeys(SHARDS, 50)


def test_a_log_of_another_keyspace_is_refused(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """With a new checkpoint too, whose seqs would follow on: nothing is written."""
    ensure_table(str(tmp_path / "log"), SCHEMA, {}, Origin("users"))

    with pytest.raises(TargetConflict, match=rf"begun with keyspace users.* has {shop.keyspace}:"):
        run_now(spark, shop, tmp_path)
    assert DeltaTable(tmp_path / "log").version() == 0


def test_death_between_both_commits_repeats_nothing(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """A batch that runs again after a crash between both commits writes nothing."""
    shop.write(20)
    run_now(spark, shop, tmp_path)
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    # What a death at that moment leaves on the disk.
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()
    version = DeltaTable(tmp_path / "log").version()
    replayed = run_now(spark, shop, tmp_path)
    version_after = DeltaTable(tmp_path / "log").version()
    shop.write(10)
    run_now(spark, shop, tmp_path)

    assert replayed.rows == 40
    assert version_after == version
    assert counts(tmp_path) == (60, 0, 0, 0)


def test_lost_checkpoint_stops_instead_of_repeating(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """A new checkpoint on an old table is refused, and the fix that the error names works."""
    shop.write(10)
    run_now(spark, shop, tmp_path)
    position = DeltaTable(tmp_path / "log").history(1)[0][POSITION_KEY]
    (tmp_path / "checkpoint").rename(tmp_path / "lost")
    shop.write(10)

    with pytest.raises(ChangeLogConflict, match="its checkpoint was lost") as stopped:
        run_now(spark, shop, tmp_path)
    (tmp_path / "checkpoint").rename(tmp_path / "bad")
    run_now(spark, shop, tmp_path, start=position)

    assert str(stopped.value).endswith(f"start from (--from) {position}")
    assert counts(tmp_path) == (40, 0, 0, 0)


def test_a_checkpoint_does_not_outlive_its_table(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """F30: A table that was removed is not begun again in the middle of the stream."""
    shop.write(10)
    run_now(spark, shop, tmp_path)
    (tmp_path / "log").rename(tmp_path / "moved")
    shop.write(10)

    with pytest.raises(ChangeLogConflict, match="it was removed or moved"):
        run_now(spark, shop, tmp_path)
    (tmp_path / "moved").rename(tmp_path / "log")
    run_now(spark, shop, tmp_path)

    assert counts(tmp_path) == (40, 0, 0, 0)


def test_a_first_batch_that_runs_again_begins_where_it_began(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """F30: A change log from `latest` that died in its first batch goes on and lacks nothing."""
    shop.write(10)
    run_now(spark, shop, tmp_path, start="latest")
    # What a death in the first batch leaves on the disk.
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    shop.write(10)

    end = run_now(spark, shop, tmp_path, start="latest")

    assert end.rows == 20
    assert counts(tmp_path) == (20, 0, 0, 0)


def test_stop_is_prompt_and_clean(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """A change log reports its progress and the shard it waits for, and stops when asked."""
    shop.write(10)
    seen: list[ChangeLogProgress] = []
    stop = threading.Event()

    def on_progress(progress: ChangeLogProgress) -> None:
        seen.append(progress)
        # Before the progress of the shards is read, it waits for that.
        if progress.rows >= 20 and "is at head" in progress.waiting:
            stop.set()

    end = run_changelog(
        spark,
        shop.keyspace,
        str(tmp_path / "log"),
        str(tmp_path / "checkpoint"),
        shop.options(),
        on_progress=on_progress,
        stop=stop,
    )

    assert end.rows == 20
    assert end.frontier_us == shop.now_us
    assert "is at head" in end.waiting
    assert counts(tmp_path) == (20, 0, 0, 0)
    assert spark.streams.active == []


def test_state_query_in_spark(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """The state query in Spark returns the same rows as a replay."""
    shop.write(5)
    run_now(spark, shop, tmp_path)
    files = DeltaTable(tmp_path / "log").file_uris()

    rows = state_as_of(spark.read.parquet(*files), shop.now_us).collect()

    [(name, orders)] = replay_changelog(str(tmp_path / "log")).items()
    assert {(row.database, row.table_name) for row in rows} == {name}
    found = {row.key_text: (row.row, row.shard, row.seq) for row in rows}
    assert found == {k: (v.row, v.shard, v.seq) for k, v in orders.by_key().items()}


def test_killed_at_random_moments(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """F30: After kill -9 of driver, JVM and workers under load each change is in the table once."""
    random_moment = random.Random(7)
    writing = threading.Event()

    def write() -> None:
        # Slow enough to leave the processor to Spark, which is what is tested.
        while not writing.wait(0.2):
            shop.write(20)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        # A unit of systemd is ended by SIGTERM to all of its processes, the JVM among them.
        for kill, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)):
            process = job(shop, tmp_path, "--master", "local[2]")
            try:
                assert process.stdout is not None
                line = process.stdout.readline()  # the first look: Spark runs
                assert line.startswith("batch"), (tmp_path / "job.log").read_text()[-3000:]
                time.sleep(random_moment.uniform(0.5, 3.0))
                os.killpg(process.pid, kill)
                assert process.wait(JOB_S_MAX) == status, (tmp_path / "job.log").read_text()[-3000:]
            finally:
                kill_group(process)
    finally:
        writing.set()
        writer.join()

    run_now(spark, shop, tmp_path)

    written = sum(writer.seq for writer in shop.writers.values())
    assert counts(tmp_path) == (written, 0, 0, 0)


def test_executors_in_jvms_of_their_own(shop: Shop, tmp_path: Path) -> None:
    """Under spark-submit with executors in separate JVMs each change is there once."""
    shop.write(200, chunk=50)

    starter = spark_submit("local-cluster[2,1,1024]")
    process = job(shop, tmp_path, "--available-now", starter=starter)
    try:
        process.communicate(timeout=JOB_S_MAX)
    finally:
        if process.poll() is None:
            kill_group(process)

    assert process.returncode == 0, (tmp_path / "job.log").read_text()[-3000:]
    assert counts(tmp_path) == (400, 0, 0, 0)


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
