"""Named readers on the command line: `--name`, `status`, `readers`."""

import json
from pathlib import Path

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.shardstream.command_line import run
from tests.topics.shard_writer import ShardWriter, provision
from tests.waiting import WAIT_S
from topics.kafka.client import ClientConfig, Deadline
from topics.kafka.provisioning import provision_readers

pytestmark = pytest.mark.full

FAR_US = 60_000_000


@pytest.fixture
def settings(tmp_path: Path, kafka: KafkaCluster, keyspace: str) -> Path:
    """A settings file with one shard, whose log has three rows."""
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    provision(config, keyspace, ["-"])
    provision_readers(config, keyspace)
    writer = ShardWriter(config, keyspace, "-")
    writer.commit((0, 3))
    writer.heartbeat(FAR_US)
    writer.close()
    path = tmp_path / "shardstream.toml"
    path.write_text(f"""
[kafka]
bootstrap_servers = "{kafka.bootstrap_servers}"
[keyspaces.{keyspace}.shards."-"]
flavor = "mysql"
servers = [{{ host = "db-a", user = "shardstream", password_env = "NONE" }}]
""")
    return path


def test_a_named_tail_is_shown(settings: Path, keyspace: str) -> None:
    """`tail --name` reports; `status` and `readers show` tell its lag, `forget` ends that."""
    config = ("--config", str(settings))

    tail = ("tail", keyspace, "--from", "earliest", "--name", "ops", "--until-idle", "1")
    deadline = Deadline(WAIT_S)
    while len((done := run(*tail, *config)).stdout.splitlines()) < 3:
        assert not deadline.passed, done.stderr  # a slow broker looks idle
    refused = run("readers", "forget", keyspace, "ops", *config)  # while its report is young
    status = run("status", keyspace, "--json", *config)
    [reader] = json.loads(status.stdout)["readers"]
    shown = run("readers", "show", keyspace, "--json", *config)
    text = run("status", keyspace, *config).stdout

    assert len(done.stdout.splitlines()) == 3
    assert (reader["name"], reader["behind_ms"], reader["events_behind"]) == ("ops", 0, {"-": 0})
    assert json.loads(shown.stdout)["position"] == reader["position"]
    assert "events behind" in text
    assert reader["host"] in text
    assert refused.returncode == 2
    assert "it still runs" in refused.stderr
