"""Chooses the next step of `switch` and `cancel` from the state of everything. Pure.

Each choice looks at servers, logs and topology, so a command that was killed anywhere resumes when
it is run again. BEGIN and CANCELLED are one row (its key is the reshard id) in the journal of the
first target by name: whichever is inserted first decides, and the other shards follow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from topics.keyspace.topology import ReshardState
from topics.progress.record import GRID_US, cell_start_us


class Kind(str, Enum):
    """The kind of a journal row."""

    END = "END"
    BEGIN = "BEGIN"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A shard's journal row; only BEGIN has a hop time."""

    kind: Kind
    hop_time_us: int | None = None


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """The END record in a source's log."""

    seq: int
    timestamp_us: int


@dataclass(frozen=True, slots=True)
class ReshardView:
    """The present state of a reshard.

    `quiet`: shards whose application accounts are all locked and have no session. `open`: shards
    whose accounts are all unlocked. `ends` and `checkpoints` ((target, source) -> seq) matter only
    before the decision. `logged`: sources whose log holds everything that the server had executed
    when the targets were found to have reached END. `restored`: targets with the sources' triggers.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    state: ReshardState
    journal: Mapping[str, JournalRow] = field(default_factory=dict)
    quiet: frozenset[str] = frozenset()
    open: frozenset[str] = frozenset()
    ends: Mapping[str, SourceEnd] = field(default_factory=dict)
    checkpoints: Mapping[tuple[str, str], int] = field(default_factory=dict)
    restored: frozenset[str] = frozenset()
    logged: frozenset[str] = frozenset()

    @property
    def is_drained(self) -> bool:
        """Whether every target has applied every source up to its END."""
        return len(self.ends) == len(self.sources) and all(map(self.has_drained, self.targets))

    def has_drained(self, target: str) -> bool:
        """Whether a target has applied the ENDs that are known so far."""
        return all(self.checkpoints.get((target, s), -1) >= e.seq for s, e in self.ends.items())

    @property
    def decider(self) -> str:
        """The target whose journal decides between BEGIN and CANCELLED."""
        return min(self.targets)

    @property
    def decision(self) -> Kind | None:
        """BEGIN or CANCELLED; None while undecided."""
        row = self.journal.get(self.decider)
        return None if row is None else row.kind


class Action(str, Enum):
    """The kind of a step."""

    STOP_WRITES = "stop writes"
    WRITE_END = "write END"
    AWAIT_END = "wait for END in the log"
    AWAIT_DRAIN = "wait until the target has everything"
    AWAIT_LOG = "wait for the last transactions in the log"
    WRITE_BEGIN = "write BEGIN"
    WRITE_CANCELLED = "write CANCELLED"
    CHANGE_TOPOLOGY = "change the topology"
    RESTORE_TRIGGERS = "create the triggers"
    OPEN_WRITES = "open writes"
    DONE = "done"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `shard`: where, "" for the topology; `hop_time_us`: of BEGIN and the topology."""

    action: Action
    shard: str = ""
    hop_time_us: int | None = None
    state: ReshardState | None = None
    why: str = ""

    def __str__(self) -> str:
        """The step in words."""
        return f"{self.action.value} ({self.shard})" if self.shard else self.action.value


def next_switch_step(view: ReshardView) -> Step:
    """The next step of `switch`."""
    if view.decision is Kind.BEGIN:
        return _after_begin(view)
    cancelled = sorted(s for s, row in view.journal.items() if row.kind is Kind.CANCELLED)
    if cancelled or view.state is ReshardState.CANCELLED:
        return Step(
            Action.REFUSE,
            why=f"it was cancelled ({', '.join(cancelled) or 'in the topology'}): create a new one",
        )
    if view.state is not ReshardState.RUNNING:
        return Step(Action.REFUSE, why=f"it is {view.state.value}, but no target has BEGIN")
    # Targets first: they have no writers yet, so nobody waits meanwhile.
    for shard in (*sorted(view.targets), *sorted(view.sources)):
        if shard not in view.quiet:
            return Step(Action.STOP_WRITES, shard)
    for source in sorted(view.sources):
        if source not in view.journal:
            return Step(Action.WRITE_END, source)
    for source in sorted(view.sources):
        if source not in view.ends:
            return Step(Action.AWAIT_END, source)
    for target in sorted(view.targets):
        if not view.has_drained(target):
            return Step(Action.AWAIT_DRAIN, target)
    for source in sorted(view.sources):
        if source not in view.logged:
            return Step(Action.AWAIT_LOG, source)
    return Step(Action.WRITE_BEGIN, view.decider, hop_time_us=hop_time_us(view.ends))


def hop_time_us(ends: Mapping[str, SourceEnd]) -> int:
    """The end of the grid cell that holds the latest END."""
    return cell_start_us(max(end.timestamp_us for end in ends.values())) + GRID_US


def _after_begin(view: ReshardView) -> Step:
    hop = view.journal[view.decider].hop_time_us
    for target in sorted(view.targets):
        row = view.journal.get(target)
        if row is None:
            return Step(Action.WRITE_BEGIN, target, hop_time_us=hop)
        if row.kind is not Kind.BEGIN:
            return Step(
                Action.REFUSE,
                why=f"{target} says {row.kind.value}, but {view.decider} has begun",
            )
    if view.state is ReshardState.RUNNING:
        return Step(Action.CHANGE_TOPOLOGY, hop_time_us=hop, state=ReshardState.SWITCHED)
    if view.state is ReshardState.CANCELLED:
        return Step(Action.REFUSE, why=f"the topology says CANCELLED, {view.decider} has begun")
    if view.state is ReshardState.COMPLETED:
        return Step(Action.DONE)
    for target in sorted(view.targets):
        if target not in view.restored:
            return Step(Action.RESTORE_TRIGGERS, target)
    for target in sorted(view.targets):
        if target not in view.open:
            return Step(Action.OPEN_WRITES, target)
    return Step(Action.DONE)


def next_cancel_step(view: ReshardView) -> Step:
    """The next step of `cancel`."""
    if view.decision is Kind.BEGIN:
        return Step(
            Action.REFUSE, why=f"it has begun on {view.decider}: run switch again to complete it"
        )
    if view.state in {ReshardState.SWITCHED, ReshardState.COMPLETED}:
        return Step(Action.REFUSE, why=f"it is {view.state.value}")
    for shard in (*sorted(view.targets), *sorted(view.sources)):
        row = view.journal.get(shard)
        if row is None or row.kind is not Kind.CANCELLED:
            return Step(Action.WRITE_CANCELLED, shard)
    if view.state is not ReshardState.CANCELLED:
        return Step(Action.CHANGE_TOPOLOGY, state=ReshardState.CANCELLED)
    for source in sorted(view.sources):
        if source not in view.open:
            return Step(Action.OPEN_WRITES, source)
    return Step(Action.DONE)
