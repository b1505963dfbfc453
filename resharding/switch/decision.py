"""Chooses the next step of `switch` and `cancel` from the state of everything. Pure.

What decides is the first mark of the reshard in each target's log: BEGIN in all of them, and it is
switched for good; CANCEL in one, and it is cancelled for good. The topology says what was decided,
and is written only while its fence is held, after looking at all target logs. Each choice looks at
servers, logs and topology, so a command that was killed anywhere resumes when it is run again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from topics.keyspace.topology import BeginDecision, ReshardState
from topics.progress.record import GRID_US, MarkKind, cell_start_us


class Kind(StrEnum):
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
class FirstMark:
    """The first mark of the reshard in a target's log: BEGIN or CANCEL."""

    kind: MarkKind
    hop_time_us: int | None = None


@dataclass(frozen=True, slots=True)
class ReshardView:
    """The present state of a reshard.

    `state` and `decision`: the topology's. `fenced`: this command holds the topology's fence, and
    has read it and the marks since. `marks`: by target. `missing`: shards whose server was not
    claimed, and why; what is known of servers (journal, `quiet`, `open`, checkpoints, `restored`)
    is known of the others alone. `gone`: those of them where no server answers.

    `quiet`: shards whose application accounts are all locked and have no session. `open`: shards
    whose accounts are all unlocked. `checkpoints`: (target, source) -> seq. `ends`, needed before
    the decision: in the log of a source whose journal has END. `logged`: sources whose log holds
    everything that the server had executed when the targets were found to have reached END, and
    all targets have passed it.
    `restored`: targets that have the sources' triggers and counters, or are open already. `held`:
    shards on which a later reshard has END.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    state: ReshardState
    decision: BeginDecision | None = None
    fenced: bool = False
    marks: Mapping[str, FirstMark] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    journal: Mapping[str, JournalRow] = field(default_factory=dict)
    quiet: frozenset[str] = frozenset()
    open: frozenset[str] = frozenset()
    ends: Mapping[str, SourceEnd] = field(default_factory=dict)
    checkpoints: Mapping[tuple[str, str], int] = field(default_factory=dict)
    restored: frozenset[str] = frozenset()
    logged: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()

    @property
    def begun(self) -> list[str]:
        """The targets whose log has BEGIN first."""
        return [t for t in self.targets if t in self.marks and self.marks[t].kind is MarkKind.BEGIN]

    @property
    def cancelled(self) -> list[str]:
        """The targets whose log has CANCEL first."""
        return [t for t in self.marks if self.marks[t].kind is MarkKind.CANCEL]

    @property
    def lost_sources(self) -> dict[str, str]:
        """The sources without a server, and why: what they alone have comes to no target."""
        return {source: self.missing[source] for source in self.sources if source in self.missing}

    @property
    def is_drained(self) -> bool:
        """Whether every target has applied every source up to its END."""
        seqs = {source: end.seq for source, end in self.ends.items()}
        return len(seqs) == len(self.sources) and all(
            self.has_drained(target, seqs) for target in self.targets
        )

    def has_drained(self, target: str, ends: Mapping[str, int]) -> bool:
        """Whether a target has applied these ENDs: their seq by source."""
        return all(self.checkpoints.get((target, s), -1) >= seq for s, seq in ends.items())


class Action(StrEnum):
    """The kind of a step."""

    STOP_WRITES = "stop writes"
    WRITE_END = "write END"
    AWAIT_END = "wait for END in the log"
    AWAIT_DRAIN = "wait until the target has everything"
    AWAIT_LOG = "wait for the last transactions in the log"
    FENCE = "take over the topology"
    DECIDE = "decide"
    WRITE_BEGIN = "write BEGIN"
    AWAIT_BEGIN = "wait for BEGIN in the log"
    APPEND_CANCEL = "append CANCEL to the log"
    WRITE_CANCELLED = "write CANCELLED"
    CHANGE_TOPOLOGY = "change the topology"
    RESTORE_TRIGGERS = "create triggers, raise counters"
    OPEN_WRITES = "open writes"
    DONE = "done"
    REFUSE = "refuse"


class Way(StrEnum):
    """The command that a refusal names: with it the reshard can be completed or cancelled."""

    SWITCH = "shardstream reshard switch"
    SWITCH_LOST_SOURCE = "shardstream reshard switch --lost-source"
    CANCEL = "shardstream reshard cancel"
    CANCEL_LOST_TARGET = "shardstream reshard cancel --lost-target"
    CREATE = "shardstream reshard create"


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `shard`: where, "" for the topology.

    `decision`: of DECIDE and BEGIN. `state`: what the topology becomes. `why` and `way`: of a
    refusal, with the commands that go on from there.
    """

    action: Action
    shard: str = ""
    decision: BeginDecision | None = None
    state: ReshardState | None = None
    why: str = ""
    ways: tuple[Way, ...] = ()

    def __str__(self) -> str:
        """The step in words."""
        return f"{self.action.value} ({self.shard})" if self.shard else self.action.value


