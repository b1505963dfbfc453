"""Chooses the next step of `switch` and `cancel` from the state of everything. Pure.

What decides is the first mark of the reshard in each target's log: BEGIN in all of them, and it is
switched for good; CANCEL in one, and it is cancelled for good. The topology says what was decided,
and is written only while its fence is held, after looking at all target logs. Each choice looks at
servers, logs and topology, so a command that was killed anywhere resumes when it is run again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from event_token.errors import Halt, UsageError
from topics.keyspace.topology import (
    BeginDecision,
    ReshardEntry,
    ReshardState,
    ShardEntry,
    ShardState,
    Topology,
)
from topics.progress.record import GRID_US, JournalKind, MarkKind, cell_start_us


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A shard's journal row; only BEGIN has a hop time."""

    kind: JournalKind
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
    shards on which a later reshard has END. `aside`: by target, rows that are set aside although
    the target has everything, in words.
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
    aside: Mapping[str, Sequence[str]] = field(default_factory=dict)

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
    # As a row of the journal; the producer of the target logs it as the mark.
    WRITE_BEGIN = "write BEGIN"
    AWAIT_BEGIN = "wait for BEGIN in the log"
    APPEND_CANCEL = "append CANCEL to the log"
    WRITE_CANCELLED = "write CANCELLED"
    CHANGE_TOPOLOGY = "change the topology"
    RESTORE_TRIGGERS = "create triggers, raise counters"
    OPEN_WRITES = "open writes"
    DONE = "done"
    REFUSE = "refuse"


class NextCommand(StrEnum):
    """The command that a refusal names: with it the reshard can be completed or cancelled."""

    SWITCH = "shardstream reshard switch"
    SWITCH_LOST_SOURCE = "shardstream reshard switch --lost-source"
    CANCEL = "shardstream reshard cancel"
    CANCEL_LOST_TARGET = "shardstream reshard cancel --lost-target"
    CREATE = "shardstream reshard create"


@dataclass(frozen=True, slots=True)
class SwitchStep:
    """One step. `shard`: where, "" for the topology.

    `decision`: of DECIDE and BEGIN. `state`: what the topology becomes. `why` and `way`: of a
    refusal, with the commands that go on from there.
    """

    action: Action
    shard: str = ""
    decision: BeginDecision | None = None
    state: ReshardState | None = None
    why: str = ""
    ways: tuple[NextCommand, ...] = ()

    def __str__(self) -> str:
        """The step in words."""
        return f"{self.action.value} ({self.shard})" if self.shard else self.action.value


def refusal(why: str, *ways: NextCommand) -> SwitchStep:
    """A refusal that says why, and which commands go on from there."""
    return SwitchStep(Action.REFUSE, why=why, ways=ways)


def hop_time_us(ends: Mapping[str, SourceEnd]) -> int:
    """The end of the grid cell that holds the latest END."""
    return cell_start_us(max(end.timestamp_us for end in ends.values())) + GRID_US


def next_switch_step(view: ReshardView, *, lost_source: bool = False) -> SwitchStep:
    """The next step of `switch`; `lost_source`: sources without a server are lost for good."""
    if view.state is ReshardState.COMPLETED:
        return SwitchStep(Action.DONE)
    if view.state is ReshardState.CANCELLED or view.cancelled:
        where = ", ".join(view.cancelled) or "in the topology"
        return refusal(
            f"it is cancelled ({where}): to be sure that its sources are open run the first of "
            f"these commands, to try again under another id the second",
            *(NextCommand.CANCEL, NextCommand.CREATE),
        )
    if view.state is ReshardState.DECLARED:
        return refusal("it was done by other tools")
    if view.state is ReshardState.SWITCHED:
        return _open_targets(view, lost_source=lost_source)
    if view.decision is None:
        return _before_decision(view)
    return _begin(view, view.decision, lost_source=lost_source)


def _before_decision(view: ReshardView) -> SwitchStep:
    rows = sorted(s for s, row in view.journal.items() if row.kind is JournalKind.CANCELLED)
    if rows:  # the topology was restored from a copy: it is cancelled for good
        return refusal(f"{', '.join(rows)} has CANCELLED in its journal", NextCommand.CANCEL)
    if view.begun:
        return _take_over_begin(view)
    for shard, why in sorted(view.missing.items()):
        return refusal(f"{shard} cannot be used: {why}", NextCommand.SWITCH, NextCommand.CANCEL)
    # Targets first: they have no writers yet, so nobody waits meanwhile.
    for shard in (*sorted(view.targets), *sorted(view.sources)):
        if shard not in view.quiet:
            return SwitchStep(Action.STOP_WRITES, shard)
    for source in sorted(view.sources):
        if source not in view.journal:
            return SwitchStep(Action.WRITE_END, source)
    for source in sorted(view.sources):
        if source not in view.ends:
            return SwitchStep(Action.AWAIT_END, source)
    seqs = {source: end.seq for source, end in view.ends.items()}
    for target in sorted(view.targets):
        if not view.has_drained(target, seqs):
            return SwitchStep(Action.AWAIT_DRAIN, target)
    for source in sorted(view.sources):
        if source not in view.logged:
            return SwitchStep(Action.AWAIT_LOG, source)
    for waiting in view.aside.values():
        return refusal(
            f"sources hold rows that exclude each other, so a target lacks some: "
            f"{'; '.join(waiting)}. Writes are stopped: go back to the sources, resolve that "
            f"there, and create another reshard",
            *(NextCommand.CANCEL, NextCommand.CREATE),
        )
    if not view.fenced:
        return SwitchStep(Action.FENCE)
    return SwitchStep(Action.DECIDE, decision=BeginDecision(hop_time_us(view.ends), seqs))


