"""Generated histories of a reshard: commands, failovers, losses and writes in any order."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from resharding.switch.decision import (
    Action,
    NextCommand,
    ReshardView,
    SwitchStep,
    next_cancel_step,
    next_switch_step,
)
from tests.resharding.switch.reshard_world import (
    ALL_RULES,
    ClaimLost,
    Command,
    Decide,
    Rules,
    Violation,
    World,
)
from topics.keyspace.topology import ReshardState

EVENTS: Final = 90
STEPS_MAX: Final = 200  # of one undisturbed command
WAYS_MAX: Final = 4  # commands in a row until a reshard is completed or cancelled
AWAITS: Final = {Action.AWAIT_END, Action.AWAIT_DRAIN, Action.AWAIT_LOG, Action.AWAIT_BEGIN}
# Of an awaited step that does not come; the words of `overdue`.
OVERDUE: Final = (NextCommand.SWITCH, NextCommand.CANCEL, NextCommand.CANCEL_LOST_TARGET)

Falsify = Callable[[ReshardView], ReshardView]
Bend = Callable[[ReshardView, SwitchStep], SwitchStep]


@dataclass(frozen=True)
class Without:
    """What a mutation leaves out: rules of the model, what a view shows, or a step."""

    rules: Rules = ALL_RULES
    view: Falsify = lambda view: view
    step: Bend = lambda _, step: step


NOTHING: Final = Without()


def decider(way: NextCommand, without: Without) -> Decide:
    """The choice of steps of a command."""
    choose: Decide
    match way:
        case NextCommand.SWITCH | NextCommand.SWITCH_LOST_SOURCE:
            choose = partial(next_switch_step, lost_source=way is NextCommand.SWITCH_LOST_SOURCE)
        case _:
            choose = partial(next_cancel_step, lost_target=way is NextCommand.CANCEL_LOST_TARGET)

    def decide(view: ReshardView) -> SwitchStep:
        seen = without.view(view)
        return without.step(seen, choose(seen))

    return decide


def start(world: World, way: NextCommand, without: Without) -> Command:
    """Start the command that a message names."""
    is_switch = way in {NextCommand.SWITCH, NextCommand.SWITCH_LOST_SOURCE}
    return world.start(decider(way, without), is_switch=is_switch)


class History:
    """One generated history; `play` raises Violation when something happens that must not."""

    def __init__(self, seed: int, without: Without = NOTHING) -> None:
        """The same seed gives the same history."""
        self.random = Random(seed)
        self.without = without
        sources = tuple(f"s{i}" for i in range(self.random.choice((1, 1, 2))))
        targets = tuple(f"t{i}" for i in range(self.random.choice((1, 2, 2, 3))))
        self.world = World(sources, targets, without.rules)
        self.commands: list[Command] = []
        self.losses = self.random.choice((0, 0, 1, 2))
        self.rogues = self.random.choice((0, 0, 1))

    def play(self) -> World:
        """Let everything happen in any order; return what it leads to."""
        happenings = [self.run, self.run, self.progress, self.progress, self.progress]
        happenings += [self.act_late, self.begin, self.lose, self.write, self.retry, self.skip]
        for _ in range(EVENTS):
            self.random.choice(happenings)()
            self.world.check()
        return self.world

    def begin(self) -> None:
        """Start a command, mostly a switch; the one before is cut off wherever it is."""
        if self.random.random() < 0.5:
            return
        ways = [NextCommand.SWITCH] * 6 + [
            NextCommand.CANCEL,
            NextCommand.CANCEL_LOST_TARGET,
            NextCommand.SWITCH_LOST_SOURCE,
        ]
        self.commands.append(start(self.world, self.random.choice(ways), self.without))

    def run(self) -> None:
        """Let the newest command look and act; sometimes it only looks, and is paused there."""
        if not self.commands:
            self.commands.append(start(self.world, NextCommand.SWITCH, self.without))
        command = self.commands[-1]
        for _ in range(self.random.randint(1, 3)):
            self.look(command)
            if self.random.random() < 0.85:
                self.act(command)

    def act_late(self) -> None:
        """Let any command wake and act on what it saw, or look again."""
        if self.commands and self.random.random() < 0.5:
            command = self.random.choice(self.commands)
            if command.decided is None:
                self.look(command)
            self.act(command)

    def look(self, command: Command) -> None:
        """Let a command choose its next step."""
        try:
            step = command.decide(self.world.view(command))
        except ClaimLost:
            command.decided = None
            return
        idle = step.action in {Action.DONE, Action.REFUSE, *AWAITS}
        command.decided = None if idle else step

    def act(self, command: Command) -> None:
        """Let a command take the step that it has chosen."""
        step, command.decided = command.decided, None
        if step is not None:
            try:
                self.world.do(command, step, unknown=self.random.random() < 0.05)
            except ClaimLost:
                self.commands.remove(command)

    def progress(self) -> None:
        """Let some producers and appliers take steps."""
        world = self.world
        for _ in range(self.random.randint(1, 6)):
            shard = self.random.choice([*world.sources, *world.targets])
            world.produce(shard)
            world.apply(self.random.choice(world.targets), self.random.choice(world.sources))
            server = world.servers[shard]
            if self.random.random() < 0.4:
                server.replicated = len(server.binlog)

    def lose(self) -> None:
        """Fail over, or lose a server for a while."""
        if not self.losses or self.random.random() < 0.6:
            return
        shard = self.random.choice([*self.world.sources, *self.world.targets])
        server = self.world.servers[shard]
        if server.up and self.random.random() < 0.5:
            self.losses -= 1
            server.up = False
        elif server.up:
            self.losses -= 1
            self.world.fail_over(shard, self.random.randint(0, len(server.binlog)))

    def write(self) -> None:
        """Write rows: the application, now and then an account that is not locked."""
        shard = self.random.choice(self.world.sources)
        self.world.write(shard, listed=True)
        if self.rogues and self.random.random() < 0.3:
            self.rogues -= 1
            self.world.write(shard, listed=False)

    def skip(self) -> None:
        """Let the producer of a source pass what a failover has lost."""
        self.world.skip_lost(self.random.choice(self.world.sources))

    def retry(self) -> None:
        """Begin to switch a later reshard of the same sources."""
        if self.random.random() < 0.3:
            self.world.try_again()


def finish(world: World, first: NextCommand, without: Without = NOTHING) -> bool:
    """Whether the command, and then those that its messages name, complete or cancel it."""
    return _finish(world, first, without, ())


def _finish(
    world: World, way: NextCommand, without: Without, tried: tuple[NextCommand, ...]
) -> bool:
    if way in tried or len(tried) >= WAYS_MAX:
        return False
    now = copy.deepcopy(world)
    step = run(now, way, without)
    if is_over(now):
        return True
    ways = OVERDUE if step.action in AWAITS else step.ways
    return any(_finish(now, named, without, (*tried, way)) for named in ways)


def run(world: World, way: NextCommand, without: Without) -> SwitchStep:
    """Run a command undisturbed until it is done, refuses, or waits for what does not come."""
    command = start(world, way, without)
    for _ in range(STEPS_MAX):
        world.settle()
        step = command.decide(world.view(command))
        if step.action in {Action.DONE, Action.REFUSE, *AWAITS}:
            world.settle()
            world.check()
            return step
        world.do(command, step)
    raise Violation(f"no end after {STEPS_MAX} steps")


def is_over(world: World) -> bool:
    """Whether one side is open on every server that there is, and no producer is in the way."""
    locked = {shard: server.locked for shard, server in world.servers.items() if server.up}
    if world.topology.state is ReshardState.SWITCHED:
        return not any(locked.get(target, False) for target in world.targets)
    if world.topology.state is not ReshardState.CANCELLED:
        return False
    return not any(
        is_locked or world.halted.get(shard) == "write"
        for shard, is_locked in locked.items()
        if shard in world.sources
    )


class Script:
    """A history step by step: two sources and two targets, and producers and appliers at work."""

    def __init__(self, without: Without = NOTHING) -> None:
        """Begin before the first command."""
        self.without = without
        self.world = World(("s0", "s1"), ("t0", "t1"), without.rules)

    def start(self, way: NextCommand) -> Command:
        """Start a command, which ends the one before."""
        return start(self.world, way, self.without)

    def until(self, command: Command, action: Action, idle: tuple[str, ...] = ()) -> None:
        """Run a command until it has chosen such a step, and is paused there.

        `idle`: producers, by shard, and appliers (`s0>t0`) that do nothing meanwhile. Returns, too,
        where it waits for what does not come or refuses to go on.
        """
        for _ in range(STEPS_MAX):
            self.world.settle(idle)
            step = command.decide(self.world.view(command))
            command.decided = step
            if step.action in {action, Action.DONE, Action.REFUSE, *AWAITS}:
                return
            self.world.do(command, step)
        raise Violation(f"no end after {STEPS_MAX} steps")

    def wake(self, command: Command, *, unknown: bool = False) -> None:
        """Let a command act on what it has chosen, unless its session has ended."""
        assert command.decided is not None
        try:
            self.world.do(command, command.decided, unknown=unknown)
        except ClaimLost:
            return

    def to_the_end(self, way: NextCommand) -> None:
        """Run a command to its end."""
        run(self.world, way, self.without)
