"""A model of lanes: processes that take over lanes, publish rows and beats, and read them.

A lane has some fixed transactional ids: number 0 writes beats, the others rows. Every call to
Kafka is a step of its own, and any process may stand still between two steps for as long as it
likes: that is a pause. Time is in the values: a server's clock shows `clock_of` the rows that it
has, and its next row bears an earlier time, as real servers do under load.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from tests.producers.lanes.kafka import NOBODY, Kafka, Phase, Records, Status, TransactionalId
from tests.producers.state_search import Violation

# A shard in no lane: it is being moved, is over, or has not begun.
NOWHERE: Final = -1


class Rules(NamedTuple):
    """What processes keep to; each can be left out, to see that it is needed.

    `fences`: which ids a takeover fences before it reads (all, the one of beats, those of rows).
    `checks`: it fences number 0 first, and looks at the end whether it still has that.
    `waits`: it reads the ends only once the last stable offset is the end. `gives_up`: while it
    waits for that, it looks whether its ids are still its own. `covers_beats`: what a
    lost marker has left open is aborted in the beats, too. `reads_beats`: a takeover goes on from
    the heads of beats, not from those of progress alone. `returns`: who was fenced as owner takes
    the lane again. `moves`: a move fences both lanes (or old, or new, alone). `settles`: a move
    writes the last head to the progress of the shard. `keeps_id`: a shard changes its id only
    once all that it wrote is visible. `heals`: an idle shard's lost marker in its progress is
    written again. `waits_for_seq`: readers apply a head once they know its `seq`.
    """

    fences: str = "all"
    checks: bool = True
    waits: bool = True
    gives_up: bool = True
    covers_beats: bool = True
    reads_beats: bool = True
    returns: bool = True
    moves: str = "both"
    settles: bool = True
    keeps_id: bool = True
    heals: bool = True
    waits_for_seq: bool = True


class Faults(NamedTuple):
    """How many may still happen.

    `assignments`: the group gives a lane to another process, which its owner may learn late.
    `deaths`: of processes. `late`, `lost`: markers. `expiries`: the brokers abort a transaction.
    """

    assignments: int = 0
    deaths: int = 0
    late: int = 0
    lost: int = 0
    expiries: int = 0


class Action(IntEnum):
    """What a command of an operator does in one step."""

    TOPOLOGY = 0  # the shard is in the lane from here on
    FENCE = 1
    CHECK = 2  # whether number 0 is still its own
    STABLE = 3  # wait until all of the shard is visible
    SETTLE = 4  # add a progress record with the last head
    MARK = 5  # the same with a record in the log, as a reshard appends it
    COMMIT = 6
    OVER = 7  # wait until the log has all rows of the shard


class Operation(NamedTuple):
    """A step of an operator's command."""

    action: Action
    shard: int
    lane: int
    number: int = 0


class Setting(NamedTuple):
    """What a search begins with.

    `lanes`: of each shard. `rows`: how many the server of each gets. `hand`: a shard that somebody
    also produces by hand. `script`: an operator's command.
    """

    lanes: tuple[int, ...]
    faults: Faults
    lane_count: int = 1
    processes: int = 2
    ids: int = 2
    rows: tuple[int, ...] = (1, 1)
    hand: int = NOBODY
    script: tuple[Operation, ...] = ()
    has_reader: bool = False


class Stage(IntEnum):
    """How far a process is with a lane."""

    OUT = 0
    DEAD = 1
    DROPPED = 2  # fenced, while it takes itself for the owner
    FENCING = 3
    CHECKING = 4
    TOPOLOGY = 5
    WAITING = 6
    TAILS = 7
    REST = 8  # the ids that a takeover without a rule fences only now
    LIVE = 9


class Held(NamedTuple):
    """A shard of a lane, as its producer knows it; a stopped one has lost a marker for good.

    `open_in`: the id under which it has written and not committed; a shard is in one at most.
    """

    shard: int
    seq: int = 0
    row: int = 0
    head: int = 0
    is_stopped: bool = False
    open_in: int = NOBODY