def _take_over_begin(view: ReshardView) -> SwitchStep:
    """The decision that the logs hold and the topology lacks: it was restored from a copy."""
    for source in sorted(view.sources):
        if source not in view.ends:
            return refusal(
                f"the log of {view.begun[0]} has BEGIN, but that of {source} has no END",
                *(NextCommand.SWITCH, NextCommand.CANCEL_LOST_TARGET),
            )
    if not view.fenced:
        return SwitchStep(Action.FENCE)
    hop_us = view.marks[view.begun[0]].hop_time_us or 0
    seqs = {source: end.seq for source, end in view.ends.items()}
    return SwitchStep(Action.DECIDE, decision=BeginDecision(hop_us, seqs))


def _lock_sources(view: ReshardView, *, lost_source: bool) -> SwitchStep | None:
    """A failover may have lost a source's locks: they are looked at until the targets are open."""
    for source in sorted(view.sources):
        if source in view.missing:
            if source not in view.gone:
                return refusal(
                    f"{source} is not lost, but it cannot be used ({view.missing[source]}), so it "
                    f"is unknown whether its accounts are still locked: fix that",
                    NextCommand.SWITCH,
                )
            if not lost_source:
                return refusal(
                    f"no server of {source} answers ({view.missing[source]}), so it is unknown "
                    f"whether its accounts are still locked: bring it back, or, if it is lost for "
                    f"good, say so",
                    *(NextCommand.SWITCH, NextCommand.SWITCH_LOST_SOURCE),
                )
        elif source not in view.quiet:
            return SwitchStep(Action.STOP_WRITES, source)
    return None


def _begin(view: ReshardView, decision: BeginDecision, *, lost_source: bool) -> SwitchStep:
    if step := _lock_sources(view, lost_source=lost_source):
        return step
    silent = [target for target in sorted(view.targets) if target not in view.begun]
    for target in silent:
        row = view.journal.get(target)
        if target in view.missing:
            return refusal(
                f"{target} has no BEGIN yet and cannot be used ({view.missing[target]}): bring it "
                f"back, or, if it is lost for good, cancel",
                *(NextCommand.SWITCH, NextCommand.CANCEL_LOST_TARGET),
            )
        if row is not None and row != JournalRow(JournalKind.BEGIN, decision.hop_time_us):
            return refusal(
                f"{target} has {row.kind.value} {row.hop_time_us or ''} in its journal, which is "
                f"not what was decided (BEGIN {decision.hop_time_us})",
                NextCommand.CANCEL_LOST_TARGET,
            )
        if target not in view.quiet:
            return SwitchStep(Action.STOP_WRITES, target)
        # Again, for a failover may have lost rows: what is applied behind BEGIN would be repeated.
        if not view.has_drained(target, decision.ends):
            return SwitchStep(Action.AWAIT_DRAIN, target)
        if row is None:
            return SwitchStep(Action.WRITE_BEGIN, target, decision)
    for target in silent:
        return SwitchStep(Action.AWAIT_BEGIN, target)
    if not view.fenced:
        return SwitchStep(Action.FENCE)
    return SwitchStep(Action.CHANGE_TOPOLOGY, state=ReshardState.SWITCHED)


def _open_targets(view: ReshardView, *, lost_source: bool) -> SwitchStep:
    here = [target for target in sorted(view.targets) if target not in view.missing]
    closed = [target for target in here if target not in view.open | view.held]
    if closed and (step := _lock_sources(view, lost_source=lost_source)):
        return step
    ends = {} if view.decision is None else view.decision.ends
    for target in closed:
        if not view.has_drained(target, ends):
            return SwitchStep(Action.AWAIT_DRAIN, target)
        if target not in view.restored:
            return SwitchStep(Action.RESTORE_TRIGGERS, target)
    for target in closed:
        return SwitchStep(Action.OPEN_WRITES, target)
    return _still_missing(view, view.targets, "switched", NextCommand.SWITCH) or SwitchStep(
        Action.DONE
    )


