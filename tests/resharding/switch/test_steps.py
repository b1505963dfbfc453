"""Single steps of switch and cancel, where a history would not show which of two is taken."""

from dataclasses import replace
from typing import Final

import pytest

from resharding.switch.decision import (
    Action,
    FirstMark,
    JournalRow,
    NextCommand,
    ReshardView,
    SourceEnd,
    SwitchStep,
    next_cancel_step,
    next_switch_step,
)
from topics.keyspace.topology import BeginDecision, ReshardState
from topics.progress.record import JournalKind, MarkKind

SOURCES: Final = ("s0", "s1")
TARGETS: Final = ("t0", "t1")
ENDS: Final = {"s0": SourceEnd(5, 10_000), "s1": SourceEnd(7, 20_000)}
BEGIN: Final = FirstMark(MarkKind.BEGIN, 30_000)
CANCEL: Final = FirstMark(MarkKind.CANCEL, None)
RUNNING: Final = ReshardView(SOURCES, TARGETS, ReshardState.RUNNING)


def applied(**seqs: int) -> dict[tuple[str, str], int]:
    """Checkpoints: the seq that a target has of each source, as t0_s0=5."""
    return {(name[:2], name[3:]): seq for name, seq in seqs.items()}


def test_drained_is_every_source_on_every_target() -> None:
    """One checkpoint before its END, one missing, or one END not yet seen: not drained."""
    everything = applied(t0_s0=5, t0_s1=7, t1_s0=5, t1_s1=8)
    view = replace(RUNNING, ends=ENDS, checkpoints=everything)

    assert view.is_drained
    assert not replace(view, ends={"s0": ENDS["s0"]}).is_drained
    for late in (("t0", "s1"), ("t1", "s0")):
        assert not replace(view, checkpoints=everything | {late: 4}).is_drained
        less = {at: seq for at, seq in everything.items() if at != late}
        assert not replace(view, checkpoints=less).is_drained


def test_a_step_says_what_and_where() -> None:
    """A step on a shard names it; one on the topology does not."""
    assert str(SwitchStep(Action.WRITE_END, "s0")) == "write END (s0)"
    assert str(SwitchStep(Action.FENCE)) == "take over the topology"


@pytest.mark.parametrize(
    ("view", "where"),
    [
        (replace(RUNNING, state=ReshardState.CANCELLED), r"\(in the topology\)"),
        (replace(RUNNING, marks={"t0": CANCEL, "t1": CANCEL}), r"\(t0, t1\)"),
    ],
)
def test_a_cancelled_reshard_is_not_switched(view: ReshardView, where: str) -> None:
    """The refusal says where it is cancelled, and how to go on."""
    step = next_switch_step(view)

    assert step.action is Action.REFUSE
    assert step.ways == (NextCommand.CANCEL, NextCommand.CREATE)
    assert where.replace("\\", "") in step.why


def test_rows_that_stay_aside_stop_the_switch() -> None:
    """Behind END they exclude each other for good: it is not decided, and both are named."""
    ready = replace(
        RUNNING,
        quiet=frozenset((*SOURCES, *TARGETS)),
        journal=dict.fromkeys(SOURCES, JournalRow(JournalKind.END)),
        ends=ENDS,
        checkpoints=applied(t0_s0=5, t0_s1=7, t1_s0=5, t1_s1=7),
        logged=frozenset(SOURCES),
        fenced=True,
    )
    assert next_switch_step(ready).action is Action.DECIDE

    step = next_switch_step(replace(ready, aside={"t1": ["row 2 of s1 (row 1 is in its way)"]}))

    assert (step.action, step.ways) == (Action.REFUSE, (NextCommand.CANCEL, NextCommand.CREATE))
    assert "row 2 of s1 (row 1 is in its way)" in step.why


