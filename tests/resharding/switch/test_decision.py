"""Decisions of switch and cancel in a model of everything that can happen between two steps."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from resharding.switch.decision import (
    Action,
    JournalRow,
    NextCommand,
    ReshardView,
    SourceEnd,
    SwitchStep,
    hop_time_us,
)
from tests.generated import examples
from tests.resharding.switch.histories import NOTHING, History, Script, Without, finish
from tests.resharding.switch.reshard_world import Rules, Violation
from topics.keyspace.topology import ReshardState
from topics.progress.record import GRID_US, JournalKind

# Of generated histories.
SEEDS: Final = range(1_000)
FAR: Final = 10**6
ALL_SHARDS: Final = frozenset(("s0", "s1", "t0", "t1", "t2"))


def judge(seed: int, without: Without = NOTHING) -> None:
    """Play one history; Violation if anything is wrong at any time, or it cannot be ended."""
    world = History(seed, without).play()
    world.settle()
    world.check()
    if not world.retried:
        for way in (NextCommand.SWITCH, NextCommand.CANCEL):
            if not finish(world, way, without):
                raise Violation(f"no way out beginning with {way.value}")
    world.check_nothing_silent()


@pytest.mark.full
def test_every_history_ends_on_one_side() -> None:
    """A10, B17, D3: whatever happens, nothing is lost in silence, and messages name a way out.

    Failovers before END, between END and BEGIN and after; servers lost for good; paused commands
    that wake; commits with an unknown outcome; writes by accounts that were not locked.
    """
    for seed in SEEDS[: examples(len(SEEDS))]:
        try:
            judge(seed)
        except Violation as violation:
            raise AssertionError(f"history {seed}: {violation}") from violation


def test_every_ending_occurs() -> None:
    """The histories are no excuse: they switch, cancel, retry, halt producers and lose servers."""
    # The first of the same histories.
    worlds = [History(seed).play() for seed in SEEDS[:100]]

    states = {world.topology.state for world in worlds}
    assert states == {ReshardState.RUNNING, ReshardState.SWITCHED, ReshardState.CANCELLED}
    assert {why for world in worlds for why in world.halted.values()} == {"lost", "write"}
    assert any(world.retried for world in worlds)
    assert any(not server.up for world in worlds for server in world.servers.values())


def drained(*states: ReshardState) -> Without:
    """Take the targets for drained in these states."""

    def view(seen: ReshardView) -> ReshardView:
        if seen.state not in states:
            return seen
        checkpoints = {(target, source): FAR for target in seen.targets for source in seen.sources}
        logged = frozenset(seen.sources) if seen.ends else seen.logged
        return replace(seen, checkpoints=checkpoints, logged=logged)

    return Without(view=view)


def locked_once(seen: ReshardView) -> ReshardView:
    """Do not look at the sources' locks after the decision."""
    return seen if seen.decision is None else replace(seen, quiet=frozenset(ALL_SHARDS))


def cancelled_at_once(_view: ReshardView, step: SwitchStep) -> SwitchStep:
    """Write CANCELLED to the topology before CANCEL is in the logs."""
    if step.action is Action.APPEND_CANCEL:
        return SwitchStep(Action.CHANGE_TOPOLOGY, state=ReshardState.CANCELLED)
    return step


def open_first(_view: ReshardView, step: SwitchStep) -> SwitchStep:
    """Unlock a source before its row says CANCELLED."""
    if step.action is Action.WRITE_CANCELLED:
        return SwitchStep(Action.OPEN_WRITES, step.shard)
    return step


def switch_early(_view: ReshardView, step: SwitchStep) -> SwitchStep:
    """Change the topology while BEGIN is still awaited."""
    if step.action is Action.AWAIT_BEGIN:
        return SwitchStep(Action.CHANGE_TOPOLOGY, state=ReshardState.SWITCHED)
    return step


# Rules of which some generated history of the first hundreds shows that they are needed.
LEFT_OUT: Final = {
    "the first mark counts": Without(Rules(first_mark_counts=False)),
    "a hop waits for all targets": Without(Rules(hop_waits_for_all=False)),
    "a row after END stops the producer": Without(Rules(rows_after_end_stop=False)),
    "CANCEL lies in the logs of the targets": Without(Rules(cancel_reaches_logs=False)),
    "the logs are looked at behind the fence": Without(Rules(marks_are_looked_at=False)),
    "CANCEL is in the logs before the topology": Without(step=cancelled_at_once),
    "SWITCHED only when all logs begin": Without(step=switch_early),
    "CANCELLED before the source is opened": Without(step=open_first),
    "sources are locked before END": Without(view=lambda v: replace(v, quiet=ALL_SHARDS)),
}


@pytest.mark.parametrize("rule", sorted(LEFT_OUT))
def test_no_rule_can_be_left_out(rule: str) -> None:
    """D3: without any one of the rules some history goes wrong, and the property notices."""
    for seed in SEEDS:
        try:
            judge(seed, LEFT_OUT[rule])
        except Violation:
            return
    raise AssertionError(f"nobody notices that this is left out: {rule}")