def next_cancel_step(view: ReshardView, *, lost_target: bool = False) -> SwitchStep:
    """The next step of `cancel`; `lost_target`: also after the decision that the targets begin."""
    if view.state is ReshardState.DECLARED:
        return refusal("it was done by other tools")
    if view.state in {ReshardState.SWITCHED, ReshardState.COMPLETED}:
        return refusal(f"it is {view.state.value}", NextCommand.SWITCH)
    if view.state is ReshardState.CANCELLED:
        return _open_sources(view)
    if len(view.begun) == len(view.targets):
        return refusal("all targets have begun", NextCommand.SWITCH)
    is_decided = view.decision is not None or view.begun
    if is_decided and not view.cancelled and not lost_target:
        return refusal(
            "it is decided that the targets begin: complete it, or, if a target is lost for good, "
            "say so",
            *(NextCommand.SWITCH, NextCommand.CANCEL_LOST_TARGET),
        )
    if not view.fenced:
        return SwitchStep(Action.FENCE)
    for target in sorted(view.targets):
        if target not in view.marks:
            return SwitchStep(Action.APPEND_CANCEL, target)
    return SwitchStep(Action.CHANGE_TOPOLOGY, state=ReshardState.CANCELLED)


def _open_sources(view: ReshardView) -> SwitchStep:
    for source in sorted(view.sources):
        if source in view.missing:
            continue
        row = view.journal.get(source)
        if row is None or row.kind is not JournalKind.CANCELLED:
            return SwitchStep(Action.WRITE_CANCELLED, source)
        # Where a later reshard has stopped writes again, rows would come behind its END.
        if source not in view.open | view.held:
            return SwitchStep(Action.OPEN_WRITES, source)
    return _still_missing(view, view.sources, "cancelled", NextCommand.CANCEL) or SwitchStep(
        Action.DONE
    )


def _still_missing(
    view: ReshardView, shards: Iterable[str], how: str, way: NextCommand
) -> SwitchStep | None:
    missing = [f"{shard} ({view.missing[shard]})" for shard in shards if shard in view.missing]
    if not missing:
        return None
    return refusal(
        f"it is {how}, but writes are still stopped on {', '.join(missing)}: when there is a "
        f"server again, continue",
        way,
    )


def entry_of(topology: Topology | None, keyspace: str, reshard_id: str) -> ReshardEntry:
    """The reshard's entry; UsageError lists the known ones."""
    entries = () if topology is None else topology.reshards
    for entry in entries:
        if entry.reshard_id == reshard_id:
            return entry
    known = ", ".join(entry.reshard_id for entry in entries) or "none"
    raise UsageError(
        f"keyspace {keyspace} has no reshard {reshard_id!r}; the topology has: {known}"
    )


# The state that each is reached from.
_BEFORE = {
    ReshardState.SWITCHED: ReshardState.RUNNING,
    ReshardState.CANCELLED: ReshardState.RUNNING,
    ReshardState.COMPLETED: ReshardState.SWITCHED,
}


def decided(
    topology: Topology | None, keyspace: str, reshard_id: str, decision: BeginDecision
) -> Topology:
    """The topology with the decision that the targets of a reshard begin."""
    entry = entry_of(topology, keyspace, reshard_id)
    return _with_entry(topology, entry, replace(entry, decision=decision))


def moved(
    topology: Topology | None, keyspace: str, reshard_id: str, state: ReshardState
) -> Topology:
    """The topology with the reshard in `state`; unchanged if it is there already.

    SWITCHED: the targets serve, the sources are retired, and the epoch grows by one. CANCELLED: the
    targets are retired, for a name is used once. Halt when the present state excludes that.
    """
    entry = entry_of(topology, keyspace, reshard_id)
    if entry.state == state.value:
        return _with_entry(topology, entry, entry)
    if entry.state != _BEFORE[state].value:
        raise Halt(
            f"reshard {reshard_id} of keyspace {keyspace} is {entry.state} in the topology and "
            f"cannot become {state.value}"
        )
    if state is ReshardState.SWITCHED:
        if entry.decision is None:
            raise Halt(f"reshard {reshard_id} of keyspace {keyspace} is not decided: run switch")
        after = replace(entry, state=state.value, hop_time_us=entry.decision.hop_time_us)
        roles = {
            **dict.fromkeys(entry.sources, ShardState.RETIRED),
            **dict.fromkeys(entry.targets, ShardState.SERVING),
        }
        topology = _with_entry(topology, entry, after, roles)
        return replace(topology, epoch=topology.epoch + 1)
    after = replace(entry, state=state.value, decision=None)
    is_over = state is ReshardState.CANCELLED
    retired = dict.fromkeys(entry.targets if is_over else (), ShardState.RETIRED)
    return _with_entry(topology, entry, after, retired)


def _with_entry(
    topology: Topology | None,
    before: ReshardEntry,
    after: ReshardEntry,
    states: Mapping[str, ShardState] = MappingProxyType({}),
) -> Topology:
    assert topology is not None  # noqa: S101 - it has the entry
    known = {shard.name: shard for shard in topology.shards}
    known |= {name: ShardEntry(name, state) for name, state in states.items()}
    reshards = tuple(after if entry is before else entry for entry in topology.reshards)
    return replace(topology, shards=tuple(known.values()), reshards=reshards)