def test_a_row_of_an_older_cancel_stops_the_switch() -> None:
    """A source whose journal says CANCELLED is named."""
    step = next_switch_step(replace(RUNNING, journal={"s1": JournalRow(JournalKind.CANCELLED)}))

    assert (step.action, step.ways) == (Action.REFUSE, (NextCommand.CANCEL,))
    assert "s1 has CANCELLED" in step.why


def test_a_begin_without_a_decision_is_taken_over() -> None:
    """The hop time comes from the log, the ends from the sources; the fence comes first."""
    begun = replace(RUNNING, marks={"t0": BEGIN})

    step = next_switch_step(replace(begun, ends={"s0": ENDS["s0"]}))
    assert (step.action, step.ways) == (
        Action.REFUSE,
        (NextCommand.SWITCH, NextCommand.CANCEL_LOST_TARGET),
    )
    assert "the log of t0 has BEGIN, but that of s1 has no END" in step.why
    begun = replace(begun, ends=ENDS)
    assert next_switch_step(begun) == SwitchStep(Action.FENCE)
    assert next_switch_step(replace(begun, fenced=True)) == SwitchStep(
        Action.DECIDE, decision=BeginDecision(30_000, {"s0": 5, "s1": 7})
    )


def test_finished_and_foreign_reshards() -> None:
    """A completed one is done, a declared one is refused, by both commands."""
    completed = replace(RUNNING, state=ReshardState.COMPLETED)
    declared = replace(RUNNING, state=ReshardState.DECLARED)

    assert next_switch_step(completed) == SwitchStep(Action.DONE)
    assert next_cancel_step(completed).action is Action.REFUSE
    for step in (next_switch_step(declared), next_cancel_step(declared)):
        assert (step.action, step.why) == (Action.REFUSE, "it was done by other tools")


def test_a_source_out_of_reach_keeps_the_targets_closed() -> None:
    """Only a source that is gone for good is passed, and only when the operator says so."""
    decided = replace(
        RUNNING,
        decision=BeginDecision(30_000, {"s0": 5, "s1": 7}),
        missing={"s0": "refused"},
        quiet=frozenset((*SOURCES, *TARGETS)),
    )
    gone = replace(decided, gone=frozenset(("s0",)))

    for step in (next_switch_step(decided), next_switch_step(decided, lost_source=True)):
        assert (step.action, step.ways) == (Action.REFUSE, (NextCommand.SWITCH,))
        assert "s0 is not lost, but it cannot be used (refused)" in step.why
    step = next_switch_step(gone)
    assert step.ways == (NextCommand.SWITCH, NextCommand.SWITCH_LOST_SOURCE)
    assert next_switch_step(gone, lost_source=True) == SwitchStep(Action.AWAIT_DRAIN, "t0")


def test_a_shard_that_cannot_be_used_stops_the_switch_before_the_decision() -> None:
    """The refusal names the shard and why; both commands may go on from there."""
    step = next_switch_step(replace(RUNNING, missing={"t1": "read-only"}))

    assert (step.action, step.ways) == (Action.REFUSE, (NextCommand.SWITCH, NextCommand.CANCEL))
    assert step.why == "t1 cannot be used: read-only"


DECIDED: Final = replace(
    RUNNING,
    decision=BeginDecision(30_000, {"s0": 5, "s1": 7}),
    quiet=frozenset((*SOURCES, *TARGETS)),
)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (JournalRow(JournalKind.BEGIN, 40_000), "BEGIN 40000"),
        (JournalRow(JournalKind.CANCELLED), "CANCELLED"),
    ],
)
def test_a_row_that_was_not_decided_stops_the_switch(row: JournalRow, said: str) -> None:
    """The refusal names the target, its row and the decision; only a cancel goes on from there."""
    step = next_switch_step(replace(DECIDED, journal={"t0": row}))

    assert (step.action, step.ways) == (Action.REFUSE, (NextCommand.CANCEL_LOST_TARGET,))
    assert f"t0 has {said}" in step.why
    assert "not what was decided (BEGIN 30000)" in step.why


