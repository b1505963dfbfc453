"""A model of everything that a reshard touches: servers that fail over, logs, topology, commands.

A server is its binlog: a failover cuts off what the new primary lacks. Producers and appliers take
a step when asked. A command looks (which gives a step) and acts on it later, or never.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from resharding.switch.decision import (
    Action,
    FirstMark,
    JournalRow,
    ReshardView,
    SourceEnd,
    SwitchStep,
)
from topics.keyspace.topology import BeginDecision, ReshardState
from topics.progress.record import GRID_US, JournalKind, MarkKind, cell_start_us

STEP_US: Final = 7_000
ANOTHER_RESHARD: Final = 1_000_000  # the claim of a command of a later reshard


class ClaimLost(Exception):  # noqa: N818 - what happened
    """Raised where a command's session has ended."""


class Violation(Exception):  # noqa: N818 - what happened
    """Raised when something happens that must never happen."""


@dataclass(frozen=True)
class Op:
    """A transaction of a server: what, with which value, and a number that is its GTID."""

    kind: str
    value: Any
    gtid: int


@dataclass
class Server:
    """The primary of a shard; a failover makes another one of it."""

    binlog: list[Op] = field(default_factory=list)
    replicated: int = 0
    claim: int = 0
    generation: int = 0
    up: bool = True

    def last(self, *kinds: str) -> Op | None:
        return next((op for op in reversed(self.binlog) if op.kind in kinds), None)

    @property
    def locked(self) -> bool:
        op = self.last("lock", "unlock")
        return op is not None and op.kind == "lock"

    @property
    def row(self) -> JournalRow | None:
        op = self.last("END", "BEGIN", "CANCELLED")
        return None if op is None else JournalRow(JournalKind(op.kind), op.value)


@dataclass(frozen=True)
class Record:
    """A record of a shard log."""

    kind: str
    value: Any
    at_us: int


@dataclass(frozen=True)
class Rules:
    """Rules of the product outside of `decision`, each of which a mutation can leave out."""

    one_claim_for_all: bool = True
    claims_end_sessions: bool = True
    fence_holds: bool = True
    marks_are_looked_at: bool = True
    unknown_means_again: bool = True
    first_mark_counts: bool = True
    hop_waits_for_all: bool = True
    rows_after_end_stop: bool = True
    end_of_present_primary: bool = True
    cancel_reaches_logs: bool = True


ALL_RULES: Final = Rules()


@dataclass
class Topology:
    state: ReshardState = ReshardState.RUNNING
    decision: BeginDecision | None = None


Decide = Callable[[ReshardView], SwitchStep]


@dataclass
class Command:
    """A running command, with what it remembers."""

    number: int
    decide: Decide
    is_switch: bool
    claimed: dict[str, int]
    topology: Topology
    fenced: bool = False
    marks: dict[str, FirstMark] | None = None
    ends: dict[str, SourceEnd] = field(default_factory=dict)
    at_end: dict[str, int] = field(default_factory=dict)
    at_drain: dict[str, int] = field(default_factory=dict)
    decided: SwitchStep | None = None
    lost_source: bool = False


