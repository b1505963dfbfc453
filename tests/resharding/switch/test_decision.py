"""Decisions of switch and cancel, with commands killed, paused and racing at any point."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from resharding.switch.decision import (
    Action,
    JournalRow,
    Kind,
    ReshardView,
    SourceEnd,
    Step,
    hop_time_us,
    next_cancel_step,
    next_switch_step,
)
from topics.keyspace.topology import ReshardState

STEPS_MAX = 60  # of one undisturbed command


@dataclass
class World:
    """Servers, logs and topology; `claims` counts commands, and the last one holds the servers."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    state: ReshardState = ReshardState.RUNNING
    journal: dict[str, JournalRow] = field(default_factory=dict)
    unlocked: set[str] = field(default_factory=set)
    logged: dict[str, SourceEnd] = field(default_factory=dict)
    applied: set[tuple[str, str]] = field(default_factory=set)
    restored: set[str] = field(default_factory=set)
    caught_up: set[str] = field(default_factory=set)
    claims: int = 0
    clock_us: int = 1_000_000

    def view(self) -> ReshardView:
        return ReshardView(
            self.sources,
            self.targets,
            self.state,
            dict(self.journal),
            frozenset({*self.sources, *self.targets} - self.unlocked),
            frozenset(self.unlocked),
            {s: end for s, end in self.logged.items() if s in self.journal},
            {(t, s): self.logged[s].seq for t, s in self.applied},
            frozenset(self.restored),
            frozenset(self.caught_up),
        )

    def do(self, step: Step, claim: int) -> None:
        """Carry out a step that was decided under a claim, possibly long ago.

        The journal's key and the topology's fencing hold even for a command that lost its claim, so
        inserts succeed here without one.
        """
        shard = step.shard
        match step.action:
            case Action.WRITE_END:
                self.journal.setdefault(shard, JournalRow(Kind.END))
            case Action.WRITE_BEGIN:
                self.journal.setdefault(shard, JournalRow(Kind.BEGIN, step.hop_time_us))
            case Action.CHANGE_TOPOLOGY:
                if self.state is ReshardState.RUNNING:
                    assert step.state is not None
                    self.state = step.state
            case Action.WRITE_CANCELLED if shard in self.targets:
                self.journal.setdefault(shard, JournalRow(Kind.CANCELLED))
            case Action.WRITE_CANCELLED:
                row = self.journal.get(shard)
                if row is None or row.kind is Kind.END:
                    self.journal[shard] = JournalRow(Kind.CANCELLED)
            case _ if claim == self.claims:
                self._on_server(step)
            case _:
                pass  # the session was ended by the command that claimed the server after it
        self.check()

    def _on_server(self, step: Step) -> None:
        match step.action:
            case Action.STOP_WRITES:
                self.unlocked.discard(step.shard)
            case Action.OPEN_WRITES:
                self.unlocked.add(step.shard)
            case Action.RESTORE_TRIGGERS:
                self.restored.add(step.shard)
            case _:
                assert step.action in {Action.AWAIT_END, Action.AWAIT_DRAIN, Action.AWAIT_LOG}

    def progress(self) -> None:
        """Let producers and appliers make one step."""
        self.clock_us += 7_000
        for source in self.sources:
            row = self.journal.get(source)
            if row is not None and row.kind is Kind.END and source not in self.logged:
                self.logged[source] = SourceEnd(10, self.clock_us)
                return
        for target in self.targets:
            for source in self.logged:
                if (target, source) not in self.applied:
                    self.applied.add((target, source))
                    return
        if len(self.applied) == len(self.targets) * len(self.sources):
            for source in self.sources:
                if source not in self.caught_up:
                    self.caught_up.add(source)
                    return

    def check(self) -> None:
        """Check what must hold after every step."""
        begun = [t for t in self.targets if self._kind(t) is Kind.BEGIN]
        cancelled = [s for s, row in self.journal.items() if row.kind is Kind.CANCELLED]
        assert not (begun and cancelled)
        assert not (self.unlocked & set(self.sources) and self.unlocked & set(self.targets))
        if begun:
            assert not self.unlocked & set(self.sources)
            assert all(self._kind(s) is Kind.END for s in self.sources)
            assert {(t, s) for t in self.targets for s in self.sources} == self.applied
            assert self.caught_up == set(self.sources)
            assert {self.journal[t].hop_time_us for t in begun} == {hop_time_us(self.logged)}
        if self.unlocked & set(self.targets):
            assert len(begun) == len(self.targets)
            assert self.state is ReshardState.SWITCHED

    def _kind(self, shard: str) -> Kind | None:
        row = self.journal.get(shard)
        return None if row is None else row.kind


