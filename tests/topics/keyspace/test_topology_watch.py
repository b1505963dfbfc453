"""How an application follows the shards of a keyspace."""

from threading import Event

import pytest

from event_token.errors import UsageError
from tests.producers.session.producing import Running
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_keyspace
from topics.keyspace.topology import (
    ShardEntry,
    ShardState,
    Topology,
    update_topology,
    watch_topology,
)

INTERVAL_S = 0.05


def test_each_change_of_the_shards_is_seen(config: ClientConfig, keyspace: str) -> None:
    """C9: a watcher gets the present topology, then that of a switch, until it is stopped."""
    provision_keyspace(config, keyspace)
    before = Topology(keyspace, 0, (ShardEntry("-"),))
    halves = (ShardEntry("-80"), ShardEntry("80-"))
    after = Topology(keyspace, 1, (ShardEntry("-", ShardState.RETIRED), *halves))
    seen: list[Topology] = []

    def watch(stop: Event) -> None:
        topologies = watch_topology(config, keyspace, interval_s=INTERVAL_S, stop=stop)
        seen.extend(topologies)  # each is in the list when it comes

    watcher = Running("the watcher", watch)
    update_topology(config, keyspace, lambda _: before)
    wait_for("the first topology", lambda: len(seen) == 1)
    update_topology(config, keyspace, lambda _: after)
    wait_for("the switch", lambda: len(seen) > 1)
    watcher.end()

    assert seen == [before, after]


def test_a_keyspace_without_producers(config: ClientConfig, keyspace: str) -> None:
    """C9: to watch a keyspace that nobody has produced is refused, as reading it is."""
    with pytest.raises(UsageError, match="does not exist"):
        next(watch_topology(config, keyspace))
