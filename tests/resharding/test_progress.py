"""What `reshard status` sees, and the command that it names next."""

from contextlib import ExitStack
from dataclasses import replace

import pytest

from event_token.errors import Halt
from resharding.apply.applier import ApplierSettings
from resharding.progress import (
    LAG_CHANGES_MAX,
    AppliedSource,
    SourceLog,
    SourceProgress,
    TargetProgress,
    next_command,
    source_log,
    source_state,
    target_state,
)
from resharding.switch.decision import Action, SwitchStep
from resharding.switch.executor import run_cancel, run_switch
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.resharding.accounts import resharder_of
from tests.resharding.shards import applying
from tests.resharding.switchable import APP, SOURCE, TARGETS, Switchable, split
from tests.waiting import wait_for
from topics.keyspace.topology import BeginDecision, ReshardEntry, ReshardState, read_topology
from topics.progress.record import Mark, MarkKind
from topics.schemas import open_schema_ids

ENTRY = ReshardEntry("r1", ("-",), ("-80",), ReshardState.RUNNING.value)
LOG = SourceLog(last_seq=9, ended_at_us=None, copying=0)
OPEN, STOPPED = SourceProgress(LOG, locked=False), SourceProgress(LOG, locked=True)
TARGET = TargetProgress(
    applier_runs=True,
    applied={"-": AppliedSource(9, 1)},
    verified_at_us=1,
    differing=0,
    locked=True,
)
SERVES = replace(TARGET, locked=False)
BUSY = SourceProgress(replace(LOG, last_seq=LOG.last_seq + LAG_CHANGES_MAX), locked=False)


@pytest.mark.parametrize(
    ("state", "source", "target", "wanted"),
    [
        ("RUNNING", OPEN, replace(TARGET, applier_runs=False), "reshard run commerce r1 -80"),
        ("RUNNING", STOPPED, replace(TARGET, applier_runs=False), "reshard run commerce r1 -80"),
        ("RUNNING", SourceProgress(replace(LOG, copying=1), locked=False), TARGET, "wait for the"),
        ("RUNNING", OPEN, replace(TARGET, differing=None), "reshard verify commerce r1"),
        ("RUNNING", OPEN, replace(TARGET, differing=2), "reshard verify commerce r1"),
        ("RUNNING", OPEN, replace(TARGET, verify_is_old=True), "aside: shardstream reshard verify"),
        ("RUNNING", OPEN, TARGET, "reshard switch commerce r1"),
        ("RUNNING", BUSY, TARGET, "reshard switch commerce r1"),
        ("RUNNING", BUSY, replace(TARGET, applied={"-": AppliedSource(8, 1)}), "50,001 changes"),
        ("RUNNING", STOPPED, TARGET, "reshard cancel commerce r1 goes back"),
        ("SWITCHED", STOPPED, TARGET, "still stopped on -80: shardstream reshard switch"),
        ("SWITCHED", STOPPED, SERVES, "reshard complete commerce r1"),
        ("CANCELLED", STOPPED, TARGET, "still stopped on -: shardstream reshard cancel"),
        ("CANCELLED", replace(STOPPED, held=True), TARGET, "stop the producers"),
        ("SWITCHED", STOPPED, replace(TARGET, held=True), "reshard complete commerce r1"),
        ("CANCELLED", OPEN, TARGET, "stop the producers and appliers of the targets"),
    ],
)
def test_each_state_names_its_next_command(
    state: str, source: SourceProgress, target: TargetProgress, wanted: str
) -> None:
    """C8: whatever a reshard waits for, the operator is told what to run."""
    entry = replace(ENTRY, state=state)

    assert wanted in next_command(entry, "commerce", {"-": source}, {"-80": target}, {})


