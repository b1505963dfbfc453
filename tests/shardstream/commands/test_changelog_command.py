"""`shardstream changelog`: how it starts and how it ends, with a real Spark."""

import os
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.processes import with_parent_guard
from tests.shardstream.command_line import command, run, write_settings
from tests.sinks.lake.change_log.log_rows import change, commit_rows
from tests.spark_consumers.shop import NO_DATABASE, SHARDS, Shop
from tests.waiting import WAIT_S


@pytest.fixture
def config(tmp_path: Path, kafka: KafkaCluster, keyspace: str) -> str:
    """Settings of a keyspace of two shards."""
    shards = dict.fromkeys(SHARDS, NO_DATABASE)
    return str(write_settings(tmp_path, kafka.bootstrap_servers, keyspace, shards))


@pytest.mark.full
def test_bad_input_is_refused_before_spark_starts(
    tmp_path: Path, config: str, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C2: an unknown keyspace or start is one sentence and status 2, even without Java."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    arguments = ("changelog", keyspace, "--target", str(tmp_path / "log"), "--config", config)

    for more, said in (
        ((), "no producer has run there yet"),
        (("--from", "20260131"), "digits alone"),
    ):
        done = run(*arguments, *more)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert said in done.stderr


@pytest.mark.full
def test_signals_end_the_command_in_order(
    tmp_path: Path, config: str, kafka: KafkaCluster, keyspace: str
) -> None:
    """C2: Ctrl-C, which reaches Spark's processes too, and SIGTERM end it without a traceback.

    One comes right behind the other: the default of either would end it in another way.
    """
    with closing(Shop(kafka.bootstrap_servers, keyspace)) as shop:
        shop.write(10)
    target = ["--target", str(tmp_path / "log"), "--json", "--every", "1", "--config", config]
    errors = tmp_path / "errors"
    with errors.open("w") as err:
        process = subprocess.Popen(
            with_parent_guard(command("changelog", keyspace, *target)),
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        assert any('"rows": 20' in line for line in process.stdout), errors.read_text()
        os.killpg(process.pid, signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        status = process.wait(WAIT_S)
    finally:
        process.kill()
        process.wait()

    text = errors.read_text()
    assert status == 0, text
    assert "Traceback" not in text, text
    assert "KeyboardInterrupt" not in text, text


def test_files_that_no_version_has_go_after_a_week(tmp_path: Path) -> None:
    """Vacuum removes old files of failed tasks, and neither young ones nor those of the table."""
    log = tmp_path / "log"
    commit_rows(str(log), [change(1)], 0)
    live = set(log.glob("*.parquet"))
    old, young = log / "part-old.zstd.parquet", log / "part-young.zstd.parquet"
    for file in (old, young):
        file.write_bytes(b"of a task that failed")
    for file in (*live, old):
        os.utime(file, (0, 0))

    dry = run("changelog", "vacuum", str(log), "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, f"{log}: 1 files would be removed\n")
    assert set(log.glob("*.parquet")) == {*live, old, young}
    assert run("changelog", "vacuum", str(log)).stdout == f"{log}: 1 files removed\n"
    assert set(log.glob("*.parquet")) == {*live, young}


@pytest.mark.parametrize("command", ["vacuum", "check"])
def test_another_delta_table_is_refused(tmp_path: Path, command: str) -> None:
    """Its unused files are not ours to remove; in a lake of `state` they may be in use."""
    other = tmp_path / "orders"
    write_deltalake(other, pa.table({"id": [1], "seq": [7]}))
    (other / "part-old.parquet").write_bytes(b"of somebody else")
    os.utime(other / "part-old.parquet", (0, 0))

    done = run("changelog", command, str(other))

    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "no change log: it has no column offset, shard, timestamp_us" in done.stderr
    assert (other / "part-old.parquet").exists()


def test_a_check_counts_what_is_lost(tmp_path: Path) -> None:
    """The status is 0 for a sound log, and 1 for one that lacks a change, in one sentence."""
    log = str(tmp_path / "log")
    commit_rows(log, [change(1), change(2)], 0)
    sound = run("changelog", "check", log)
    commit_rows(log, [change(4)], 1, contiguous=False)
    lacking = run("changelog", "check", log)

    assert (sound.returncode, sound.stdout) == (0, f"{log}: 2 changes\n")
    assert lacking.returncode == 1
    assert "1 changes are lost, 0 repeated and 0 out of order" in lacking.stderr
    assert "Traceback" not in lacking.stderr
