"""`shardstream topology`: what it shows and declares, and what `tail` then reads."""

import json
from pathlib import Path

import pytest

from shardstream import read_topology
from shardstream.commands.tail import event_line
from shardstream.local.kafka_cluster import KafkaCluster
from tests.shardstream.command_line import run
from tests.topics.shard_writer import START_US, Reshard, ShardWriter, provision
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_shard
from topics.names import ShardTopics
from topics.progress.record import MarkKind

pytestmark = pytest.mark.full

SPLIT = Reshard("r1", ("80-",), ("80-c0", "c0-"), 40_000)


def test_declare_show_and_read(tmp_path: Path, kafka: KafkaCluster, keyspace: str) -> None:
    """C9: shards are declared once all of them have topics, and the shard map shows which serve.

    Marks in a log are readable in `tail`.
    """
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    provision(config, keyspace, ["-80", "80-"])
    writer = ShardWriter(config, keyspace, "80-")
    writer.commit((0, 1))
    writer.mark(1_000, MarkKind.END, SPLIT)
    writer.mark(2_000, MarkKind.CANCEL, SPLIT)
    writer.heartbeat(60_000_000)
    writer.close()
    lines = [event_line(event).plain for event in writer.written]
    assert lines[1].endswith("JOURNAL END of reshard r1: 80- -> 80-c0, c0-")
    assert lines[2].endswith("JOURNAL CANCELLED of reshard r1: 80- -> 80-c0, c0-")
    settings = tmp_path / "shardstream.toml"
    settings.write_text(f'[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\n')
    shards = [f"--shard={shard}" for shard in ("-80", "80-c0", "c0-")]
    declare = ["topology", "set", keyspace, *shards, "--id", "moved", "--config", str(settings)]
    declare += ["--switched-at", "2023-11-14T22:13:25Z"]

    refused = run(*declare)
    assert refused.returncode == 2
    assert f"{keyspace}.80-c0.progress" in refused.stderr
    for shard in SPLIT.targets:
        provision_shard(config, ShardTopics(keyspace, shard))
    done = run(*declare)
    assert "epoch 1: serving -80, 80-c0, c0-" in done.stdout, done.stderr

    shown = run("topology", "show", keyspace, "--json", "--config", str(settings))
    record = json.loads(shown.stdout)
    (reshard,) = record["reshards"]
    assert reshard == {
        "id": "moved",
        "sources": ["80-"],
        "targets": ["80-c0", "c0-"],
        "state": "DECLARED",
        "hop_time_us": START_US + 5_000_000,
        "decision": None,
    }
    serving = [shard["name"] for shard in record["shards"] if shard["state"] == "SERVING"]
    topology = read_topology(config, keyspace)
    assert topology is not None
    assert serving == [shard.name for shard in topology.serving()] == ["-80", "80-c0", "c0-"]
    table = run("topology", "show", keyspace, "--config", str(settings)).stdout
    assert "RETIRED" in table
    assert "2023-11-14T22:13:25.000" in table