@pytest.mark.parametrize(
    ("state", "silent", "wanted"),
    [
        ("RUNNING", "-80", "bring back -80, or go back to the sources: shardstream reshard cancel"),
        ("SWITCHED", "-80", "when -80 can be asked: shardstream reshard switch commerce r1"),
        ("SWITCHED", "-", "shardstream reshard complete commerce r1"),
        ("CANCELLED", "-", "when - can be asked: shardstream reshard cancel commerce r1"),
        ("CANCELLED", "-80", "stop the producers and appliers"),
    ],
)
def test_what_could_not_be_asked_is_not_taken_for_open(
    state: str, silent: str, wanted: str
) -> None:
    """C8: a shard that does not answer may be closed, so it is never passed over."""
    entry = replace(ENTRY, state=state)
    sources = {} if silent == "-" else {"-": OPEN}
    targets = {} if silent == "-80" else {"-80": SERVES}

    said = next_command(entry, "commerce", sources, targets, {}, silent=[silent])
    assert said.startswith(wanted)


def test_a_decided_reshard_is_switched() -> None:
    """C8: once it is decided, nothing else is offered but the way past a lost target."""
    entry = replace(ENTRY, decision=BeginDecision(1, {"-": 9}))
    dead = replace(TARGET, applier_runs=False)

    said = next_command(entry, "commerce", {"-": STOPPED}, {"-80": dead}, {})
    assert "reshard switch commerce r1" in said
    assert "--lost-target" in said
    assert "reshard run" not in said


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (MarkKind.BEGIN, "all targets have begun: shardstream reshard switch commerce r1"),
        (MarkKind.CANCEL, "it is cancelled in a target's log: shardstream reshard cancel commerce"),
    ],
)
def test_the_first_marks_of_targets_leave_one_way(kind: MarkKind, wanted: str) -> None:
    """C8: a lost target is no way back once all have begun, nor is `switch` one after CANCEL."""
    entry = replace(ENTRY, decision=BeginDecision(1, {"-": 9}))
    marks = {"-80": Mark(kind, 7, "r1", ("-",), ("-80",), None)}

    said = next_command(entry, "commerce", {"-": STOPPED}, {"-80": TARGET}, marks)
    assert said.startswith(wanted)
    assert "--lost-target" not in said


def die_before_the_decision(step: SwitchStep) -> None:
    """Stand in for a kill after END."""
    if step.action is Action.DECIDE:
        raise Halt("killed")


def look(world: Switchable) -> tuple[SourceProgress, dict[str, TargetProgress]]:
    """The source and the targets as their servers and logs say."""
    kafka = world.settings.kafka
    topology = read_topology(kafka, world.settings.keyspace)
    assert topology is not None
    accounts = (f"{APP}@%",)
    reshard_id = world.settings.reshard_id
    log = source_log(topology, SOURCE, reshard_id, kafka, open_schema_ids(kafka, None))
    servers = {shard: resharder_of(world.servers[shard], shard) for shard in (SOURCE, *TARGETS)}
    targets = {
        shard: target_state(topology, servers[shard], accounts, reshard_id) for shard in TARGETS
    }
    return source_state(topology, servers[SOURCE], accounts, reshard_id, log), targets


@pytest.mark.full
def test_servers_and_logs_say_how_far_a_reshard_is(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """C8: appliers that run, what they have applied, and since when writes are stopped."""
    with split(servers, kafka, keyspace, appliers=False) as world, ExitStack() as stack:
        source, targets = look(world)
        assert (source.log.ended_at_us, source.locked) == (None, False)
        assert not any(target.applier_runs for target in targets.values())
        assert {target.verified_at_us for target in targets.values()} == {None}

        for shard in TARGETS:
            server = world.settings.server_of(shard)
            applier = ApplierSettings(world.plan, server, world.settings.kafka)
            stack.enter_context(applying(applier))
        world.wait_applied()
        world.verified(0, age_s=25 * 3600)
        assert all(target.verify_is_old for target in look(world)[1].values())
        world.verified(0)
        assert not any(target.verify_is_old for target in look(world)[1].values())
        wait_for(
            "the appliers show themselves",
            lambda: all(target.applier_runs for target in look(world)[1].values()),
        )
        with pytest.raises(Halt, match="killed"):
            run_switch(world.settings, die_before_the_decision)
        source, targets = look(world)
        assert source.log.ended_at_us is not None
        assert source.locked
        for target in targets.values():
            assert target.applied[SOURCE].seq == source.log.last_seq
            assert target.differing == 0

        run_cancel(world.settings, lambda _step: None)
        world.sources.last_seqs()
        source, _ = look(world)
        assert (source.log.ended_at_us, source.locked) == (None, False)
