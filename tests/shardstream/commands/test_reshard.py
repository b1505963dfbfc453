"""Commands of a reshard that is over."""

import functools
from pathlib import Path

import pytest

from event_token.errors import UsageError
from shardstream.commands.reshard import run, verify
from shardstream.local.kafka_cluster import KafkaCluster
from tests.shardstream.command_line import write_settings
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_keyspace
from topics.keyspace.topology import (
    ReshardEntry,
    ReshardState,
    ShardEntry,
    Topology,
    update_topology,
)


def with_entry(keyspace: str, entry: ReshardEntry, _before: Topology | None) -> Topology:
    """A topology with one reshard."""
    return Topology(keyspace, 0, (ShardEntry("-"),), reshards=(entry,))


def test_a_reshard_that_is_over_is_neither_verified_nor_filled(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str
) -> None:
    """Rows that differ rightly are not named as differences, and no rows reach a lost target."""
    path = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {})
    shard = f'[keyspaces.{keyspace}.shards."-"]\nflavor = "mysql"\n'
    nobody = 'servers = [{host = "127.0.0.1", port = 1, user = "u", password_env = "NONE"}]\n'
    path.write_text(path.read_text() + shard + nobody)
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    provision_keyspace(config, keyspace)
    for state in (ReshardState.SWITCHED, ReshardState.CANCELLED):
        entry = ReshardEntry("r1", ("-",), ("-.2",), state.value)
        update_topology(config, keyspace, functools.partial(with_entry, keyspace, entry))
        with pytest.raises(UsageError, match=f"r1 is {state.value}: there is nothing to verify"):
            verify(keyspace, "r1", path)
    with pytest.raises(UsageError, match="r1 is CANCELLED, so its targets are no longer filled"):
        run(keyspace=keyspace, reshard_id="r1", target="-.2", config=path)
