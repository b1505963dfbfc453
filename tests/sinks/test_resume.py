from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from event_token import StreamPosition
from sinks.errors import TargetConflict
from sinks.resume import (
    BatchStep,
    CheckpointState,
    HeldBatch,
    PlannedBatch,
    Start,
    start_of,
    step_of,
)
from tests.generated import examples


def at(time: int) -> StreamPosition:
    return StreamPosition(0, time)


TARGET = HeldBatch("q", 4, at(50))
WHERE = "lake"


@pytest.mark.parametrize(
    ("target", "checkpoint", "start"),
    [
        (None, None, Start.AS_ASKED),
        (None, CheckpointState("q"), Start.CHECKPOINT),
        (TARGET, None, Start.TARGET),
        (TARGET, CheckpointState("new"), Start.TARGET),
        (TARGET, CheckpointState("new", 0, at(50)), Start.CHECKPOINT),
        (TARGET, CheckpointState("q"), Start.CHECKPOINT),
        (TARGET, CheckpointState("q", 3, at(40)), Start.CHECKPOINT),
        (TARGET, CheckpointState("q", 4, at(50)), Start.CHECKPOINT),
    ],
)
def test_a_query_starts_where_target_and_checkpoint_say(
    target: HeldBatch | None, checkpoint: CheckpointState | None, start: Start
) -> None:
    """F30: with a checkpoint Spark continues; without one the target's position is the start."""
    assert start_of(WHERE, target, checkpoint) is start


@pytest.mark.parametrize(
    ("target", "checkpoint", "said"),
    [
        (None, CheckpointState("q", 0, at(10)), "lake holds no batch, but .* is at batch 0"),
        (TARGET, CheckpointState("q", 5, at(60)), "up to 4 of query q, but .* at batch 5"),
        (TARGET, CheckpointState("q", 4, at(51)), "holds batch 4 of query q, which ends at anoth"),
        (TARGET, CheckpointState("r", 4, at(51)), "by query q, up to batch 4 .50 us., and query r"),
    ],
)
def test_a_start_that_would_lose_or_repeat_is_refused(
    target: HeldBatch | None, checkpoint: CheckpointState, said: str
) -> None:
    """F30: a checkpoint that is not the target's stops before a batch, and says what to do."""
    with pytest.raises(TargetConflict, match=f"{said}.*remove (the|its) checkpoint|{said}.*Remove"):
        start_of(WHERE, target, checkpoint)


@pytest.mark.parametrize(
    ("target", "batch", "step"),
    [
        (None, PlannedBatch("q", 0, at(0), at(10)), BatchStep.APPLY),
        (TARGET, PlannedBatch("q", 5, at(50), at(60)), BatchStep.APPLY),
        (TARGET, PlannedBatch("new", 0, at(50), at(60)), BatchStep.APPLY),
        (TARGET, PlannedBatch("q", 4, at(40), at(50)), BatchStep.REPLAY),
        (TARGET, PlannedBatch("q", 2, at(20), at(30)), BatchStep.REPLAY),
    ],
)
def test_a_batch_is_applied_once(
    target: HeldBatch | None, batch: PlannedBatch, step: BatchStep
) -> None:
    """F30: the batch that begins where the target ends is applied, one that it holds is dropped."""
    assert step_of(WHERE, target, batch) is step


@pytest.mark.parametrize(
    ("target", "batch", "said"),
    [
        (None, PlannedBatch("q", 1, at(10), at(20)), "holds no batch, .* at batch 0"),
        (TARGET, PlannedBatch("q", 6, at(60), at(70)), "up to 4 of query q, but .* at batch 5"),
        (TARGET, PlannedBatch("q", 5, at(49), at(60)), "holds batch 4 of query q, which ends"),
        (TARGET, PlannedBatch("q", 4, at(40), at(49)), "holds batch 4 of query q, which ends"),
        (TARGET, PlannedBatch("r", 5, at(49), at(60)), "by query q, .* query r does not continue"),
    ],
)
def test_a_batch_that_would_lose_or_repeat_is_refused(
    target: HeldBatch | None, batch: PlannedBatch, said: str
) -> None:
    """F30: neither a gap nor a repetition is applied."""
    with pytest.raises(TargetConflict, match=said):
        step_of(WHERE, target, batch)


