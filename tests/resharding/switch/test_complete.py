"""`complete`, run too early, too late, and beside a later reshard."""

import json
from dataclasses import replace

import pytest

from event_token.errors import UsageError
from resharding.switch.complete import run_complete
from resharding.switch.decision import Action, JournalRow, SwitchStep
from resharding.switch.executor import run_switch
from resharding.switch.shard_writes import ShardWrites
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.resharding.shards import checkpoint_seqs
from tests.resharding.switchable import TARGETS, split
from tests.topics.named_readers.reports import report, write_report
from topics.kafka.provisioning import provision_readers
from topics.keyspace.topology import ReshardEntry, ReshardState, Topology, update_topology
from topics.named_readers import ReadersFeed
from topics.names import ApplierName
from topics.progress.record import JournalKind

pytestmark = pytest.mark.full

FIRST, LAST = TARGETS


class Killed(Exception):  # noqa: N818 - what happened
    """Raised where a kill would end a command."""


def killed_before_the_last_opens(step: SwitchStep) -> None:
    """Kill the switch when one target is open and the other is not."""
    if step.action is Action.OPEN_WRITES and step.shard == LAST:
        raise Killed


def with_later(topology: Topology | None) -> Topology:
    """The topology with a later reshard, of the target that opened last."""
    assert topology is not None
    entry = ReshardEntry("later", (LAST,), ("80-c0", "c0-"), ReshardState.RUNNING.value)
    return replace(topology, reshards=(*topology.reshards, entry))


def test_targets_are_opened_before_it_is_completed(
    mariadb_servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """C8: between SWITCHED and the last open target it is refused: `switch` needs what it removes.

    What a later reshard has closed again is none of its business. Reports of appliers whose
    reshards are over go with it.
    """
    with split(mariadb_servers, kafka, keyspace) as world:
        world.wait_applied()
        world.verified(0)
        with pytest.raises(Killed):
            run_switch(world.settings, killed_before_the_last_opens)
        reshard_id = world.settings.reshard_id

        with pytest.raises(UsageError) as refused:
            run_complete(world.settings)

        wanted = (
            f"stopped on {LAST}: first run `shardstream reshard switch {keyspace} {reshard_id}`"
        )
        assert wanted in str(refused.value)
        assert all(checkpoint_seqs(world.servers[target], reshard_id) for target in TARGETS)
        run_switch(world.settings, lambda _step: None)
        assert world.open_shards() == set(TARGETS)

        update_topology(world.settings.kafka, keyspace, with_later)
        later = ShardWrites(
            world.settings.server_of(LAST), keyspace, "later", world.settings.accounts
        )
        later.stop_writes()
        later.insert(
            JournalRow(JournalKind.END), (json.dumps([LAST]), json.dumps(["80-c0", "c0-"]))
        )
        later.close()
        of_old = report(str(ApplierName("cancelled", LAST)))
        provision_readers(world.settings.kafka, keyspace)
        write_report(world.settings.kafka, keyspace, of_old)
        assert run_complete(world.settings) == []
        assert world.open_shards() == {FIRST}
        readers = ReadersFeed(world.settings.kafka, keyspace).look()
        assert of_old.name not in {reader.last.name for reader in readers}