class Actor(NamedTuple):
    """What a process does with one lane."""

    stage: Stage = Stage.OUT
    step: int = 0
    held: tuple[Held, ...] = ()


class Reader(NamedTuple):
    """How much a reader has read, and what it knows of each shard: last seq, head."""

    read: tuple[int, ...]
    seqs: tuple[int, ...]
    heads: tuple[int, ...]
    waiting: tuple[tuple[int, int, int], ...] = ()


class State(NamedTuple):
    """The whole system at a moment."""

    kafka: Kafka
    owners: tuple[int, ...]
    topology: tuple[int, ...]
    actors: tuple[Actor, ...]
    rows: tuple[int, ...]
    operation: int
    faults: Faults
    reader: Reader | None


Step = tuple[str, State]


def clock_of(rows: int) -> int:
    """What a server's clock shows when it has this number of rows."""
    return 2 * rows + 3


def time_of(row: int) -> int:
    """The commit time of a row, which may be before what the clock has shown already."""
    return 2 * row


def _put(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


class Model:
    """A setting and the rules that its processes keep to."""

    takeover = "assigned"

    def __init__(self, setting: Setting, rules: Rules = Rules()) -> None:  # noqa: B008 - frozen
        self.setting = setting
        self.rules = rules
        self.shards = len(setting.lanes)
        # After the processes: who produces by hand, and the operator.
        self.hand = setting.processes
        self.operator = setting.processes + 1
        self.script = _without(setting.script, rules)
        self._actors = [
            (process, lane)
            for process in range(setting.processes)
            for lane in range(setting.lane_count)
        ]
        if setting.hand != NOBODY:
            self._actors.append((self.hand, setting.lanes[setting.hand]))
        first, rest = {
            "all": (range(setting.ids), ()),
            "beats": ((0,), range(1, setting.ids)),
            "rows": (range(1, setting.ids), (0,)),
        }[rules.fences]
        self._first, self._rest = tuple(first), tuple(rest)
        # What has been checked already: many states differ in nothing that anybody can read.
        self._right: set[tuple[tuple[Records, ...], Reader | None]] = set()

    # The numbers of partitions and ids -----------------------------------------------------------

    def log(self, shard: int) -> int:
        """The partition of a shard log."""
        return shard

    def progress(self, shard: int) -> int:
        """The partition of a shard's progress."""
        return self.shards + shard

    def beats(self, lane: int) -> int:
        """The partition of a lane's beats."""
        return 2 * self.shards + lane

    def id_of(self, lane: int, number: int) -> int:
        """A transactional id of a lane."""
        return lane * self.setting.ids + number

    def ids_of(self, lane: int) -> tuple[int, ...]:
        """All transactional ids of a lane."""
        return tuple(self.id_of(lane, number) for number in range(self.setting.ids))

    def beginning(self) -> State:
        """Before the first takeover; the group has given lanes to processes in turn."""
        setting = self.setting
        partitions = 2 * self.shards + setting.lane_count
        actors = [Actor() for _ in self._actors]
        if setting.hand != NOBODY:
            actors[-1] = Actor(Stage.FENCING)
        reader = None
        if setting.has_reader:
            none = (0,) * self.shards
            reader = Reader((0,) * partitions, none, none)
        return State(
            Kafka(((),) * partitions, (TransactionalId(),) * (setting.lane_count * setting.ids)),
            tuple(lane % setting.processes for lane in range(setting.lane_count)),
            setting.lanes,
            tuple(actors),
            (0,) * self.shards,
            0,
            setting.faults,
            reader,
        )

    # Steps without faults, in the order in which a quiet system takes them ------------------------

    def steps(self, state: State) -> Iterator[Step]:
        """Every step that is not a fault; markers that no fault can touch any more take none."""
        is_sure = not (state.faults.late or state.faults.lost)
        for label, after in self._steps(state):
            yield label, self._completed(after) if is_sure else after

    def _completed(self, state: State) -> State:
        kafka = state.kafka
        for number, found in enumerate(kafka.ids):
            if found.phase in {Phase.COMMITTING, Phase.ABORTING}:
                kafka = kafka.complete(number)
        return state if kafka is state.kafka else state._replace(kafka=kafka)

    def _steps(self, state: State) -> Iterator[Step]:
        faults = self.setting.faults
        if faults.late or faults.lost:
            yield from self._markers(state)
        if faults.deaths:
            yield from self._group(state)
        yield from self._polls(state)
        if state.operation < len(self.script):
            yield from self._operate(state, self.script[state.operation])
        for at, actor in enumerate(state.actors):
            if actor.stage is Stage.LIVE:
                yield from self._produce(state, at, actor)
            else:
                yield from self._take_over(state, at, actor)
        for shard, rows in enumerate(state.rows):
            if rows < self.setting.rows[shard]:
                yield f"row {shard}", state._replace(rows=_put(state.rows, shard, rows + 1))
        if state.reader is not None:
            yield from self._read(state, state.reader)

    def _markers(self, state: State) -> Iterator[Step]:
        kafka = state.kafka
        for partition in range(len(kafka.partitions)):
            if kafka.has(partition, Status.LATE, Status.LATE_ABORT):
                yield f"show {partition}", state._replace(kafka=kafka.show(partition))
        for number, found in enumerate(kafka.ids):
            if found.phase in {Phase.COMMITTING, Phase.ABORTING}:
                yield f"markers of {number}", state._replace(kafka=kafka.complete(number))

    def _group(self, state: State) -> Iterator[Step]:
        """The session of a dead process times out."""
        for lane, owner in enumerate(state.owners):
            if self._is_dead(state, owner):
                for process in range(self.setting.processes):
                    if not self._is_dead(state, process):
                        owners = _put(state.owners, lane, process)
                        yield f"timeout {lane}", state._replace(owners=owners)

    def _is_dead(self, state: State, process: int) -> bool:
        return state.actors[process * self.setting.lane_count].stage is Stage.DEAD

    def _polls(self, state: State) -> Iterator[Step]:
        """A process learns what the group has assigned to it, after a heartbeat or more."""
        for at, (process, lane) in enumerate(self._actors):
            actor = state.actors[at]
            if process == self.hand or actor.stage is Stage.DEAD:
                continue
            is_owner = state.owners[lane] == process
            begins = (Stage.OUT, Stage.DROPPED) if self.rules.returns else (Stage.OUT,)
            if is_owner and actor.stage in begins:
                yield f"assigned {at}", self._with(state, at, Actor(Stage.FENCING))
            elif not is_owner and actor.stage is not Stage.OUT:
                yield f"revoked {at}", self._with(state, at, Actor())

    def _with(self, state: State, at: int, actor: Actor, kafka: Kafka | None = None) -> State:
        actors = (*state.actors[:at], actor, *state.actors[at + 1 :])
        found = state.kafka if kafka is None else kafka
        _, owners, topology, _, rows, operation, faults, reader = state
        return State(found, owners, topology, actors, rows, operation, faults, reader)

    def _dropped(self, state: State, at: int) -> Step:
        """Fenced: one by hand ends for good."""
        process, _ = self._actors[at]
        stage = Stage.DEAD if process == self.hand else Stage.DROPPED
        return f"fenced {at}", self._with(state, at, Actor(stage))

    # Takeover -------------------------------------------------------------------------------------

    def _take_over(self, state: State, at: int, actor: Actor) -> Iterator[Step]:
        process, lane = self._actors[at]
        match actor.stage:
            case Stage.FENCING | Stage.REST:
                numbers = self._first if actor.stage is Stage.FENCING else self._rest
                number = self.id_of(lane, numbers[actor.step])
                kafka = state.kafka.fence(number, process)
                if kafka is not None:
                    if state.kafka.ids[number].phase is Phase.IDLE:
                        actor = self._next(actor._replace(step=actor.step + 1))
                    yield f"fence {at} {number}", self._with(state, at, actor, kafka)
            case Stage.CHECKING:
                # A record is added to the beats and aborted: refused if another one has fenced.
                if state.kafka.ids[self.id_of(lane, self._first[0])].holder == process:
                    yield f"check {at}", self._with(state, at, Actor(Stage.TOPOLOGY))
                else:
                    yield self._dropped(state, at)
            case Stage.TOPOLOGY:
                shards = [s for s, its in enumerate(state.topology) if its == lane]
                if process == self.hand:
                    shards = [self.setting.hand]
                stage = Stage.WAITING if self.rules.waits else Stage.TAILS
                actor = self._next(Actor(stage, 0, tuple(map(Held, shards))))
                yield f"topology {at}", self._with(state, at, actor)
            case Stage.WAITING:
                yield from self._await_stable(state, at, actor)
            case Stage.TAILS:
                yield from self._read_tail(state, at, actor)
            case _:
                return

    def _next(self, actor: Actor) -> Actor:
        """The stage that follows where all steps of this one are done."""
        stage = actor.stage
        if stage is Stage.FENCING and actor.step == len(self._first):
            return Actor(Stage.CHECKING if self.rules.checks else Stage.TOPOLOGY)
        if stage is Stage.TAILS and actor.step == len(actor.held):
            return Actor(Stage.REST if self._rest else Stage.LIVE, 0, actor.held)
        if stage is Stage.REST and actor.step == len(self._rest):
            return Actor(Stage.LIVE, 0, actor.held)
        return actor

    def _read_tail(self, state: State, at: int, actor: Actor) -> Iterator[Step]:
        process, lane = self._actors[at]
        held = actor.held[actor.step]
        if not held.is_stopped:
            read = self._tail(state.kafka, held.shard, lane)
            if read is None:
                # A record is added under each id and aborted: refused if a successor has fenced.
                if not self._holds(state, process, lane):
                    yield self._dropped(state, at)
                    return
                if state.faults.lost == self.setting.faults.lost:
                    raise Violation(f"log and progress of shard {held.shard} disagree")
                read = held._replace(is_stopped=True)
            held = read
        moved = (*actor.held[: actor.step], held, *actor.held[actor.step + 1 :])
        after = self._next(Actor(Stage.TAILS, actor.step + 1, moved))
        yield f"tail {at} {held.shard}", self._with(state, at, after)

    def _holds(self, state: State, process: int, lane: int) -> bool:
        """Whether each id that a takeover fences is still its own."""
        numbers = [self.id_of(lane, number) for number in self._first]
        return all(state.kafka.ids[number].holder == process for number in numbers)

    def _await_stable(self, state: State, at: int, actor: Actor) -> Iterator[Step]:
        """Go on if everything is visible; abort what lost markers have left open."""
        process, lane = self._actors[at]
        kafka = state.kafka
        shards = tuple(held.shard for held in actor.held if not held.is_stopped)
        partitions = [p for s in shards for p in (self.log(s), self.progress(s))]
        partitions.append(self.beats(lane))
        if all(map(kafka.is_stable, partitions)):
            after = self._next(Actor(Stage.TAILS, 0, actor.held))
            yield f"stable {at}", self._with(state, at, after)
            return
        if self.rules.gives_up and not self._holds(state, process, lane):
            # What is open may be of another one, which fenced some ids later and then died.
            yield self._dropped(state, at)
            return
        if any(kafka.has(p, Status.OPEN, Status.LATE, Status.LATE_ABORT) for p in partitions):
            return
        kafka, stopped = self._abort_open(kafka, shards, lane)
        if kafka == state.kafka and not stopped:
            return
        held = tuple(h._replace(is_stopped=h.is_stopped or h.shard in stopped) for h in actor.held)
        yield f"abort open {at}", self._with(state, at, actor._replace(held=held), kafka)

    def _abort_open(
        self, kafka: Kafka, shards: tuple[int, ...], lane: int
    ) -> tuple[Kafka, tuple[int, ...]]:
        """Abort it under every id of the lane; return the shards of which half is committed."""
        stopped = []
        for shard in shards:
            if kafka.is_stable(self.log(shard)) and kafka.is_stable(self.progress(shard)):
                continue
            if self._tail(kafka, shard, lane) is None:
                stopped.append(shard)
                continue
            for partition in (self.log(shard), self.progress(shard)):
                kafka = kafka.abort_stuck(partition, self.ids_of(lane))
        if self.rules.covers_beats:
            kafka = kafka.abort_stuck(self.beats(lane), self.ids_of(lane))
        return kafka, tuple(stopped)

    def _tail(self, kafka: Kafka, shard: int, lane: int) -> Held | None:
        """Where a shard's log ends; None where log and progress disagree."""
        log = kafka.visible(self.log(shard))
        progress = kafka.visible(self.progress(shard))
        logged = log[-1].value[0] if log else 0
        seq, row, head = progress[-1].value if progress else (0, 0, 0)
        if logged != seq:
            return None
        if self.rules.reads_beats:
            beats = kafka.visible(self.beats(lane))
            head = max([head, *(b.value[2] for b in beats if b.value[0] == shard)])
        return Held(shard, seq, row, head)

    # The stream -----------------------------------------------------------------------------------

    def _produce(self, state: State, at: int, actor: Actor) -> Iterator[Step]:
        process, lane = self._actors[at]
        ids = state.kafka.ids
        if any(ids[number].holder != process for number in self.ids_of(lane)):
            yield self._dropped(state, at)
        for number in self.ids_of(lane):
            found = ids[number]
            if found.holder == process and found.phase is Phase.ONGOING:
                ended = tuple(
                    h._replace(open_in=NOBODY) if h.open_in == number else h for h in actor.held
                )
                changed = actor._replace(held=ended)
                committed = state.kafka.commit(number)
                yield f"commit {at} {number}", self._with(state, at, changed, committed)
        for held in actor.held:
            if not held.is_stopped and held.open_in == NOBODY:
                yield from self._write(state, at, actor, held)
        yield from self._beat(state, at, actor)

    def _write(self, state: State, at: int, actor: Actor, held: Held) -> Iterator[Step]:
        """Add the next row of a shard to the transaction of an id, or heal its progress."""
        process, lane = self._actors[at]
        kafka, shard = state.kafka, held.shard
        log, progress = self.log(shard), self.progress(shard)
        has_row = state.rows[shard] > held.row
        heals = self.rules.heals and kafka.is_stable(log) and kafka.has(progress, Status.STUCK)
        if not has_row and not heals:
            return
        for number in self.ids_of(lane)[1:]:
            found = kafka.ids[number]
            if found.holder != process or found.phase not in {Phase.IDLE, Phase.ONGOING}:
                continue
            if self.rules.keeps_id and any(
                record.status is not Status.COMMITTED and record.number != number
                for record in kafka.partitions[log] + kafka.partitions[progress]
            ):
                continue
            if has_row:
                row, seq = held.row + 1, held.seq + 1
                head = max(held.head, time_of(row))
                written = kafka.write(number, log, (seq, row, head))
            else:
                row, seq, head, written = held.row, held.seq, held.head, kafka
            written = written.write(number, progress, (seq, row, head))
            moved = Held(shard, seq, row, head, open_in=number)
            changed = actor._replace(held=tuple(moved if h == held else h for h in actor.held))
            yield f"write {at} {shard} {number}", self._with(state, at, changed, written)

    def _beat(self, state: State, at: int, actor: Actor) -> Iterator[Step]:
        """Promise the clock for the lane's idle shards, in one transaction of one partition."""
        process, lane = self._actors[at]
        kafka, number, partition = state.kafka, self.id_of(lane, 0), self.beats(lane)
        found = kafka.ids[number]
        if found.holder != process or found.phase is not Phase.IDLE:
            return
        idle = [
            held
            for held in actor.held
            if held.row == state.rows[held.shard] and not held.is_stopped and held.open_in == NOBODY
        ]
        moves = any(clock_of(held.row) > held.head for held in idle)
        if not moves and not kafka.has(partition, Status.STUCK):
            return
        promised = {h.shard: h._replace(head=max(h.head, clock_of(h.row))) for h in idle}
        values = [(h.shard, h.seq, h.head) for h in promised.values()]
        changed = actor._replace(held=tuple(promised.get(h.shard, h) for h in actor.held))
        written = kafka.write(number, partition, *values)
        yield f"beat {at}", self._with(state, at, changed, written)

    # The operator ---------------------------------------------------------------------------------

    def _operate(self, state: State, doing: Operation) -> Iterator[Step]:
        kafka, lane, shard = state.kafka, doing.lane, doing.shard
        after = state._replace(operation=state.operation + 1)
        label = f"operator {doing.action.name} {shard} {lane}"
        first = self.id_of(lane, 1)
        match doing.action:
            case Action.TOPOLOGY:
                yield label, after._replace(topology=_put(state.topology, shard, lane))
            case Action.FENCE:
                number = self.id_of(lane, doing.number)
                fenced = kafka.fence(number, self.operator)
                if fenced is not None:
                    is_done = kafka.ids[number].phase is Phase.IDLE
                    yield label, (after if is_done else state)._replace(kafka=fenced)
            case Action.OVER:
                rows = [r.value[1] for r in kafka.visible(self.log(shard)) if r.value[1]]
                if len(rows) == self.setting.rows[shard]:
                    yield label, after
            case _ if self._is_refused(kafka, doing):
                yield "operator begins again", state._replace(operation=self._fences(state))
            case Action.CHECK:
                yield label, after
            case Action.STABLE:
                read = [self.log(shard), self.progress(shard)]
                if self.script[state.operation + 1].action in {Action.SETTLE, Action.MARK}:
                    read.append(self.beats(lane))
                if all(map(kafka.is_stable, read)):
                    yield label, after
                elif not self._holds(state, self.operator, lane):
                    yield "operator begins again", state._replace(operation=self._fences(state))
                elif not any(
                    kafka.has(p, Status.OPEN, Status.LATE, Status.LATE_ABORT) for p in read
                ):
                    aborted, stopped = self._abort_open(kafka, (shard,), lane)
                    if stopped:
                        yield "operator gives up", after._replace(operation=len(self.script))
                    elif aborted != kafka:
                        yield label, state._replace(kafka=aborted)
            case Action.COMMIT:
                yield label, after._replace(kafka=kafka.commit(first))
            case _:
                tail = self._tail(kafka, shard, lane)
                if tail is None or kafka.ids[first].phase is not Phase.IDLE:
                    raise Violation(f"shard {shard} is not at rest in the operator's hands")
                is_there = any(not r.value[1] for r in kafka.visible(self.log(shard)))
                value = tail.seq, tail.row, tail.head
                if doing.action is Action.MARK and not is_there:
                    value = tail.seq + 1, tail.row, tail.head
                    kafka = kafka.write(first, self.log(shard), (tail.seq + 1, 0, tail.head))
                elif [r.value for r in kafka.visible(self.progress(shard))][-1:] == [value]:
                    yield label, after._replace(operation=state.operation + 2)
                    return
                kafka = kafka.write(first, self.progress(shard), value)
                yield label, after._replace(kafka=kafka)

    def _is_refused(self, kafka: Kafka, doing: Operation) -> bool:
        """Whether another one has fenced the id that a step writes under."""
        if doing.action is Action.STABLE:
            return False
        number = self.id_of(doing.lane, 0 if doing.action is Action.CHECK else 1)
        return kafka.ids[number].holder != self.operator

    def _fences(self, state: State) -> int:
        """The first of the fences before the present step."""
        at = state.operation
        while self.script[at].action is not Action.FENCE:
            at -= 1
        while at and self.script[at - 1].action is Action.FENCE:
            at -= 1
        return at

    # The reader -----------------------------------------------------------------------------------

    def _read(self, state: State, reader: Reader) -> Iterator[Step]:
        """Take the next progress record of a shard, or the next beat of a lane."""
        for partition in range(self.shards, len(reader.read)):
            at = reader.read[partition]
            visible = state.kafka.visible(partition)
            if at == len(visible):
                continue
            read = _put(reader.read, partition, at + 1)
            value = visible[at].value
            if partition < self.beats(0):
                shard, (seq, _, head) = partition - self.shards, value
                seqs = _put(reader.seqs, shard, seq)
                heads = _put(reader.heads, shard, max(reader.heads[shard], head))
                after = Reader(read, seqs, heads, reader.waiting)
            else:
                after = reader._replace(read=read, waiting=(*reader.waiting, value))
            yield f"read {partition}", state._replace(reader=self._applied(after))

    def _applied(self, reader: Reader) -> Reader:
        """Apply the heads of beats whose `seq` is known by now."""
        heads, waiting = reader.heads, []
        for shard, seq, head in reader.waiting:
            if self.rules.waits_for_seq and reader.seqs[shard] < seq:
                waiting.append((shard, seq, head))
            else:
                heads = _put(heads, shard, max(heads[shard], head))
        return reader._replace(heads=heads, waiting=tuple(waiting))

    # Faults ---------------------------------------------------------------------------------------

    def disturbances(self, state: State) -> Iterator[Step]:
        """Every fault that may happen now."""
        left, kafka = state.faults, state.kafka
        if left.assignments:
            faults = left._replace(assignments=left.assignments - 1)
            for lane, owner in enumerate(state.owners):
                for process in range(self.setting.processes):
                    if process != owner and not self._is_dead(state, process):
                        owners = _put(state.owners, lane, process)
                        yield (
                            f"give {lane} to {process}",
                            state._replace(owners=owners, faults=faults),
                        )
        if left.deaths:
            faults = left._replace(deaths=left.deaths - 1)
            for process in range(self.setting.processes):
                actors = tuple(
                    Actor(Stage.DEAD) if whose == process else actor
                    for (whose, _), actor in zip(self._actors, state.actors, strict=True)
                )
                yield f"kill {process}", state._replace(actors=actors, faults=faults)
        for number, found in enumerate(kafka.ids):
            if left.expiries and found.phase is Phase.ONGOING:
                faults = left._replace(expiries=left.expiries - 1)
                expired = state._replace(kafka=kafka.expire(number), faults=faults)
                if not (left.late or left.lost):
                    expired = self._completed(expired)
                yield f"expire {number}", expired
            if found.phase not in {Phase.COMMITTING, Phase.ABORTING}:
                continue
            for partition in found.partitions:
                if left.late:
                    changed = kafka.complete(number, partition, Status.LATE)
                    faults = left._replace(late=left.late - 1)
                    yield (
                        f"late marker of {number} in {partition}",
                        state._replace(kafka=changed, faults=faults),
                    )
                if left.lost:
                    changed = kafka.complete(number, partition, Status.STUCK)
                    faults = left._replace(lost=left.lost - 1)
                    yield (
                        f"lost marker of {number} in {partition}",
                        state._replace(kafka=changed, faults=faults),
                    )

    # Properties -----------------------------------------------------------------------------------

    def check(self, state: State) -> None:
        """Raise Violation unless what is visible is right, now and for whoever reads on."""
        kafka = state.kafka
        seen = kafka.partitions, state.reader
        if seen in self._right:
            return
        for shard in range(self.shards):
            log = kafka.visible(self.log(shard))
            seqs = [record.value[0] for record in log]
            rows = [record.value[1] for record in log if record.value[1]]
            times = [record.value[2] for record in log]
            if seqs != list(range(1, len(seqs) + 1)):
                raise Violation(f"shard {shard} has records {seqs}")
            if rows != list(range(1, len(rows) + 1)):
                raise Violation(f"shard {shard} has rows {rows}")
            if times != sorted(times):
                raise Violation(f"shard {shard} has times {times}")
            promises = [(r.value[0], r.value[2]) for r in kafka.visible(self.progress(shard))] + [
                (r.value[1], r.value[2])
                for lane in range(self.setting.lane_count)
                for r in kafka.visible(self.beats(lane))
                if r.value[0] == shard
            ]
            for seq, head in promises:
                if any(time < head for time in times[seq:]):
                    raise Violation(f"shard {shard}: a row behind seq {seq} is before {head}")
            if state.reader is not None:
                self._check_reader(state.reader, shard, kafka.partitions[self.log(shard)])
        self._right.add(seen)

    def _check_reader(self, reader: Reader, shard: int, log: Records) -> None:
        """No frontier has passed a row that is committed and comes later."""
        known, head = reader.seqs[shard], reader.heads[shard]
        for record in log:
            is_decided = record.status in {Status.COMMITTED, Status.LATE}
            if is_decided and record.value[0] > known and record.value[2] < head:
                raise Violation(f"shard {shard}: the frontier is past seq {record.value[0]}")

    def check_rest(self, state: State) -> None:
        """Raise Violation unless a system at rest has served every lane and every row."""
        for lane, owner in enumerate(state.owners):
            at = owner * self.setting.lane_count + lane
            actor = state.actors[at]
            if actor.stage is not Stage.LIVE or not self._holds(state, owner, lane):
                raise Violation(f"lane {lane} has no producer: {actor.stage.name}")
            served = {held.shard for held in actor.held}
            if served != {s for s, its in enumerate(state.topology) if its == lane}:
                raise Violation(f"the producer of lane {lane} serves {served}")
            for held in actor.held:
                self._check_served(state, held, lane)
        waits = self.script[state.operation] if state.operation < len(self.script) else None
        if waits is not None and not self._is_stopped(state, waits.shard):
            raise Violation(f"the operator waits at step {state.operation}")

    def _is_stopped(self, state: State, shard: int) -> bool:
        """Whether a lost marker stops a shard: of its last row, or of half of a transaction.

        Both are as with one producer per shard.
        """
        log = state.kafka.partitions[self.log(shard)]
        if log and log[-1].status is Status.STUCK:
            return True
        return any(h.shard == shard and h.is_stopped for actor in state.actors for h in actor.held)

    def _check_served(self, state: State, held: Held, lane: int) -> None:
        """All rows are visible, and the head is the clock, unless the shard is stopped."""
        kafka, shard = state.kafka, held.shard
        if self._is_stopped(state, shard):
            return
        rows = [r.value[1] for r in kafka.visible(self.log(shard)) if r.value[1]]
        if len(rows) != self.setting.rows[shard]:
            raise Violation(f"shard {shard} shows {len(rows)} rows")
        progress = kafka.visible(self.progress(shard))
        known = progress[-1].value[0] if progress else 0
        heads = [r.value[2] for r in progress]
        heads += [
            r.value[2]
            for r in kafka.visible(self.beats(lane))
            if r.value[0] == shard and r.value[1] <= known
        ]
        if max(heads, default=0) != clock_of(self.setting.rows[shard]):
            raise Violation(f"shard {shard} stands still at {max(heads, default=0)}")
        reader = state.reader
        if reader is not None and reader.heads[shard] != max(heads):
            raise Violation(f"a reader stands still at {reader.heads[shard]} of shard {shard}")


def _without(script: tuple[Operation, ...], rules: Rules) -> tuple[Operation, ...]:
    """A script as an operator takes it who leaves out a rule."""
    if rules.moves != "both" and script:
        lanes = [op.lane for op in script if op.action is Action.FENCE]
        kept = lanes[0] if rules.moves == "old" else lanes[-1]
        always = (Action.TOPOLOGY, Action.OVER)
        script = tuple(op for op in script if op.action in always or op.lane == kept)
    if not rules.settles:
        script = tuple(op for op in script if op.action not in {Action.SETTLE, Action.COMMIT})
    return script