def an_old_cancel_wakes(play: Script) -> None:
    """It is about to unlock the source that a later reshard has locked since."""
    play.until(play.start(NextCommand.SWITCH), Action.DECIDE)
    old = play.start(NextCommand.CANCEL)
    play.until(old, Action.OPEN_WRITES)
    play.world.try_again()
    play.wake(old)


def a_switch_wakes_after_a_cancel(play: Script) -> None:
    """It is about to stop writes that the cancel has opened, and to write BEGIN."""
    old = play.start(NextCommand.SWITCH)
    play.until(old, Action.WRITE_END)
    play.to_the_end(NextCommand.CANCEL)
    play.wake(old)
    assert play.world.servers["s0"].row == JournalRow(JournalKind.CANCELLED)


def a_decision_comes_late(play: Script) -> None:
    """A switch is about to decide when another command cancels."""
    old = play.start(NextCommand.SWITCH)
    play.until(old, Action.DECIDE)
    play.to_the_end(NextCommand.CANCEL)
    play.wake(old)


def an_unknown_commit(play: Script) -> None:
    """The commit of SWITCHED was not written, and nobody said so."""
    switch = play.start(NextCommand.SWITCH)
    play.until(switch, Action.CHANGE_TOPOLOGY)
    play.wake(switch, unknown=True)
    play.until(switch, Action.DONE)


def a_failover_loses_end(play: Script) -> None:
    """The log keeps the END of the lost primary; that of the present one is later."""
    play.until(play.start(NextCommand.SWITCH), Action.DECIDE)
    play.world.fail_over("s0", 0)
    play.world.settle()
    play.world.skip_lost("s0")
    play.world.clock_us += 3 * GRID_US
    switch = play.start(NextCommand.SWITCH)
    play.until(switch, Action.DECIDE, idle=("s0",))
    play.until(switch, Action.DONE)


def a_failover_loses_rows_before_begin(play: Script) -> None:
    """They are applied again, and must not be logged behind BEGIN."""
    play.world.write("s0", listed=True)
    switch = play.start(NextCommand.SWITCH)
    play.until(switch, Action.WRITE_BEGIN, idle=("t0",))
    play.world.fail_over("t0", 1)
    play.until(play.start(NextCommand.SWITCH), Action.AWAIT_BEGIN, idle=("t0", "s0>t0"))
    play.world.settle()
    play.world.check()


def a_failover_loses_rows_before_the_opening(play: Script) -> None:
    """They are applied again before the application may write."""
    play.until(play.start(NextCommand.SWITCH), Action.OPEN_WRITES)
    play.world.fail_over("t0", 1)
    play.until(play.start(NextCommand.SWITCH), Action.DONE, idle=("s0>t0",))


def a_failover_loses_locks(play: Script) -> None:
    """The new primary of a source takes writes while the targets are about to."""
    play.until(play.start(NextCommand.SWITCH), Action.OPEN_WRITES)
    play.world.fail_over("s0", 0)
    play.to_the_end(NextCommand.SWITCH)


NEEDED: Final = [
    (an_old_cancel_wakes, Without(Rules(one_claim_for_all=False))),
    (an_old_cancel_wakes, Without(Rules(claims_end_sessions=False))),
    (a_decision_comes_late, Without(Rules(fence_holds=False))),
    (an_unknown_commit, Without(Rules(unknown_means_again=False))),
    (a_failover_loses_end, Without(Rules(end_of_present_primary=False))),
    (a_failover_loses_rows_before_begin, drained(ReshardState.RUNNING)),
    (a_failover_loses_rows_before_the_opening, drained(ReshardState.SWITCHED)),
    (a_failover_loses_locks, Without(view=locked_once)),
]


@pytest.mark.parametrize(("play", "without"), NEEDED)
def test_what_a_rule_is_for(play: Callable[[Script], None], without: Without) -> None:
    """A10, B17: with all rules the scenario ends well, and without the one it does not."""
    play(Script())

    with pytest.raises(Violation):
        play(Script(without))


def test_a_switch_that_wakes_late_changes_nothing() -> None:
    """B17: its session has ended, so neither locks nor rows of it reach a server."""
    a_switch_wakes_after_a_cancel(Script())


def test_one_lost_source_of_a_merge_is_reported() -> None:
    """Its counters were not read, so the operator has to raise them even if the other answers."""
    view = ReshardView(("s0", "s1"), ("t0",), ReshardState.SWITCHED, missing={"s1": "gone"})

    assert view.lost_sources == {"s1": "gone"}


def test_the_hop_is_the_end_of_the_latest_cell() -> None:
    """The latest END decides the hop time; an END on a cell's first microsecond is in that cell."""
    assert hop_time_us({"a": SourceEnd(1, 10_000), "b": SourceEnd(9, 9_999)}) == 20_000
    assert hop_time_us({"a": SourceEnd(1, 19_999)}) == 20_000