def refusal(why: str, *ways: Way) -> Step:
    """A refusal that says why, and which commands go on from there."""
    return Step(Action.REFUSE, why=why, ways=ways)


def hop_time_us(ends: Mapping[str, SourceEnd]) -> int:
    """The end of the grid cell that holds the latest END."""
    return cell_start_us(max(end.timestamp_us for end in ends.values())) + GRID_US


def next_switch_step(view: ReshardView, *, lost_source: bool = False) -> Step:
    """The next step of `switch`; `lost_source`: sources without a server are lost for good."""
    if view.state is ReshardState.COMPLETED:
        return Step(Action.DONE)
    if view.state is ReshardState.CANCELLED or view.cancelled:
        where = ", ".join(view.cancelled) or "in the topology"
        return refusal(
            f"it is cancelled ({where}): to be sure that its sources are open run the first of "
            f"these commands, to try again under another id the second",
            *(Way.CANCEL, Way.CREATE),
        )
    if view.state is ReshardState.DECLARED:
        return refusal("it was done by other tools")
    if view.state is ReshardState.SWITCHED:
        return _open_targets(view, lost_source=lost_source)
    if view.decision is None:
        return _before_decision(view)
    return _begin(view, view.decision, lost_source=lost_source)


def _before_decision(view: ReshardView) -> Step:
    rows = sorted(s for s, row in view.journal.items() if row.kind is Kind.CANCELLED)
    if rows:  # of a `cancel` of the release before, which wrote rows first
        return refusal(f"{', '.join(rows)} has CANCELLED in its journal", Way.CANCEL)
    if view.begun:
        return _take_over_begin(view)
    for shard, why in sorted(view.missing.items()):
        return refusal(f"{shard} cannot be used: {why}", Way.SWITCH, Way.CANCEL)
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
    seqs = {source: end.seq for source, end in view.ends.items()}
    for target in sorted(view.targets):
        if not view.has_drained(target, seqs):
            return Step(Action.AWAIT_DRAIN, target)
    for source in sorted(view.sources):
        if source not in view.logged:
            return Step(Action.AWAIT_LOG, source)
    if not view.fenced:
        return Step(Action.FENCE)
    return Step(Action.DECIDE, decision=BeginDecision(hop_time_us(view.ends), seqs))


def _take_over_begin(view: ReshardView) -> Step:
    """The decision that the logs hold and the topology lacks.

    It is of the release before, or the topology was restored from a copy.
    """
    for source in sorted(view.sources):
        if source not in view.ends:
            return refusal(
                f"the log of {view.begun[0]} has BEGIN, but that of {source} has no END",
                *(Way.SWITCH, Way.CANCEL_LOST_TARGET),
            )
    if not view.fenced:
        return Step(Action.FENCE)
    hop_us = view.marks[view.begun[0]].hop_time_us or 0
    seqs = {source: end.seq for source, end in view.ends.items()}
    return Step(Action.DECIDE, decision=BeginDecision(hop_us, seqs))


def _lock_sources(view: ReshardView, *, lost_source: bool) -> Step | None:
    """A failover may have lost a source's locks: they are looked at until the targets are open."""
    for source in sorted(view.sources):
        if source in view.missing:
            if source not in view.gone:
                return refusal(
                    f"{source} is not lost, but it cannot be used ({view.missing[source]}), so it "
                    f"is unknown whether its accounts are still locked: fix that",
                    Way.SWITCH,
                )
            if not lost_source:
                return refusal(
                    f"no server of {source} answers ({view.missing[source]}), so it is unknown "
                    f"whether its accounts are still locked: bring it back, or, if it is lost for "
                    f"good, say so",
                    *(Way.SWITCH, Way.SWITCH_LOST_SOURCE),
                )
        elif source not in view.quiet:
            return Step(Action.STOP_WRITES, source)
    return None


