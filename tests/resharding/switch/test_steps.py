"""Single steps of switch and cancel, where a history would not show which of two is taken."""

from dataclasses import replace
from typing import Final

import pytest

from resharding.switch.decision import (
    Action,
    FirstMark,
    JournalRow,
    Kind,
    ReshardView,
    SourceEnd,
    Step,
    Way,
    next_cancel_step,
    next_switch_step,
)
from topics.keyspace.topology import BeginDecision, ReshardState
from topics.progress.record import MarkKind

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
    assert str(Step(Action.WRITE_END, "s0")) == "write END (s0)"
    assert str(Step(Action.FENCE)) == "take over the topology"


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
    assert step.ways == (Way.CANCEL, Way.CREATE)
    assert where.replace("\\", "") in step.why


def test_a_row_of_an_older_cancel_stops_the_switch() -> None:
    """A source whose journal says CANCELLED is named."""
    step = next_switch_step(replace(RUNNING, journal={"s1": JournalRow(Kind.CANCELLED)}))

    assert (step.action, step.ways) == (Action.REFUSE, (Way.CANCEL,))
    assert "s1 has CANCELLED" in step.why


def test_a_begin_without_a_decision_is_taken_over() -> None:
    """The hop time comes from the log, the ends from the sources; the fence comes first."""
    begun = replace(RUNNING, marks={"t0": BEGIN})

    step = next_switch_step(replace(begun, ends={"s0": ENDS["s0"]}))
    assert (step.action, step.ways) == (
        Action.REFUSE,
        (Way.SWITCH, Way.CANCEL_LOST_TARGET),
    )
    assert "the log of t0 has BEGIN, but that of s1 has no END" in step.why
    begun = replace(begun, ends=ENDS)
    assert next_switch_step(begun) == Step(Action.FENCE)
    assert next_switch_step(replace(begun, fenced=True)) == Step(
        Action.DECIDE, decision=BeginDecision(30_000, {"s0": 5, "s1": 7})
    )


def test_finished_and_foreign_reshards() -> None:
    """A completed one is done, a declared one is refused, by both commands."""
    completed = replace(RUNNING, state=ReshardState.COMPLETED)
    declared = replace(RUNNING, state=ReshardState.DECLARED)

    assert next_switch_step(completed) == Step(Action.DONE)
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
        assert (step.action, step.ways) == (Action.REFUSE, (Way.SWITCH,))
        assert "s0 is not lost, but it cannot be used (refused)" in step.why
    step = next_switch_step(gone)
    assert step.ways == (Way.SWITCH, Way.SWITCH_LOST_SOURCE)
    assert next_switch_step(gone, lost_source=True) == Step(Action.AWAIT_DRAIN, "t0")