def test_a_target_that_takes_writes_again_is_locked_before_its_begin() -> None:
    """After a failover of a target its writes are stopped once more."""
    step = next_switch_step(replace(DECIDED, quiet=frozenset((*SOURCES, "t1"))))

    assert step == SwitchStep(Action.STOP_WRITES, "t0")


def test_targets_have_triggers_and_counters_before_any_of_them_opens() -> None:
    """A target without them is named; then the targets are opened in order."""
    switched = replace(
        DECIDED,
        state=ReshardState.SWITCHED,
        checkpoints=applied(t0_s0=5, t0_s1=7, t1_s0=5, t1_s1=7),
    )

    assert next_switch_step(switched) == SwitchStep(Action.RESTORE_TRIGGERS, "t0")
    one = replace(switched, restored=frozenset(("t0",)))
    assert next_switch_step(one) == SwitchStep(Action.RESTORE_TRIGGERS, "t1")
    both = replace(switched, restored=frozenset(TARGETS))
    assert next_switch_step(both) == SwitchStep(Action.OPEN_WRITES, "t0")
    half = replace(both, open=frozenset(("t0",)))
    assert next_switch_step(half) == SwitchStep(Action.OPEN_WRITES, "t1")
    assert next_switch_step(replace(both, open=frozenset(TARGETS))) == SwitchStep(Action.DONE)


@pytest.mark.parametrize("view", [DECIDED, replace(RUNNING, marks={"t0": BEGIN})])
def test_a_decided_reshard_is_cancelled_only_if_a_target_is_lost(view: ReshardView) -> None:
    """The topology's decision or one BEGIN is enough; the operator has to say that it is lost."""
    step = next_cancel_step(view)

    assert (step.action, step.ways) == (
        Action.REFUSE,
        (NextCommand.SWITCH, NextCommand.CANCEL_LOST_TARGET),
    )
    assert "it is decided that the targets begin" in step.why
    assert next_cancel_step(view, lost_target=True) == SwitchStep(Action.FENCE)


def test_a_cancel_that_has_reached_a_log_goes_on_without_being_told_again() -> None:
    """CANCEL first in one log decides it, so `cancel` alone completes it."""
    begun = replace(DECIDED, marks={"t0": BEGIN, "t1": CANCEL})

    assert next_cancel_step(begun) == SwitchStep(Action.FENCE)
    assert next_cancel_step(replace(begun, fenced=True)) == SwitchStep(
        Action.CHANGE_TOPOLOGY, state=ReshardState.CANCELLED
    )
    undecided = replace(RUNNING, fenced=True, marks={"t0": CANCEL})
    assert next_cancel_step(undecided) == SwitchStep(Action.APPEND_CANCEL, "t1")


def test_shards_without_a_server_are_still_closed_at_the_end() -> None:
    """Both commands name them and themselves, and are done when there are none."""
    switched = replace(RUNNING, state=ReshardState.SWITCHED, open=frozenset(TARGETS))
    step = next_switch_step(replace(switched, missing={"t1": "refused"}))
    assert (step.action, step.ways) == (Action.REFUSE, (NextCommand.SWITCH,))
    assert "it is switched, but writes are still stopped on t1 (refused)" in step.why

    cancelled = replace(
        RUNNING,
        state=ReshardState.CANCELLED,
        journal=dict.fromkeys(SOURCES, JournalRow(JournalKind.CANCELLED)),
        open=frozenset(SOURCES),
    )
    step = next_cancel_step(replace(cancelled, missing={"s0": "refused"}))
    assert (step.action, step.ways) == (Action.REFUSE, (NextCommand.CANCEL,))
    assert "it is cancelled, but writes are still stopped on s0 (refused)" in step.why
    assert next_switch_step(switched) == next_cancel_step(cancelled) == SwitchStep(Action.DONE)