Decide = Callable[[ReshardView], Step]


def run(world: World, decide: Decide) -> Action:
    """Run a command to its end, undisturbed."""
    world.claims += 1
    for _ in range(STEPS_MAX):
        step = decide(world.view())
        if step.action in {Action.DONE, Action.REFUSE}:
            return step.action
        world.progress()
        world.do(step, world.claims)
    raise AssertionError(f"no end after {STEPS_MAX} steps: {world}")


@dataclass
class Command:
    """A running command: it observes, and later acts on what it decided then."""

    decide: Decide
    claim: int
    decided: Step | None = None


def shards(count: int, of: str) -> tuple[str, ...]:
    return tuple(f"{of}{i}" for i in range(count))


@st.composite
def histories(draw: st.DrawFn) -> World:
    """Run commands that start, observe, act and die in any order; return the resulting world."""
    world = World(shards(draw(st.integers(1, 3)), "s"), shards(draw(st.integers(1, 3)), "t"))
    world.unlocked = set(world.sources)
    commands: list[Command] = []
    for _ in range(draw(st.integers(0, 60))):
        what = draw(st.sampled_from(["switch", "cancel", "look", "look", "act", "act", "go on"]))
        if what in {"switch", "cancel"}:
            world.claims += 1
            decide = next_switch_step if what == "switch" else next_cancel_step
            commands.append(Command(decide, world.claims))
        elif what == "go on":
            world.progress()
        elif commands:
            # Usually the newest one acts; now and then an old one resumes.
            command = draw(st.sampled_from([*commands, *[commands[-1]] * 8]))
            if what == "look":
                command.decided = command.decide(world.view())
            elif command.decided is not None:
                if command.decided.action not in {Action.DONE, Action.REFUSE}:
                    world.do(command.decided, command.claim)
                command.decided = None
    return world


@given(histories())
def test_whatever_happened_before_a_command_brings_it_to_an_end(world: World) -> None:
    """Switch or cancel, run to its end, leaves one side open; the other is then refused."""
    for first, second in (
        (next_switch_step, next_cancel_step),
        (next_cancel_step, next_switch_step),
    ):
        copy = replace(
            world,
            journal=dict(world.journal),
            unlocked=set(world.unlocked),
            logged=dict(world.logged),
            applied=set(world.applied),
            restored=set(world.restored),
            caught_up=set(world.caught_up),
        )
        ended = run(copy, first)
        if ended is Action.REFUSE:
            assert run(copy, second) is Action.DONE
        else:
            assert run(copy, second) is Action.REFUSE
            assert run(copy, first) is Action.DONE
        begun = copy.state is ReshardState.SWITCHED
        assert copy.unlocked == set(copy.targets if begun else copy.sources)
        assert copy.restored >= set(copy.targets) if begun else True


@given(st.data())
def test_a_switch_that_wakes_late_changes_nothing(data: st.DataObject) -> None:
    """A switch paused before any step, and cancelled meanwhile, changes nothing when it resumes."""
    world = World(shards(2, "s"), shards(2, "t"))
    world.unlocked = set(world.sources)
    world.claims = 1
    step = next_switch_step(world.view())
    for _ in range(data.draw(st.integers(0, 12))):
        world.do(step, 1)
        world.progress()
        step = next_switch_step(world.view())
        if step.action is Action.DONE:
            break
    cancelled = run(world, next_cancel_step)
    before = replace(world, journal=dict(world.journal), unlocked=set(world.unlocked))

    if step.action is not Action.DONE:
        world.do(step, 1)
    if cancelled is Action.DONE:
        assert (world.journal, world.unlocked, world.state) == (
            before.journal,
            before.unlocked,
            before.state,
        )
        assert next_switch_step(world.view()).action is Action.REFUSE


def test_the_hop_is_the_end_of_the_latest_cell() -> None:
    """The latest END decides the hop time; an END on a cell's first microsecond is in that cell."""
    assert hop_time_us({"a": SourceEnd(1, 10_000), "b": SourceEnd(9, 9_999)}) == 20_000
    assert hop_time_us({"a": SourceEnd(1, 19_999)}) == 20_000
