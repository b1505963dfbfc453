"""Targets that are lost, at any time of a switch, and decisions that the topology has lost."""

import functools
import json
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from databases.errors import ServerLost
from event_token.errors import Halt
from producers.decoder.errors import WriteAfterEnd
from resharding.servers import ReshardServer, find_primary
from resharding.switch.decision import Action, JournalRow, SwitchStep
from resharding.switch.executor import run_cancel, run_switch
from resharding.switch.shard_writes import ShardWrites, SwitchSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import statements
from tests.producers.session.producing import producing, wait_caught_up
from tests.resharding.switchable import (
    APP,
    SOURCE,
    TARGETS,
    Switchable,
    app_session,
    split,
)
from tests.waiting import WAIT_S, wait_for
from topics.keyspace.topology import (
    ReshardEntry,
    ReshardState,
    Topology,
    read_topology,
    update_topology,
)
from topics.progress.record import JournalKind, Mark, MarkKind

pytestmark = pytest.mark.full

LOST, KEPT = TARGETS
# A port where nothing listens.
NOBODY = 1


class Killed(Exception):  # noqa: N818 - what happened
    """Raised where a kill would end a command."""


def nothing(_step: SwitchStep) -> None:
    """Ignore the step."""


def before(wanted: Action, shard: str = "") -> Callable[[SwitchStep], None]:
    """Kill the command before it takes such a step."""

    def tell(step: SwitchStep) -> None:
        if step.action is wanted and shard in {"", step.shard}:
            raise Killed

    return tell


def without(settings: SwitchSettings, *lost: str) -> SwitchSettings:
    """The settings when the servers of these shards do not answer."""

    def server_of(shard: str) -> ReshardServer:
        server = settings.server_of(shard)
        return find_primary([replace(server, port=NOBODY)]) if shard in lost else server

    return replace(settings, server_of=server_of)


def kinds(world: Switchable, shard: str) -> list[MarkKind]:
    """The kinds of the marks of a shard."""
    found: list[Mark | None] = [progress.mark for progress in world.progress(shard)]
    return [mark.kind for mark in found if mark is not None]


def state(world: Switchable) -> str:
    """The state of the reshard in the topology."""
    topology = read_topology(world.settings.kafka, world.settings.keyspace)
    assert topology is not None
    return topology.reshards[0].state


def stop_producer(world: Switchable, shard: str) -> None:
    """End the producer of a target that is lost."""
    world.producers[shard].end()


def insert(world: Switchable, row: int) -> None:
    """Write a row to the source as the application does."""
    with app_session(world.servers[SOURCE]) as session, session.cursor() as cursor:
        cursor.execute(f"INSERT INTO {world.schema}.t VALUES ({row})")