def _begin(view: ReshardView, decision: BeginDecision, *, lost_source: bool) -> Step:
    if step := _lock_sources(view, lost_source=lost_source):
        return step
    silent = [target for target in sorted(view.targets) if target not in view.begun]
    for target in silent:
        row = view.journal.get(target)
        if target in view.missing:
            return refusal(
                f"{target} has no BEGIN yet and cannot be used ({view.missing[target]}): bring it "
                f"back, or, if it is lost for good, cancel",
                *(Way.SWITCH, Way.CANCEL_LOST_TARGET),
            )
        if row is not None and row != JournalRow(Kind.BEGIN, decision.hop_time_us):
            return refusal(
                f"{target} has {row.kind.value} {row.hop_time_us or ''} in its journal, which is "
                f"not what was decided (BEGIN {decision.hop_time_us})",
                Way.CANCEL_LOST_TARGET,
            )
        if target not in view.quiet:
            return Step(Action.STOP_WRITES, target)
        # Again, for a failover may have lost rows: what is applied behind BEGIN would be repeated.
        if not view.has_drained(target, decision.ends):
            return Step(Action.AWAIT_DRAIN, target)
        if row is None:
            return Step(Action.WRITE_BEGIN, target, decision)
    for target in silent:
        return Step(Action.AWAIT_BEGIN, target)
    if not view.fenced:
        return Step(Action.FENCE)
    return Step(Action.CHANGE_TOPOLOGY, state=ReshardState.SWITCHED)


def _open_targets(view: ReshardView, *, lost_source: bool) -> Step:
    here = [target for target in sorted(view.targets) if target not in view.missing]
    closed = [target for target in here if target not in view.open | view.held]
    if closed and (step := _lock_sources(view, lost_source=lost_source)):
        return step
    ends = {} if view.decision is None else view.decision.ends
    for target in closed:
        if not view.has_drained(target, ends):
            return Step(Action.AWAIT_DRAIN, target)
        if target not in view.restored:
            return Step(Action.RESTORE_TRIGGERS, target)
    for target in closed:
        return Step(Action.OPEN_WRITES, target)
    return _still_missing(view, view.targets, "switched", Way.SWITCH) or Step(Action.DONE)


def next_cancel_step(view: ReshardView, *, lost_target: bool = False) -> Step:
    """The next step of `cancel`; `lost_target`: also after the decision that the targets begin."""
    if view.state is ReshardState.DECLARED:
        return refusal("it was done by other tools")
    if view.state in {ReshardState.SWITCHED, ReshardState.COMPLETED}:
        return refusal(f"it is {view.state.value}", Way.SWITCH)
    if view.state is ReshardState.CANCELLED:
        return _open_sources(view)
    if len(view.begun) == len(view.targets):
        return refusal("all targets have begun", Way.SWITCH)
    is_decided = view.decision is not None or view.begun
    if is_decided and not view.cancelled and not lost_target:
        return refusal(
            "it is decided that the targets begin: complete it, or, if a target is lost for good, "
            "say so",
            *(Way.SWITCH, Way.CANCEL_LOST_TARGET),
        )
    if not view.fenced:
        return Step(Action.FENCE)
    for target in sorted(view.targets):
        if target not in view.marks:
            return Step(Action.APPEND_CANCEL, target)
    return Step(Action.CHANGE_TOPOLOGY, state=ReshardState.CANCELLED)


def _open_sources(view: ReshardView) -> Step:
    for source in sorted(view.sources):
        if source in view.missing:
            continue
        row = view.journal.get(source)
        if row is None or row.kind is not Kind.CANCELLED:
            return Step(Action.WRITE_CANCELLED, source)
        # Where a later reshard has stopped writes again, rows would come behind its END.
        if source not in view.open | view.held:
            return Step(Action.OPEN_WRITES, source)
    return _still_missing(view, view.sources, "cancelled", Way.CANCEL) or Step(Action.DONE)


def _still_missing(view: ReshardView, shards: Iterable[str], how: str, way: Way) -> Step | None:
    missing = [f"{shard} ({view.missing[shard]})" for shard in shards if shard in view.missing]
    if not missing:
        return None
    return refusal(
        f"it is {how}, but writes are still stopped on {', '.join(missing)}: when there is a "
        f"server again, continue",
        way,
    )
