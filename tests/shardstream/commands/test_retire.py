"""`shardstream topology retire`: when the topics of a shard may go."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from event_token.errors import UsageError
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.shard_removal import check_is_over
from tests.shardstream.command_line import run
from tests.topics.shard_writer import TIMEOUT_S, ShardWriter, filling, serving
from tests.topics.splits import seen, split, topology_after_split
from tests.topics.subscribing import taken
from topics import named_readers
from topics.kafka.client import ClientConfig, Deadline, open_admin
from topics.kafka.provisioning import provision_readers
from topics.keyspace.topology import ReshardState, update_topology
from topics.names import audit_topic
from topics.stream.subscriber import StreamSubscriber


@pytest.fixture
def config(kafka: KafkaCluster) -> ClientConfig:
    """Client settings of the session's broker."""
    return ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def logs(config: ClientConfig, keyspace: str) -> Iterator[tuple[list[ShardWriter], int]]:
    """The logs of a split that is completed, and the number of events that readers get."""
    with ExitStack() as stack:
        writers = stack.enter_context(serving(config, keyspace))
        targets = stack.enter_context(filling(config, keyspace))
        made, events = split(writers, targets)
        update_topology(config, keyspace, lambda _: topology_after_split(keyspace))
        provision_readers(config, keyspace)
        yield made, len(events)


def topics_of(config: ClientConfig, prefix: str) -> set[str]:
    """The topics on the broker whose names begin so."""
    return {name for name in open_admin(config).list_topics().topics if name.startswith(prefix)}


@pytest.mark.full
def test_a_named_reader_keeps_the_topics(
    tmp_path: Path,
    config: ClientConfig,
    keyspace: str,
    logs: tuple[list[ShardWriter], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused by the reader's name until it has hopped; then the topics go, and no others."""
    monkeypatch.setattr(named_readers, "CLOSE_S_MAX", TIMEOUT_S)
    writers, events = logs
    settings = tmp_path / "shardstream.toml"
    settings.write_text(f'[kafka]\nbootstrap_servers = "{config.brokers}"\n')
    retire = ("topology", "retire", keyspace, "80-", "--config", str(settings))

    def read(count: int) -> None:
        with StreamSubscriber(
            keyspace, start="earliest", config=config, name="billing", idle_timeout_s=0.5
        ) as stream:
            taken(stream, count)
            if count == events:
                assert list(stream) == []

    read(3)
    refused = run(*retire, "--yes")
    read(events)
    shown = run(*retire)
    before = topics_of(config, f"{keyspace}.")
    done = run(*retire, "--yes")

    assert refused.returncode == 2
    assert "billing on " in refused.stderr
    assert f"shardstream readers forget {keyspace} NAME" in refused.stderr
    assert (shown.returncode, done.returncode) == (0, 0), shown.stderr + done.stderr
    assert "--yes" in shown.stdout
    gone = {f"{keyspace}.80-", f"{keyspace}.80-.progress", f"{keyspace}.80-.copy"}
    deadline = Deadline(TIMEOUT_S)
    while topics_of(config, f"{keyspace}.") != before - gone | {audit_topic(keyspace)}:
        assert not deadline.passed
        time.sleep(0.05)
    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        left = [writer for writer in writers if writer.shard != "80-"]
        late = sorted(seen([e for w in left[1:] for e in w.written[4:]] + left[0].written))
        assert seen(taken(stream, len(late))) == late


def test_only_a_shard_whose_reshard_is_over_can_go() -> None:
    """What serves, is resharded or does not exist is refused with its state."""
    topology = topology_after_split("commerce")
    [entry] = topology.reshards
    switched = replace(topology, reshards=(replace(entry, state=ReshardState.SWITCHED.value),))

    check_is_over(topology, "80-")
    for shards, shard, why in (
        (topology, "-80", "it is SERVING"),
        (topology, "40-80", "no such shard"),
        (switched, "80-", "run shardstream reshard complete commerce r1 first"),
    ):
        with pytest.raises(UsageError, match=why):
            check_is_over(shards, shard)