@dataclass
class World:
    """See the module. `halted`: why a shard's producer has stopped."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    rules: Rules = ALL_RULES
    servers: dict[str, Server] = field(default_factory=dict)
    logs: dict[str, list[Record]] = field(default_factory=dict)
    consumed: dict[str, list[Op]] = field(default_factory=dict)
    halted: dict[str, str] = field(default_factory=dict)
    topology: Topology = field(default_factory=Topology)
    fence: int = 0
    commands: int = 0
    gtids: int = 0
    clock_us: int = 1_000_000
    retried: bool = False  # a later reshard has locked the sources

    def __post_init__(self) -> None:
        if self.servers:
            return
        for shard in (*self.sources, *self.targets):
            self.servers[shard], self.logs[shard], self.consumed[shard] = Server(), [], []
            if shard in self.targets:
                self.execute(shard, "lock")
                self.servers[shard].replicated = 1

    # Servers, producers, appliers -----------------------------------------------------------------

    def execute(self, shard: str, kind: str, value: Any = None) -> None:
        """Let a server execute a transaction."""
        self.gtids += 1
        self.servers[shard].binlog.append(Op(kind, value, self.gtids))

    def write(self, shard: str, *, listed: bool) -> None:
        """A write of the application, or of an account that is not in the settings."""
        server = self.servers[shard]
        if server.up and not (listed and server.locked):
            self.execute(shard, "write", self.gtids)

    def fail_over(self, shard: str, keep: int) -> None:
        """Make a replica the primary: it has the first `keep` transactions at least."""
        server = self.servers[shard]
        del server.binlog[max(keep, server.replicated) :]
        server.claim, server.up = 0, True
        server.generation += 1

    def skip_lost(self, shard: str) -> None:
        """Let a producer pass transactions of its log that a failover has lost."""
        if self.halted.get(shard) == "lost":
            del self.halted[shard]
            binlog, consumed = self.servers[shard].binlog, self.consumed[shard]
            while binlog[: len(consumed)] != consumed:
                consumed.pop()

    def produce(self, shard: str) -> bool:
        """Let a producer log the next transaction; False if there is none or it has stopped."""
        server, consumed = self.servers[shard], self.consumed[shard]
        if not server.up or self.halted.get(shard) == "lost":
            return False
        if server.binlog[: len(consumed)] != consumed:
            self.halted[shard] = "lost"
            return False
        if len(consumed) == len(server.binlog):
            return False
        op = server.binlog[len(consumed)]
        if op.kind == "write" and self._has_ended(shard):
            if self.rules.rows_after_end_stop:
                self.halted[shard] = "write"
                return False
            consumed.append(op)  # it is logged, but no target will apply it
            return True
        self.halted.pop(shard, None)
        consumed.append(op)
        if op.kind in {"END", "BEGIN", "CANCELLED", "write", "apply"}:
            self._log(shard, op.kind, op.value)
        return True

    def _has_ended(self, shard: str) -> bool:
        marks = [record.kind for record in self.logs[shard] if record.kind in {"END", "CANCELLED"}]
        is_cancelled = self.topology.state is ReshardState.CANCELLED
        return bool(marks) and marks[-1] == "END" and not is_cancelled

    def _log(self, shard: str, kind: str, value: Any) -> None:
        self.clock_us += STEP_US
        self.logs[shard].append(Record(kind, value, self.clock_us))

    def apply(self, target: str, source: str) -> bool:
        """Let an applier apply the next record of a source; END is the last."""
        at = self.applied(target, source)
        log = self.logs[source]
        if not self.servers[target].up or at >= len(log) or (at and log[at - 1].kind == "END"):
            return False
        self.execute(target, "apply", (source, at + 1))
        return True

    def applied(self, target: str, source: str) -> int:
        """How many records of a source a target has."""
        found = [
            op.value[1]
            for op in self.servers[target].binlog
            if op.kind == "apply" and op.value[0] == source
        ]
        return max(found, default=0)

    def settle(self, idle: tuple[str, ...] = ()) -> None:
        """Let producers and appliers run until nothing moves, but for those that are idle."""
        while any(self.produce(shard) for shard in self.servers if shard not in idle) or any(
            self.apply(target, source)
            for target in self.targets
            for source in self.sources
            if f"{source}>{target}" not in idle
        ):
            pass

    # What readers see -----------------------------------------------------------------------------

    def first_marks(self) -> dict[str, FirstMark]:
        """The marks that count in the targets' logs."""
        found: dict[str, FirstMark] = {}
        for target in self.targets:
            marks = [r for r in self.logs[target] if r.kind in {"BEGIN", "CANCELLED"}]
            if marks and not self.rules.first_mark_counts:
                marks = [next((r for r in marks if r.kind == "BEGIN"), marks[0])]
            if marks:
                kind = MarkKind.BEGIN if marks[0].kind == "BEGIN" else MarkKind.CANCEL
                found[target] = FirstMark(kind, marks[0].value)
        return found

    def has_hopped(self) -> bool:
        """Whether a reader may have left the sources."""
        marks = self.first_marks()
        begun = [t for t in marks if marks[t].kind is MarkKind.BEGIN]
        return len(begun) == len(self.targets) or bool(begun and not self.rules.hop_waits_for_all)

    def check(self) -> None:
        """Raise Violation if readers and the topology, or the logs, contradict each other."""
        is_cancelled = self.topology.state is ReshardState.CANCELLED
        cancelled = [s for s in self.sources if any(r.kind == "CANCELLED" for r in self.logs[s])]
        if self.has_hopped() and (is_cancelled or cancelled):
            raise Violation("cancelled, but readers may have hopped")
        marks = self.first_marks()
        if self.topology.state is ReshardState.SWITCHED and not self.has_hopped():
            raise Violation("switched, but a target's log does not begin")
        if not self.has_hopped():
            return
        hops = {mark.hop_time_us for mark in marks.values() if mark.kind is MarkKind.BEGIN}
        ends = [self._end_of(source) for source in self.sources]
        if len(hops) > 1 or None in ends:
            raise Violation("readers cannot hop")
        if min(hop or 0 for hop in hops) < max(
            cell_start_us(end.timestamp_us) + GRID_US for end in ends if end
        ):
            raise Violation("the hop time is before an END")
        for target in self.targets:
            kinds = [record.kind for record in self.logs[target]]
            if "BEGIN" in kinds and "apply" in kinds[kinds.index("BEGIN") :]:
                raise Violation("a target logs rows of its sources behind BEGIN")

    def check_nothing_silent(self) -> None:
        """Raise Violation if a write on a source is on no target, and nobody was told."""
        for source in self.sources if self.has_hopped() else ():
            server = self.servers[source]
            lost = server.binlog[: len(self.consumed[source])] != self.consumed[source]
            if lost or source in self.halted or not server.up:
                continue
            logged = {record.value for record in self.logs[source] if record.kind == "write"}
            if any(op.kind == "write" and op.value not in logged for op in server.binlog):
                raise Violation("a write is on no target, and the producer goes on")

    def _end_of(self, source: str) -> SourceEnd | None:
        """The END that readers follow: the last one, unless CANCEL follows it."""
        found = None
        for seq, record in enumerate(self.logs[source], 1):
            if record.kind == "END":
                found = SourceEnd(seq, record.at_us)
            elif record.kind == "CANCELLED":
                found = None
        return found

    # Commands -------------------------------------------------------------------------------------

    def start(self, decide: Decide, *, is_switch: bool, lost_source: bool = False) -> Command:
        """Start a command: it claims the servers that answer, and reads the topology."""
        self.commands += 1
        claimed = {}
        for shard, server in self.servers.items():
            if server.up:
                server.claim = self.commands
                claimed[shard] = server.generation
        made = Command(self.commands, decide, is_switch, claimed, self._read())
        made.lost_source = lost_source
        return made

    def try_again(self) -> None:
        """Let a later reshard stop writes on the sources, as soon as this one is cancelled."""
        if self.topology.state is not ReshardState.CANCELLED or self.retried:
            return
        for source in self.sources:
            server = self.servers[source]
            if self.rules.one_claim_for_all:
                server.claim = ANOTHER_RESHARD
            self.execute(source, "lock")
            self.execute(source, "later END")
        self.retried = True

    def _read(self) -> Topology:
        return Topology(self.topology.state, self.topology.decision)

    def session(self, command: Command, shard: str) -> Server:
        """The server, if the command's session on it has not ended."""
        server = self.servers[shard]
        is_same = command.claimed[shard] == server.generation and server.up
        is_held = server.claim == command.number or not self.rules.claims_end_sessions
        if not (is_same and is_held):
            raise ClaimLost
        return server

    def view(self, command: Command) -> ReshardView:
        """What a command sees, as `Observer` looks."""
        known = command.topology
        look = command.marks is None or command.fenced or known.decision is not None
        if command.marks is None or (look and self.rules.marks_are_looked_at):
            command.marks = self.first_marks()
        shards = (*self.sources, *self.targets)
        view = ReshardView(
            self.sources,
            self.targets,
            known.state,
            known.decision,
            command.fenced,
            command.marks,
            {s: "it is down" for s in shards if s not in command.claimed},
            frozenset(shards) - command.claimed.keys(),
        )
        here = [
            s
            for s in command.claimed
            if s in self.sources or s not in view.begun or known.state is ReshardState.SWITCHED
        ]
        if not command.is_switch:
            here = [s for s in here if s in self.sources]
            if known.state is not ReshardState.CANCELLED:
                return view
        return self._of_servers(command, view, {s: self.session(command, s) for s in here})

    def _of_servers(
        self, command: Command, view: ReshardView, here: Mapping[str, Server]
    ) -> ReshardView:
        if view.decision is None and view.begun:
            found = {source: self._end_of(source) for source in self.sources}
            ends = {source: end for source, end in found.items() if end}
        else:
            ends = self._ends(command, here) if not view.missing else {}
        checkpoints = {
            (t, s): self.applied(t, s) for t in self.targets if t in here for s in self.sources
        }
        drained = len(ends) == len(self.sources) and all(
            checkpoints.get((t, s), -1) >= end.seq for t in self.targets for s, end in ends.items()
        )
        logged = [
            s
            for s in self.sources
            if drained and s in here and self._has_logged(command.at_drain, s)
        ]
        return ReshardView(
            view.sources,
            view.targets,
            view.state,
            view.decision,
            view.fenced,
            view.marks,
            view.missing,
            view.gone,
            {s: server.row for s, server in here.items() if server.row is not None},
            frozenset(s for s, server in here.items() if server.locked),
            frozenset(s for s, server in here.items() if not server.locked),
            ends,
            checkpoints,
            frozenset(s for s, server in here.items() if server.last("triggers")),
            frozenset(logged),
            frozenset(s for s, server in here.items() if server.last("later END")),
        )

    def _ends(self, command: Command, here: Mapping[str, Server]) -> dict[str, SourceEnd]:
        for source in self.sources:
            row = here[source].row
            if source in command.ends or row is None or row.kind is not JournalKind.END:
                continue
            present = self._has_logged(command.at_end, source)
            end = self._end_of(source)
            if end and (present or not self.rules.end_of_present_primary):
                command.ends[source] = end
        return dict(command.ends)

    def _has_logged(self, asked: dict[str, int], source: str) -> bool:
        binlog = self.servers[source].binlog
        wanted = asked.setdefault(source, len(binlog))
        return self.consumed[source][:wanted] == binlog[:wanted]

    # Steps ----------------------------------------------------------------------------------------

    def do(self, command: Command, step: SwitchStep, *, unknown: bool = False) -> None:
        """Take a step that was decided before; `unknown`: a commit whose outcome is not told."""
        match step.action:
            case Action.FENCE:
                self.fence = command.number
                command.fenced = True
                command.topology = self._read()
            case Action.DECIDE | Action.CHANGE_TOPOLOGY:
                self._change(command, step, unknown=unknown)
            case Action.APPEND_CANCEL:
                if step.shard not in self.first_marks() and self.rules.cancel_reaches_logs:
                    self._log(step.shard, "CANCELLED", None)
            case _:
                self._on_server(command, step)
        self.check()

    def _change(self, command: Command, step: SwitchStep, *, unknown: bool) -> None:
        holds = self.fence == command.number or not self.rules.fence_holds
        after = Topology(step.state or command.topology.state, step.decision)
        if step.state is ReshardState.SWITCHED:
            after.decision = command.topology.decision
        if holds and not (unknown and command.number % 2):
            if self.topology.state not in {ReshardState.RUNNING, after.state}:
                raise Violation("what is over is changed in the topology")
            self.topology = Topology(after.state, after.decision)
        if (holds and not unknown) or not self.rules.unknown_means_again:
            command.topology = after
        else:
            command.fenced, command.topology = False, self._read()

    def _on_server(self, command: Command, step: SwitchStep) -> None:
        shard = step.shard
        server = self.session(command, shard)
        match step.action:
            case Action.STOP_WRITES:
                self.execute(shard, "lock")
            case Action.WRITE_END if server.row is None:
                self.execute(shard, "END")
            case Action.WRITE_BEGIN:
                for source in self.sources:
                    if source in command.claimed:
                        self.session(command, source)
                if server.row is None and step.decision:
                    self.execute(shard, "BEGIN", step.decision.hop_time_us)
            case Action.WRITE_CANCELLED:
                self.execute(shard, "CANCELLED")
            case Action.RESTORE_TRIGGERS:
                self.execute(shard, "triggers")
            case Action.OPEN_WRITES:
                self._check_opening(command, shard)
                self.execute(shard, "unlock")

    def _check_opening(self, command: Command, shard: str) -> None:
        is_target = shard in self.targets
        wanted = ReshardState.SWITCHED if is_target else ReshardState.CANCELLED
        if self.topology.state is not wanted:
            raise Violation("a shard is opened that the topology does not open")
        others = self.sources if is_target else self.targets
        for other in others:
            server = self.servers[other]
            # A failover between two steps may have lost a lock; then claims are lost, too.
            if server.up and not server.locked and command.claimed.get(other) == server.generation:
                raise Violation("both sides are open")
        if is_target:
            for source in self.sources:
                end = self._end_of(source)
                if end is None or self.applied(shard, source) < end.seq:
                    raise Violation("a target is opened without all rows")
        elif self.servers[shard].last("later END"):
            raise Violation("an old cancel opens what a later reshard has stopped")
        elif self.servers[shard].row != JournalRow(JournalKind.CANCELLED):
            raise Violation("a source is opened before its CANCELLED")
