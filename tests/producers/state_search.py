"""Searches the states of a model: all of a small setting, or some paths of a larger one.

Each state found is checked, and from each the system is left alone until it comes to rest, which
the model checks, too.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from random import Random
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class Violation(Exception):  # noqa: N818 - a finding, no error of a model
    """A property is broken."""


class Model(Protocol[State]):
    """What is searched; a step has a label for people.

    `takeover`: how the labels of takeovers begin. `steps`: without faults, in the order in which a
    quiet system takes them.
    """

    takeover: str

    def beginning(self) -> State:
        """The first state."""

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Every step that is not a fault."""

    def disturbances(self, state: State) -> Iterator[tuple[str, State]]:
        """Every fault that may happen, and what operators do."""

    def check(self, state: State) -> None:
        """Raise Violation if a state is wrong."""

    def check_rest(self, state: State) -> None:
        """Raise Violation if the system must not come to rest here."""


# More than any setting has that is searched to the end; a larger one would take minutes.
STATES_MAX: Final = 400_000
# More than a quiet system takes until it is at rest.
REST_STEPS_MAX: Final = 400


class Searched(NamedTuple):
    """How many states there are, and the takeovers until rest from the worst of them."""

    states: int
    takeovers: int


class Found(Exception):  # noqa: N818 - a finding, no error
    """A property is broken; the message has the steps that lead there."""


class Search(Generic[State]):
    """One search of a model."""

    def __init__(self, model: Model[State]) -> None:
        self._model = model
        self._before: dict[State, tuple[State, str] | None] = {}
        # Takeovers that are begun until the system is at rest.
        self._until_rest: dict[State, int] = {}

    def everything(self) -> Searched:
        """Visit every state, the nearest ones first."""
        model = self._model
        begun = model.beginning()
        self._before[begun] = None
        waiting = deque([begun])
        takeovers = 0
        while waiting:
            state = waiting.popleft()
            takeovers = max(takeovers, self._check(state))
            for label, after in self._following(state):
                if after not in self._before:
                    self._before[after] = (state, label)
                    waiting.append(after)
            if len(self._before) > STATES_MAX:
                message = f"more than {STATES_MAX} states"
                raise AssertionError(message)
        return Searched(len(self._before), takeovers)

    def check_ends(self) -> None:
        """Check that no history is endless without further faults; after `everything`."""
        model = self._model
        graph = {state: {after for _, after in model.steps(state)} for state in self._before}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            turns = list(reversed(error.args[1]))
            labels = [
                next(label for label, after in model.steps(state) if after == following)
                for state, following in pairwise(turns)
            ]
            raise self._found(turns[0], Violation("without end"), labels) from error

    def walk(self, random: Random, steps: int) -> None:
        """Take steps at random, and check each state on the way."""
        state = self._model.beginning()
        self._before.setdefault(state, None)
        for _ in range(steps):
            following = self._following(state)
            if not following:
                break
            label, after = random.choice(following)
            self._before.setdefault(after, (state, label))
            state = after
            self._check(state)

    def _following(self, state: State) -> list[tuple[str, State]]:
        model = self._model
        try:
            return [*model.steps(state), *model.disturbances(state)]
        except Violation as violation:
            raise self._found(state, violation) from violation

    def _check(self, state: State) -> int:
        """Check a state and the rest that follows; return the takeovers until then."""
        try:
            self._model.check(state)
        except Violation as violation:
            raise self._found(state, violation) from violation
        return self._rest(state)

    def _rest(self, state: State) -> int:
        """Let the system come to rest; states from which that is known are not followed again."""
        path = [(state, "")]
        while path[-1][0] not in self._until_rest:
            try:
                step = self._quiet_step(path[-1][0], len(path))
            except Violation as violation:
                labels = [label for _, label in path[1:]]
                raise self._found(state, violation, labels) from violation
            if step is None:
                self._until_rest[path[-1][0]] = 0
            else:
                path.append((step[1], step[0]))
        takeovers = self._until_rest[path[-1][0]]
        for (before, _), (_, label) in reversed(list(pairwise(path))):
            takeovers += label.startswith(self._model.takeover)
            self._until_rest[before] = takeovers
        return takeovers

    def _quiet_step(self, state: State, steps: int) -> tuple[str, State] | None:
        """The step that a system takes that is left alone; None at rest, which is checked."""
        model = self._model
        model.check(state)
        step = next(model.steps(state), None)
        if step is None:
            model.check_rest(state)
        elif steps > REST_STEPS_MAX:
            raise Violation("no rest")
        return step

    def _found(self, state: State, violation: Violation, afterwards: Sequence[str] = ()) -> Found:
        labels: list[str] = []
        at = self._before.get(state)
        while at is not None:
            state, label = at
            labels.append(label)
            at = self._before[state]
        quiet = f"; then, left alone: {'; '.join(afterwards)}" if afterwards else ""
        return Found(f"{violation}, after: {'; '.join(reversed(labels))}{quiet}")
