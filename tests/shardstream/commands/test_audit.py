"""`shardstream audit`: what commands leave behind of who changed a keyspace, when, why and how."""

import getpass
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.cimpl import NewTopic

from event_token.errors import Halt, UsageError
from shardstream.local.kafka_cluster import KafkaCluster
from tests.shardstream.command_line import run
from tests.topics.shard_writer import provision
from topics.errors import CorruptRecord
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.provisioning import delete_topics, provision_shard
from topics.kafka.topic_settings import TopicSettings
from topics.keyspace.audit import (
    REASON_CHARS_MAX,
    Act,
    decode_act,
    encode_act,
    operator,
    read_acts,
    recorded_act,
)
from topics.keyspace.topology import read_topology
from topics.names import ShardTopics, audit_topic

MOVED = ("--shard=-80", "--shard=80-c0", "--shard=c0-", "--switched-at", "2026-01-31T12:00:00Z")
CHOSEN = TopicSettings()


@pytest.fixture
def config(kafka: KafkaCluster, keyspace: str) -> ClientConfig:
    """Client settings of the broker, on which the keyspace has two shards and topics for more."""
    found = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    provision(found, keyspace, ["-80", "80-"])
    for shard in ("80-c0", "c0-"):
        provision_shard(found, ShardTopics(keyspace, shard))
    return found


@pytest.fixture
def settings(tmp_path: Path, config: ClientConfig) -> tuple[str, str]:
    """The option that names a settings file."""
    path = tmp_path / "shardstream.toml"
    path.write_text(f'[kafka]\nbootstrap_servers = "{config.brokers}"\n')
    return "--config", str(path)


def shown(keyspace: str, settings: tuple[str, str]) -> list[dict[str, Any]]:
    """What `audit --json` prints."""
    done = run("audit", keyspace, "--json", *settings)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.full
def test_who_changed_what_and_why(
    config: ClientConfig, keyspace: str, settings: tuple[str, str]
) -> None:
    """Each act in its order, with its outcome; the topology itself names who wrote it last."""
    began_us = time.time_ns() // 1_000
    none_yet = shown(keyspace, settings)
    declare = ("topology", "set", keyspace, *MOVED, *settings)
    done = run(*declare, "--id", "moved", "--reason", "ticket [17]")
    back = ("--shard=-80", "--shard=80-", "--id", "back", "--reason", "again")
    refused = run("topology", "set", keyspace, *back, *settings)
    reset = run("topics", "reset", keyspace, "-80", "--reason", "x", "--yes", *settings)
    table = run("audit", keyspace, *settings)
    topology = run("topology", "show", keyspace, *settings)

    assert none_yet == []
    assert done.returncode == 0, done.stderr
    assert refused.returncode == 2
    assert reset.returncode == 0, reset.stderr
    first, second, third = shown(keyspace, settings)
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    assert (first["command"], first["reason"], first["outcome"]) == (
        "topology set",
        "ticket [17]",
        "done",
    )
    assert first["subject"].startswith("moved: serving -80, 80-c0, c0- since 2026-01-31T12:00")
    assert first["by"] == by == operator()
    assert began_us <= first["at_us"] <= second["at_us"] <= third["at_us"]
    assert (second["reason"], third["command"]) == ("again", "topics reset")
    assert second["outcome"].startswith("failed: ")
    assert second["outcome"].removeprefix("failed: ") in refused.stderr.replace("\n", " ")
    # A narrow terminal wraps the cells.
    assert table.stdout.index("topology") < table.stdout.index("topics")
    assert "[17]" in table.stdout
    written = read_topology(config, keyspace)
    assert written is not None
    assert written.author is not None
    assert (written.author.by, written.author.reason) == (by, "ticket [17]")
    assert f"last changed by {by}" in topology.stdout
    assert [each["id"] for each in shown(keyspace, settings)] == [
        act.id for act in read_acts(config, keyspace)
    ]


def test_a_topic_that_cannot_be_written_stops_the_act(
    config: ClientConfig, keyspace: str, settings: tuple[str, str]
) -> None:
    """Nothing is done, and the error says why and where."""
    wrong = {"max.message.bytes": "1000000"}
    topic, admin = NewTopic(audit_topic(keyspace), 1, 1, config=wrong), open_admin(config)
    admin.create_topics([topic])[topic.topic].result()
    before = read_topology(config, keyspace)

    refused = run("topology", "set", keyspace, *MOVED, "--id", "moved", *settings)

    assert refused.returncode == 2
    assert "nothing was done" in refused.stderr
    assert f"{keyspace}.audit: max.message.bytes is 1000000" in " ".join(refused.stderr.split())
    assert read_topology(config, keyspace) == before


def test_a_mistyped_keyspace_gets_no_topic(
    config: ClientConfig, keyspace: str, settings: tuple[str, str]
) -> None:
    """A command on a keyspace that does not exist creates nothing."""
    refused = run("readers", "forget", f"{keyspace}x", "billing", *settings)

    assert refused.returncode == 2
    assert audit_topic(f"{keyspace}x") not in open_admin(config).list_topics().topics


def test_a_long_reason_is_refused(config: ClientConfig, keyspace: str) -> None:
    """It stands with each record, so it is bounded; the block does not run."""
    act = Act("a command", "a subject", "x" * (REASON_CHARS_MAX + 1))
    with (
        pytest.raises(UsageError, match="at most 1000 characters"),
        recorded_act(config, keyspace, CHOSEN, act),
    ):
        pytest.fail("it ran")


@pytest.mark.full
def test_an_outcome_that_cannot_be_written(
    config: ClientConfig, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An act that was done says that its record lacks it; one that failed keeps its own error."""
    monkeypatch.setattr("topics.kafka.client.REQUEST_TIMEOUT_S", 2)
    act = Act("a command", "a subject")
    with (
        pytest.raises(Halt, match=f"a command was done, but {keyspace}.audit has only that"),
        recorded_act(config, keyspace, CHOSEN, act),
    ):
        delete_topics(config, [audit_topic(keyspace)])

    def fail() -> None:
        delete_topics(config, [audit_topic(keyspace)])
        raise UsageError("its own")

    with pytest.raises(UsageError, match="its own"), recorded_act(config, keyspace, CHOSEN, act):
        fail()


def test_an_act_that_is_killed_has_no_outcome(config: ClientConfig, keyspace: str) -> None:
    """What neither ended nor failed is not called done."""
    act = Act("a command", "a subject")
    with pytest.raises(KeyboardInterrupt), recorded_act(config, keyspace, CHOSEN, act):
        raise KeyboardInterrupt

    assert [each.outcome for each in read_acts(config, keyspace)] == [""]


@pytest.mark.parametrize("missing", ["by", "at_us", "id", "outcome"])
def test_an_incomplete_record_is_not_filled_in(missing: str) -> None:
    """Least of all by who reads it."""
    fields = json.loads(encode_act(Act("a command", "a subject")))
    del fields[missing]

    with pytest.raises(CorruptRecord, match="here: not an audit record"):
        decode_act(json.dumps(fields).encode(), "here")


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container under a foreign id the id stands for the name; variables do not matter."""
    monkeypatch.setenv("LOGNAME", "somebody-else")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)

    assert operator() == f"4000000@{socket.gethostname()}"
