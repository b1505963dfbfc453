"""A model of takeovers: processes that claim a shard, fence each other, and take it back.

Every call to Kafka is a step of its own, and any process may stand still between two steps for as
long as it likes: that is a pause. While a fence ends what its predecessor has open, the coordinator
answers the predecessor's commit with an error that says nothing, as real ones do; any other answer
may be such an error, too, with or without effect.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from tests.producers.state_search import Violation

NOBODY: Final = -1


class Rules(NamedTuple):
    """What processes keep to; each can be left out, to see that it is needed.

    `looks`: after an error it fences again only if nobody has claimed the shard since its own
    claim. `keeps_looking`: it looks again after each attempt to fence that only ends what another
    one has open. `returns`: it does so after having been fenced, too. `waits`: where somebody has
    claimed it, it ends only once somebody has committed, and takes the shard back if the other is
    dead.
    `is_patient`: it waits for longer than a living one takes to commit.
    """

    looks: bool = True
    keeps_looking: bool = True
    returns: bool = True
    waits: bool = True
    is_patient: bool = True


class Faults(NamedTuple):
    """How many may still happen.

    `unknown`: answers that are lost, or say nothing. `others`: faults that end a session, such as
    a server that is lost. `deaths`: of processes. `restarts`: of dead ones, by a supervisor.
    """

    unknown: int = 0
    others: int = 0
    deaths: int = 0
    restarts: int = 0


class Setting(NamedTuple):
    """What a search begins with: the first of `processes` produces, an operator starts the others.

    `rows`: how many the server has.
    """

    faults: Faults
    processes: int = 2
    rows: int = 1


class Stage(IntEnum):
    """What a process does next."""

    OUT = 0  # not started yet
    CLAIM = 1
    FENCE = 2
    READ = 3
    LIVE = 4
    OPEN = 5  # has a transaction open, and commits it
    LOOK = 6  # a fault has ended its session: is the last claim its own?
    FENCED = 7  # the coordinator has said that it is
    WAIT = 8
    ENDED = 9
    DEAD = 10


class Process(NamedTuple):
    """A process.

    `row`: the next to write. `has_read`: it has read the end of the log. `is_past`: others have
    committed since then, or since it waits.
    """

    stage: Stage = Stage.OUT
    row: int = 0
    has_read: bool = False
    is_past: bool = False


class Phase(IntEnum):
    """How far the shard's transaction is, as its coordinator knows."""

    IDLE = 0
    ONGOING = 1
    ENDING = 2  # a fence aborts it


class State(NamedTuple):
    """The whole system at a moment.

    `holder`: who has fenced last. `logged`: rows. `writer`: who has committed last. `claimed`: who
    has claimed the shard last. `started`: the newest start, in the order of first claims.
    """

    processes: tuple[Process, ...]
    faults: Faults
    holder: int = 0
    phase: Phase = Phase.IDLE
    logged: int = 0
    writer: int = 0
    claimed: int = 0
    started: int = 0


Step = tuple[str, State]

# Those in which it does nothing more by itself.
_OVER: Final = {Stage.OUT, Stage.LIVE, Stage.ENDED, Stage.DEAD}


