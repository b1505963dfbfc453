"""Limits of the machine: file handles, memory, folders that cannot be written."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.faults.disks import small_disk
from tests.faults.processes import sizes_kb
from tests.faults.sessions import end_sessions
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    check_log,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.program_starter import StartedProgram
from tests.shardstream.command_line import Background, background, run, streaming, write_settings

SPARE_BYTES = 48 * 1024 * 1024
ROW_BYTES = 80_000_000


@contextmanager
def limited(process: StartedProgram, limit: int, soft: int) -> Iterator[None]:
    """A lower limit of a process for the duration of a block."""
    before = resource.prlimit(process.pid, limit)
    resource.prlimit(process.pid, limit, (soft, before[1]))
    try:
        yield
    finally:
        if process.poll() is None:
            resource.prlimit(process.pid, limit, before)


def rows_of(producer: Background) -> int:
    """The rows that the producer has reported."""
    return max((line["rows_total"] for line in producer.lines), default=0)


def produce(keyspace: str, config: Path) -> list[str]:
    """The arguments of a producer that reports every second."""
    options = ["--from", "latest", "--json", "--every", "1", "--config", str(config)]
    return ["produce", keyspace, "-", *options]


def test_too_few_file_handles_are_waited_out_by_name(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str, tmp_path: Path
) -> None:
    """F40: a producer that may open no more files says so, and goes on once it may."""
    name = mysql_a.new_database()
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})
    statements(mysql_a, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    with background(tmp_path, "produce", *produce(keyspace, config)) as producer:
        producer.wait_for("streaming", streaming)
        # Those below the limit that are open now are closed, and opened again, by the reconnect.
        with limited(producer.process, resource.RLIMIT_NOFILE, 3):
            end_sessions(mysql_a, mysql_a.user)
            producer.wait_for(
                "the reason",
                lambda p: any("Too many open files" in line["note"] for line in p.lines),
            )
        statements(mysql_a, f"INSERT INTO {name}.t VALUES (1)")
        producer.wait_for("the row", lambda p: rows_of(p) > 0)


@pytest.mark.full
def test_too_little_memory_ends_in_one_sentence_and_loses_nothing(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str, tmp_path: Path
) -> None:
    """F40: a row that memory does not suffice for ends the producer; with more it goes through."""
    database = start_mysql(("--max-allowed-packet=256M",))
    name = database.new_database()
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": database})
    statements(database, f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v LONGTEXT)")
    with background(tmp_path, "produce", *produce(keyspace, config)) as producer:
        producer.wait_for("streaming", streaming)
        statements(database, f"INSERT INTO {name}.t VALUES (1, 'x')")
        producer.wait_for("a row", lambda p: rows_of(p) > 0)
        size = sizes_kb(producer.process.pid)["VmSize"] * 1024 + SPARE_BYTES
        with limited(producer.process, resource.RLIMIT_AS, size):
            statements(database, f"INSERT INTO {name}.t VALUES (2, REPEAT('y', {ROW_BYTES}))")
            status = producer.wait_end()
    settings = settings_of(database, kafka, keyspace)
    with producing(settings):
        wait_caught_up(settings)
    log = read_log(settings)

    assert status == 1
    assert "has reached its memory limit" in producer.errors
    assert "Traceback" not in producer.errors
    check_log(log)
    assert [len(str(e.after["v"])) for e in log.events if e.after] == [1, ROW_BYTES]


def test_folders_that_cannot_be_written_are_named(
    kafka: KafkaCluster, keyspace: str, mysql_a: DatabaseFixture, tmp_path: Path
) -> None:
    """F40: a change log, or servers, on a read-only disk are refused before anything starts."""
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})
    with small_disk(tmp_path / "disk", 1 << 20, read_only=True) as disk:
        for where in (["--target", str(disk / "log")], ["--checkpoint", str(disk / "point")]):
            target = [] if where[0] == "--target" else ["--target", str(tmp_path / "log")]
            refused = run("changelog", keyspace, *where, *target, "--config", str(config))
            assert refused.returncode == 2
            assert f"{disk} is read-only" in refused.stderr
        failed = run("local", "up", "--folder", str(disk / "stack"))

    assert failed.returncode != 0
    assert "Traceback" not in failed.stderr
    assert "ead-only" in failed.stderr