@dataclass
class Checkpoint:
    """What Spark keeps: the spans of planned batches, and how many are committed."""

    query_id: str
    planned: list[tuple[int, int]] = field(default_factory=list)
    committed: int = 0

    def state(self) -> CheckpointState:
        if not self.committed:
            return CheckpointState(self.query_id)
        last = self.committed - 1
        return CheckpointState(self.query_id, last, at(self.planned[last][1]))


@dataclass
class Target:
    """A target that remembers which spans were applied."""

    state: HeldBatch | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)


@settings(max_examples=examples(100), stateful_step_count=40)
class Restarts(RuleBasedStateMachine):
    """Two places for a checkpoint and one target; all may be lost or restored at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.target = Target()
        self.checkpoints: dict[str, Checkpoint | None] = {"here": None, "there": None}
        self.backups: list[Target] = []
        self.old: list[tuple[str, Checkpoint]] = []
        self.queries = 0

    @initialize()
    def begin(self) -> None:
        self.backups.append(deepcopy(self.target))

    @rule(
        place=st.sampled_from(["here", "there"]),
        size=st.integers(1, 3),
        dies=st.sampled_from(["never", "planned", "applied"]),
    )
    def batch(self, place: str, size: int, dies: str) -> None:
        """Run a query for one batch; it may die before or after the target's commit."""
        checkpoint = self.checkpoints[place]
        try:
            known = None if checkpoint is None else checkpoint.state()
            start = start_of(WHERE, self.target.state, known)
        except TargetConflict:
            self.checkpoints[place] = None
            return
        if checkpoint is None:
            self.queries += 1
            checkpoint = self.checkpoints[place] = Checkpoint(f"q{self.queries}")
        if len(checkpoint.planned) == checkpoint.committed:
            if checkpoint.planned:
                begin = checkpoint.planned[-1][1]
            else:
                begin = 0 if self.target.state is None else self.target.state.position.frontier_us
                assert (start is Start.TARGET) == (self.target.state is not None)
            checkpoint.planned.append((begin, begin + size))
        if dies == "planned":
            return
        begin, end = checkpoint.planned[checkpoint.committed]
        planned = PlannedBatch(checkpoint.query_id, checkpoint.committed, at(begin), at(end))
        try:
            step = step_of(WHERE, self.target.state, planned)
        except TargetConflict:
            self.checkpoints[place] = None
            return
        if step is BatchStep.APPLY:
            self.target.spans.append((begin, end))
            self.target.state = HeldBatch(planned.query_id, planned.batch_id, planned.end)
        if dies == "never":
            checkpoint.committed += 1

    @rule(place=st.sampled_from(["here", "there"]))
    def lose(self, place: str) -> None:
        self.checkpoints[place] = None

    @rule(place=st.sampled_from(["here", "there"]))
    def back_up_checkpoint(self, place: str) -> None:
        found = self.checkpoints[place]
        if found is not None:
            self.old.append((place, deepcopy(found)))

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def restore_checkpoint(self, data: st.DataObject) -> None:
        place, found = data.draw(st.sampled_from(self.old))
        self.checkpoints[place] = deepcopy(found)

    @rule()
    def back_up_target(self) -> None:
        self.backups.append(deepcopy(self.target))

    @rule(data=st.data())
    def restore_target(self, data: st.DataObject) -> None:
        self.target = deepcopy(data.draw(st.sampled_from(self.backups)))
        for place, found in self.checkpoints.items():
            # A first batch, planned for what the target then held, is not told from one of a new
            # target: whoever empties a target removes such checkpoints.
            if self.target.state is None and found is not None and not found.committed:
                self.checkpoints[place] = None
        if self.target.state is None:
            self.old = [(place, found) for place, found in self.old if found.committed]

    @invariant()
    def each_change_is_there_once(self) -> None:
        """The spans follow each other without a gap or a repetition, up to the position."""
        ends = [0, *(end for _, end in self.target.spans)]
        assert [begin for begin, _ in self.target.spans] == ends[:-1]
        state = self.target.state
        assert ends[-1] == (0 if state is None else state.position.frontier_us)

    @invariant()
    def a_removed_checkpoint_always_goes_on(self) -> None:
        """What every message says works."""
        start = start_of(WHERE, self.target.state, None)
        assert start is (Start.AS_ASKED if self.target.state is None else Start.TARGET)


TestRestarts = Restarts.TestCase