class Takeovers:
    """A setting and the rules that its processes keep to."""

    takeover = "fence"

    def __init__(self, setting: Setting, rules: Rules = Rules()) -> None:  # noqa: B008 - frozen
        self._setting = setting
        self._rules = rules

    def beginning(self) -> State:
        """The first process holds the shard and has logged nothing yet."""
        others = (Process(),) * (self._setting.processes - 1)
        return State((Process(Stage.LIVE, 0, True), *others), self._setting.faults)

    def steps(self, state: State) -> Iterator[Step]:
        """Every step that is not a fault."""
        if state.phase is Phase.ENDING:
            yield "aborted", state._replace(phase=Phase.IDLE)
        for at, process in enumerate(state.processes):
            for label, after in self._steps(state, at, process):
                yield f"{label} {at}", after

    def _steps(self, state: State, at: int, process: Process) -> Iterator[Step]:
        stage = process.stage
        if stage is Stage.CLAIM:
            yield "claim", _with(_claimed(state, at), at, Process(Stage.FENCE))
        elif stage is Stage.FENCE:
            yield from self._fence(state, at)
        elif stage is Stage.READ:
            yield "read", _with(state, at, Process(Stage.LIVE, state.logged, True))
        elif stage is Stage.LIVE and self._has_to_write(state, at):
            yield "begin", self._begun(state, at)
        elif stage is Stage.OPEN:
            yield from self._commit(state, at)
        elif stage is Stage.FENCED:
            yield "learn", _to(state, at, Stage.LOOK if self._rules.returns else Stage.ENDED)
        elif stage is Stage.LOOK:
            yield "look", _with(state, at, self._looked(state, at))
        elif stage is Stage.WAIT:
            yield from self._wait(state, at)

    def _fence(self, state: State, at: int) -> Iterator[Step]:
        """One attempt; while an earlier transaction is being ended it is repeated."""
        if state.phase is Phase.ONGOING:
            after = Stage.LOOK if self._rules.keeps_looking else Stage.FENCE
            yield "abort before fence", _to(_fenced(state, at), at, after)
        elif state.phase is Phase.IDLE:
            yield "fence", _to(_fenced(state, at), at, Stage.READ)

    def _has_to_write(self, state: State, at: int) -> bool:
        """Whether there is a row, or a heartbeat that somebody waits for or that is refused."""
        is_awaited = any(p.stage is Stage.WAIT and not p.is_past for p in state.processes)
        return state.processes[at].row < self._setting.rows or state.holder != at or is_awaited

    def _begun(self, state: State, at: int) -> State:
        if state.holder != at:
            return _to(state, at, Stage.FENCED)
        return _to(state._replace(phase=Phase.ONGOING), at, Stage.OPEN)

    def _commit(self, state: State, at: int) -> Iterator[Step]:
        if state.holder == at:
            yield "commit", _to(self._committed(state, at), at, Stage.LIVE)
            return
        if state.phase is Phase.ENDING:
            yield "refused commit", _to(state, at, Stage.LOOK)
        yield "fenced commit", _to(state, at, Stage.FENCED)

    def _committed(self, state: State, at: int) -> State:
        row, logged = state.processes[at].row, state.logged
        if row < self._setting.rows:
            if row != logged:
                raise Violation(f"row {row} is logged behind {logged} rows")
            row, logged = row + 1, logged + 1
        processes = tuple(
            Process(each.stage, row, True)
            if number == at
            else each._replace(is_past=each.stage not in _OVER or each.stage is Stage.LIVE)
            for number, each in enumerate(state.processes)
        )
        return state._replace(processes=processes, phase=Phase.IDLE, logged=logged, writer=at)

    def _looked(self, state: State, at: int) -> Process:
        """What a process does after an error."""
        process = state.processes[at]
        if state.claimed == at or not self._rules.looks:
            return process._replace(stage=Stage.FENCE)
        stage = Stage.WAIT if self._rules.waits else Stage.ENDED
        return process._replace(stage=stage, is_past=process.has_read and process.is_past)

    def _wait(self, state: State, at: int) -> Iterator[Step]:
        if state.processes[at].is_past:
            yield "give way", _to(state, at, Stage.ENDED)
            return
        claimant = state.processes[state.claimed].stage
        if claimant is Stage.DEAD or not self._rules.is_patient:
            after = _to(state, at, Stage.FENCE)
            yield "claim of a dead one's shard", after._replace(claimed=at)

    def disturbances(self, state: State) -> Iterator[Step]:
        """Faults, starts and restarts."""
        for at, process in enumerate(state.processes):
            if process.stage is Stage.OUT:
                yield f"start {at}", _to(state, at, Stage.CLAIM)
            for label, after, faults in self._faults(state, at, process.stage):
                yield f"{label} {at}", after._replace(faults=faults)

    def _faults(self, state: State, at: int, stage: Stage) -> Iterator[tuple[str, State, Faults]]:
        faults = state.faults
        if faults.unknown:
            left = faults._replace(unknown=faults.unknown - 1)
            for label, after in self._unknown(state, at, stage):
                yield f"unknown: {label}", after, left
        if faults.others and stage in {Stage.READ, Stage.LIVE}:
            left = faults._replace(others=faults.others - 1)
            yield "another fault", _to(state, at, Stage.LOOK), left
        if faults.deaths and stage not in {Stage.OUT, Stage.ENDED, Stage.DEAD}:
            left = faults._replace(deaths=faults.deaths - 1)
            yield "death", _to(state, at, Stage.DEAD), left
        if faults.restarts and stage is Stage.DEAD:
            left = faults._replace(restarts=faults.restarts - 1)
            yield "restart", _to(state, at, Stage.CLAIM), left

    def _unknown(self, state: State, at: int, stage: Stage) -> Iterator[Step]:
        """Calls whose answer says nothing, with and without effect."""
        if stage is Stage.CLAIM:  # which is repeated
            yield "claimed", _claimed(state, at)
        elif stage is Stage.FENCE:
            yield "not fenced", _to(state, at, Stage.LOOK)
            if state.phase is not Phase.ENDING:
                yield "fenced", _to(_fenced(state, at), at, Stage.LOOK)
        elif stage is Stage.LIVE:
            yield "begun", _to(self._begun(state, at), at, Stage.LOOK)
        elif stage is Stage.OPEN:
            yield "not committed", _to(state, at, Stage.LOOK)
            if state.holder == at:
                yield "committed", _to(self._committed(state, at), at, Stage.LOOK)

    def check(self, state: State) -> None:
        """Rows are checked where they are logged."""

    def check_rest(self, state: State) -> None:
        """One process produces, the one that was started last, and every row is logged."""
        stages = [process.stage for process in state.processes]
        if not _OVER.issuperset(stages):
            raise Violation(f"somebody stands still: {stages}")
        live = [at for at, stage in enumerate(stages) if stage is Stage.LIVE]
        if not live:
            # Once the one that wrote last has died, somebody starts a producer again.
            if stages[state.writer] is not Stage.DEAD:
                raise Violation("no producer")
            return
        if live != [state.holder] or state.logged != self._setting.rows:
            raise Violation(f"{live} produce, {state.logged} rows are logged")
        if stages[state.started] not in {Stage.LIVE, Stage.DEAD}:
            raise Violation(f"the one started last has ended: {state.started}")


def _with(state: State, at: int, process: Process) -> State:
    processes = (*state.processes[:at], process, *state.processes[at + 1 :])
    return state._replace(processes=processes)


def _to(state: State, at: int, stage: Stage) -> State:
    return _with(state, at, state.processes[at]._replace(stage=stage))


def _claimed(state: State, at: int) -> State:
    return state._replace(claimed=at, started=at)


def _fenced(state: State, at: int) -> State:
    """What a call of `init_transactions` does: an open transaction is aborted first."""
    if state.phase is Phase.ONGOING:
        return state._replace(holder=NOBODY, phase=Phase.ENDING)
    return state._replace(holder=at)