def test_cancel_needs_no_target_before_the_decision(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """B17: END is written and a target is lost: the message names both ways; cancel goes on.

    A row that came behind END by an account that was not locked is an ordinary row by then.
    """
    with split(servers, kafka, keyspace) as world:
        world.verified(0)
        with pytest.raises(Killed):
            run_switch(world.settings, before(Action.DECIDE))
        stop_producer(world, LOST)
        settings = without(world.settings, LOST)
        with pytest.raises(Halt) as refused:
            run_switch(settings, nothing)
        for verb in ("switch", "cancel"):
            assert f"`shardstream reshard {verb} {keyspace} {settings.reshard_id}`" in str(
                refused.value
            )
        with world.servers[SOURCE].connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {world.schema}.t VALUES (4000)")
        source = world.sources.producers[SOURCE]
        assert isinstance(source.wait_error(), WriteAfterEnd)
        source.error = None

        run_cancel(without(world.settings, *TARGETS), nothing)

        assert world.open_shards() == {SOURCE}
        assert state(world) == ReshardState.CANCELLED.value
        assert [kinds(world, shard) for shard in TARGETS] == [[MarkKind.CANCEL]] * 2
        with producing(source.settings):
            insert(world, 4001)
            wait_caught_up(source.settings)
        assert kinds(world, SOURCE) == [MarkKind.END, MarkKind.CANCEL]
        # Its log is that of a producer: the position is unchanged, and another one goes on there.
        kept = world.producers[LOST].settings
        with producing(kept):
            wait_caught_up(kept)


def test_cancel_after_the_decision_needs_to_be_told(
    mariadb_servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """B17: one target has begun and the other is lost for good: with --lost-target it is cancelled.

    BEGIN that reaches the log behind CANCEL changes nothing.
    """
    with split(mariadb_servers, kafka, keyspace) as world:
        world.verified(0)
        with pytest.raises(Killed):
            run_switch(world.settings, before(Action.WRITE_BEGIN, max(TARGETS)))
        first, last = sorted(TARGETS)
        wait_for("the first target has begun", lambda: kinds(world, first) == [MarkKind.BEGIN])
        stop_producer(world, last)
        settings = without(world.settings, last)
        for run in (run_switch, run_cancel):
            with pytest.raises(Halt, match=r"shardstream reshard cancel .* --lost-target`"):
                run(settings, nothing)

        with pytest.raises(Killed):
            run_cancel(settings, before(Action.CHANGE_TOPOLOGY), lost_target=True)
        # CANCEL in one log has decided it: from here on nothing else needs to be said.
        with pytest.raises(Halt, match=f"it is cancelled \\({last}\\)"):
            run_switch(world.settings, nothing)
        run_cancel(settings, nothing)

        assert world.open_shards() == {SOURCE}
        insert(world, 5000)
        world.sources.last_seqs()
        assert kinds(world, SOURCE) == [MarkKind.END, MarkKind.CANCEL]
        assert (kinds(world, first), kinds(world, last)) == ([MarkKind.BEGIN], [MarkKind.CANCEL])


def test_a_failover_that_loses_begin(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """A10: the log counts, not the journal of the first target: it cannot be cancelled any more.

    While BEGIN is in the logs, the servers of targets are not needed until they are opened.
    """
    with split(servers, kafka, keyspace) as world:
        world.verified(0)
        with pytest.raises(Killed):
            run_switch(world.settings, before(Action.CHANGE_TOPOLOGY))
        with world.servers[LOST].connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute("DELETE FROM _shardstream.journal")

        for lost_target in (False, True):
            with pytest.raises(Halt, match="all targets have begun: `shardstream reshard switch"):
                run_cancel(world.settings, nothing, lost_target=lost_target)
        with pytest.raises(Halt, match=f"it is switched, but writes are still stopped on {LOST}"):
            run_switch(without(world.settings, LOST), nothing)
        assert world.open_shards() == {KEPT}
        assert state(world) == ReshardState.SWITCHED.value
        run_switch(world.settings, nothing)
        assert world.open_shards() == set(TARGETS)
        assert kinds(world, LOST) == [MarkKind.BEGIN]


def test_a_source_that_is_lost_after_the_decision(
    mariadb_servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """B17: whether it is locked is unknown, so the operator says that it is lost."""
    with split(mariadb_servers, kafka, keyspace) as world:
        world.verified(0)
        with pytest.raises(Killed):
            run_switch(world.settings, before(Action.WRITE_BEGIN))
        settings = without(world.settings, SOURCE)
        with pytest.raises(Halt, match=r"no server of - answers .*switch .* --lost-source`"):
            run_switch(settings, nothing)
        # It answers, but the account lacks grants: that is no lost source, whatever is said.
        answers = replace(world.settings, server_of=as_producer(world))
        for lost_source in (False, True):
            with pytest.raises(Halt, match=r"- is not lost, but .* lacks .*: `shardstream [^`]*`$"):
                run_switch(answers, nothing, lost_source=lost_source)
        assert world.open_shards() == set()

        report = run_switch(settings, nothing, lost_source=True)

        assert list(report.lost_sources) == [SOURCE]
        assert "connecting to 127.0.0.1:1" in report.lost_sources[SOURCE]
        assert world.open_shards() == set(TARGETS)


def as_producer(world: Switchable) -> Callable[[str], ReshardServer]:
    """Finds the servers, the source's with the account of its producer."""

    def server_of(shard: str) -> ReshardServer:
        server, database = world.settings.server_of(shard), world.servers[shard]
        if shard == SOURCE:
            return replace(server, user=database.user, password=database.password)
        return server

    return server_of


def test_a_merge_that_loses_one_of_its_sources(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """B17: it is named, and the other source is still looked at before the target opens."""
    merge = split(servers, kafka, keyspace, from_shards=TARGETS, to_shards=(SOURCE,))
    with merge as world:
        world.verified(0)
        with pytest.raises(Killed):
            run_switch(world.settings, before(Action.WRITE_BEGIN))
        settings = without(world.settings, LOST)
        with pytest.raises(Halt, match=f"no server of {LOST} answers .* --lost-source`"):
            run_switch(settings, nothing)
        steps: list[SwitchStep] = []
        kept = world.servers[KEPT]
        statements(kept, f"ALTER USER '{APP}'@'%' ACCOUNT UNLOCK")

        report = run_switch(settings, steps.append, lost_source=True)

        assert list(report.lost_sources) == [LOST]
        assert SwitchStep(Action.STOP_WRITES, KEPT) in steps
        assert world.open_shards() == {SOURCE}
        assert len(world.ids(SOURCE)) == 200


def with_entry(entry: ReshardEntry, topology: Topology | None) -> Topology:
    """The topology with one more reshard."""
    assert topology is not None
    return replace(topology, reshards=(*topology.reshards, entry))


def test_an_old_cancel_wakes(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """B17: a command of another reshard ends it: it cannot open what was stopped again."""
    with split(servers, kafka, keyspace) as world:
        world.verified(0)
        with pytest.raises(Killed):
            run_switch(world.settings, before(Action.DECIDE))
        reached, wake = threading.Event(), threading.Event()
        errors: list[BaseException] = []

        def pause(step: SwitchStep) -> None:
            if step.action is Action.OPEN_WRITES:
                reached.set()
                wake.wait(WAIT_S)

        def cancel() -> None:
            try:
                run_cancel(world.settings, pause)
            except BaseException as error:  # noqa: BLE001 - checked below
                errors.append(error)

        thread = threading.Thread(target=cancel)
        thread.start()
        assert reached.wait(WAIT_S)
        # What the switch of a later reshard does on the source.
        entry = ReshardEntry("later", (SOURCE,), ("-40", "40-"), ReshardState.RUNNING.value)
        update_topology(world.settings.kafka, keyspace, functools.partial(with_entry, entry))
        later = ShardWrites(
            world.settings.server_of(SOURCE), keyspace, "later", world.settings.accounts
        )
        later.stop_writes()
        later.insert(JournalRow(JournalKind.END), (json.dumps([SOURCE]), json.dumps(TARGETS)))
        wake.set()
        thread.join(WAIT_S)

        assert isinstance(errors[0], ServerLost)
        assert f"`shardstream reshard status {keyspace}` says what is next" in str(errors[0])
        assert world.open_shards() == set()
        # Neither does the same command later on: the END of the other reshard is there.
        run_cancel(world.settings, nothing)
        assert world.open_shards() == set()
        later.close()


def test_a_decision_that_the_topology_lacks(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """B17: BEGIN in a log without a decision in the topology is taken over, and completed."""

    def forget(topology: Topology | None) -> Topology:
        assert topology is not None
        entry = replace(topology.reshards[0], decision=None)
        return replace(topology, reshards=(entry,))

    with split(servers, kafka, keyspace) as world:
        world.verified(0)
        with pytest.raises(Killed):
            run_switch(world.settings, before(Action.WRITE_BEGIN, max(TARGETS)))
        first = min(TARGETS)
        wait_for("the first target has begun", lambda: kinds(world, first) == [MarkKind.BEGIN])
        update_topology(world.settings.kafka, keyspace, forget)
        with pytest.raises(Halt, match="it is decided that the targets begin"):
            run_cancel(world.settings, nothing)

        run_switch(world.settings, nothing)

        assert world.open_shards() == set(TARGETS)
        hops = {p.mark.hop_time_us for t in TARGETS for p in world.progress(t) if p.mark}
        assert len(hops) == 1
