"""`shardstream status`: what readers can have, told from Kafka alone."""

import json
import signal
import time
from pathlib import Path
from typing import Any

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.shardstream.command_line import WAIT_S_MAX, background, run, streaming, write_settings


def status(config: Path, keyspace: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the view."""
    done = run("status", keyspace, "--json", "--max-behind-s", "20", "--config", str(config))
    assert done.returncode in {0, 1}, done.stderr
    return done.returncode, json.loads(done.stdout)


def wait_for_status(config: Path, keyspace: str, code: int) -> dict[str, Any]:
    """Look again until the command ends with this exit status."""
    deadline = time.monotonic() + WAIT_S_MAX
    while (found := status(config, keyspace))[0] != code:
        assert time.monotonic() < deadline, found
    return found[1]


def test_a_killed_producer_is_named(
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
    mysql_b: DatabaseFixture,
) -> None:
    """All is well while both producers run; then the dead one's shard is said to hold readers."""
    shards = {"-80": mysql_a, "80-": mysql_b}
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, shards)
    produce = ("produce", keyspace, "--json", "--every", "1", "--config", str(config))
    with (
        background(tmp_path, "a", *produce, "-80") as first,
        background(tmp_path, "b", *produce, "80-") as second,
    ):
        first.wait_for("streaming", streaming)
        second.wait_for("streaming", streaming)
        well = wait_for_status(config, keyspace, 0)
        run("tail", keyspace, "--until-idle", "2", "--name", "ops", "--config", str(config))
        second.process.send_signal(signal.SIGKILL)
        second.process.wait(WAIT_S_MAX)
        held = wait_for_status(config, keyspace, 1)
        text = run("status", keyspace, "--config", str(config))

    assert [shard["state"] for shard in well["shards"]] == ["serving", "serving"]
    assert well["shards"][0]["server"]
    assert held["held_by"] == ["80-"]
    # The producers have made the topic in which readers report.
    assert [reader["name"] for reader in held["readers"]] == ["ops"]
    assert text.returncode in {0, 1}, text.stderr
    assert f"{keyspace}: " in text.stdout
    assert "silent" in text.stdout


def test_a_keyspace_without_topics_is_named(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, mysql_a: DatabaseFixture
) -> None:
    """Before the first producer there is nothing to look at, and that is said in one line."""
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})

    done = run("status", "--config", str(config))

    assert done.returncode == 2
    assert keyspace in done.stderr
    assert "Traceback" not in done.stderr
