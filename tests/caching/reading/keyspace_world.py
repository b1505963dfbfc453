"""A model of a keyspace that is split while it is read: servers, their clocks, and the topology."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import pytest

from caching.reading import fresh_reader, keyspace_reader
from caching.reading.connections import OpenConnection
from caching.reading.keyspace_reader import KeyspaceReader
from caching.reading.own_writes import ReadYourWrites
from caching.reading.snapshots import ReadTransaction, ShardTime, Snapshots
from event_token import ClockUncertainty, GtidSet
from tests.caching.protocol.database import Server, Shard
from topics.errors import BrokersUnreachable
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import (
    ReshardEntry,
    ReshardState,
    ShardEntry,
    ShardState,
    TableVindex,
    Topology,
)

# Returns a number below its argument, by chance.
Choose = Callable[[int], int]

SOURCE, TARGETS, OTHER = "-80", ("-40", "40-80"), "80-"
# By row, the value of its sharding column: its first byte is that of its range.
ROWS = {"r10": 0x10 << 56, "r50": 0x50 << 56, "ra0": 0xA0 << 56}
VINDEX = TableVindex("shop", "t", ("id",), "numeric")
START_US = 1_000_000_000_000_000
# How far clocks may be off, and how far they are.
OFF_US = 400_000
SKEWS_US = (-OFF_US, 0, OFF_US)
STEPS_US = (50, 1_000, 300_000)
# What a switch adds to the time of its last END, beyond what clocks and their bounds can hide.
HOP_US = 2_000_000
BEAT, END, ROLE = "beat", "END", "role"


@dataclass
class Beat:
    """What a heartbeat row says: the server's clock, and between which times it was written."""

    at_us: int
    at_min_us: int
    at_max_us: int


@dataclass
class World:
    """The shards, of which each has a primary and a replica that lags, and who knows of a split.

    Everything goes on by chance, also within a read. `committed`: by row, when each version was.
    """

    choose: Choose
    now_us: int = START_US
    shards: dict[str, Shard] = field(default_factory=dict)
    skews_us: dict[str, int] = field(default_factory=dict)
    beats: dict[str, list[Beat]] = field(default_factory=dict)
    committed: dict[str, list[int]] = field(default_factory=lambda: {row: [] for row in ROWS})
    begun: set[str] = field(default_factory=set)
    hop_us: int = 0
    has_switched: bool = False
    host_skew_us: int = 0

    def __post_init__(self) -> None:
        """Begin with one version of each row; the targets have nothing yet."""
        for number, name in enumerate((SOURCE, OTHER, *TARGETS)):
            self.shards[name] = Shard(name, number, is_source=name not in TARGETS)
            self.skews_us[name] = SKEWS_US[self.choose(3)]
            self.beats[name] = []
        self.host_skew_us = SKEWS_US[self.choose(3)]
        for row in ROWS:
            self.write(row)
        for name in (SOURCE, OTHER):
            self.shards[name].replica.applied = len(self.shards[name].log)
        for name in TARGETS:
            self._append(name, {ROLE: 1})

    # What happens

    def pass_time(self) -> None:
        """Let time pass, and often something happen meanwhile."""
        self.now_us += STEPS_US[self.choose(len(STEPS_US))]
        for _ in range(self.choose(3)):
            self.act()

    def act(self) -> None:
        """Let one thing happen."""
        (self._write_any, self._beat, self._catch_up, self._beat, self._catch_up, self._split)[
            self.choose(6)
        ]()

    def writable(self, row: str) -> str | None:
        """The shard that takes writes of a row: the source until END, a target from BEGIN on."""
        if row == "ra0":
            return OTHER
        if not self.shards[SOURCE].is_ended:
            return SOURCE
        name = TARGETS[row == "r50"]
        return name if name in self.begun else None

    def write(self, row: str) -> None:
        """Change a row, unless no shard takes its writes."""
        name = self.writable(row)
        if name is not None:
            self.now_us += 1
            self.committed[row].append(self.now_us)
            self._append(name, {row: len(self.committed[row])})

    def _write_any(self) -> None:
        self.write(list(ROWS)[self.choose(len(ROWS))])

    def _append(self, name: str, rows: dict[str, int], *, begins: bool = False) -> None:
        clock_us = self.now_us + self.skews_us[name]
        shard = self.shards[name]
        shard.append(max(clock_us, shard.end().timestamp_us or 0), rows, begins=begins)

    def _beat(self) -> None:
        name = list(self.shards)[self.choose(len(self.shards))]
        producer_us = self.now_us + SKEWS_US[self.choose(3)]
        at_us = self.now_us + self.skews_us[name]
        self.beats[name].append(Beat(at_us, producer_us - OFF_US, producer_us + OFF_US))
        self._append(name, {BEAT: len(self.beats[name])})

    def _catch_up(self) -> None:
        shard = list(self.shards.values())[self.choose(len(self.shards))]
        shard.replica.applied = min(len(shard.log), shard.replica.applied + 1 + self.choose(5))

    def _split(self) -> None:
        """Take the next step of the split: END, a BEGIN, another one, the topology."""
        source = self.shards[SOURCE]
        if not source.is_ended:
            if self.choose(6):
                return
            self._append(SOURCE, {END: 1})
            source.is_ended = True
            self.hop_us = self.now_us + HOP_US
            for name, row in zip(TARGETS, ROWS, strict=False):
                self._append(name, {row: len(self.committed[row])})
        elif left := [name for name in TARGETS if name not in self.begun]:
            self._append(left[0], {}, begins=True)
            self.begun.add(left[0])
        else:
            self.has_switched = True

    # What readers can see

    def topology(self) -> Topology:
        """What Kafka has."""
        old, new = ShardState.SERVING, ShardState.TARGET
        state, hop_us = ReshardState.RUNNING, None
        if self.has_switched:
            old, new = ShardState.RETIRED, ShardState.SERVING
            state, hop_us = ReshardState.SWITCHED, self.hop_us
        targets = [ShardEntry(name, new) for name in TARGETS]
        reshard = ReshardEntry("r1", (SOURCE,), TARGETS, state.value, hop_us)
        shards = (ShardEntry(SOURCE, old), ShardEntry(OTHER), *targets)
        return Topology("shop", int(self.has_switched), shards, (VINDEX,), (reshard,))

    def read_topology(self, *_: object) -> Topology:
        """Answer a look, unless the brokers do not."""
        self.pass_time()
        if not self.choose(5):
            raise BrokersUnreachable("no broker answers")
        return self.topology()

    def version_at(self, row: str, at_us: float) -> int:
        """How many versions of a row were committed by a time."""
        return sum(committed_us <= at_us for committed_us in self.committed[row])

    def time_of(self, server: Server) -> ShardTime:
        """The rows of `_shardstream` as a server shows them now."""
        name = server.shard.name
        begun_us: int | None = 0
        if any(change.begins for change in server.shard.log[: server.applied]):
            begun_us = self.hop_us
        elif server.version(ROLE):
            begun_us = None
        number = server.version(BEAT)
        beat = self.beats[name][number - 1] if number else Beat(0, 0, 0)
        has_ended = bool(server.version(END))
        return ShardTime(beat.at_us, beat.at_min_us, beat.at_max_us, begun_us, has_ended)

    def rows_of(self, server: Server) -> list[tuple[str, int]]:
        """The rows that a server has, each with its version."""
        return [(row, version) for row in ROWS if (version := server.version(row))]


@dataclass
class Connection:
    """A connection to a server of the model, and its own cursor."""

    world: World
    server: Server
    description: object = None
    found: Sequence[tuple[Any, ...]] = ()

    def cursor(self) -> "Connection":
        return self

    def execute(self, statement: str, args: Sequence[Any] = ()) -> None:
        """Answer a query with the rows that it has, those with the names in `args` if given."""
        self.found = []
        if statement == "SELECT @@version":
            self.found = [("9.7.0",)]
        elif statement.startswith("SELECT"):
            self.world.pass_time()
            rows = self.world.rows_of(self.server)
            self.found = [each for each in rows if not args or each[0] in args]
        self.description = self.found or None

    def fetchall(self) -> Sequence[tuple[Any, ...]]:
        return self.found

    def close(self) -> None:
        pass


class ModelSnapshots(Snapshots):
    """Begins transactions on servers of the model: the position is asked for before the rows."""

    def __init__(self, world: World) -> None:
        self.world = world

    def begin(self, opened: OpenConnection, times: str) -> ReadTransaction:
        del times
        self.world.pass_time()
        server: Server = opened.raw.server
        time, is_primary = self.world.time_of(server), server is server.shard.primary
        name = f"{server.shard.name} {'primary' if is_primary else 'replica'}"
        timestamp_us = time.timestamp_us(keeps_order=True)
        return ReadTransaction(name, is_primary, server.token().position, timestamp_us, time)

    def wait(self, opened: OpenConnection, wanted: GtidSet, wait_s: float) -> None:
        del opened, wanted, wait_s
        self.world.pass_time()

    def filters(self, opened: OpenConnection) -> list[tuple[str, str]]:
        raise NotImplementedError

    def last_commit(self, opened: OpenConnection) -> tuple[GtidSet, int]:
        shard: Shard = opened.raw.server.shard
        clock_us = self.world.now_us + self.world.skews_us[shard.name]
        return shard.primary.token().position, clock_us


class Look:
    """Looks at the topology that nobody waits for; they come late, or fail."""

    def __init__(self, world: World, *_: object) -> None:
        self.world = world

    def take(self) -> Topology | None:
        return self.world.read_topology() if self.world.choose(2) else None


class InTurn:
    """Runs the calls of a pool one after the other, so that a history can be repeated."""

    def __init__(self, _threads: int) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def map(self, call: Callable[[str], Any], names: Sequence[str]) -> Iterator[Any]:
        return map(call, names)


@contextmanager
def model_reader(world: World, patch: pytest.MonkeyPatch) -> Iterator[KeyspaceReader]:
    """Read the model: its servers, its topology and its clock."""

    def sleep(seconds: float) -> None:
        world.now_us += round(seconds * 1_000_000)
        world.pass_time()

    clock = SimpleNamespace(
        time_ns=lambda: (world.now_us + world.host_skew_us) * 1_000,
        monotonic=lambda: world.now_us / 1_000_000,
        sleep=sleep,
    )
    for module in (fresh_reader, keyspace_reader):
        patch.setattr(module, "time", clock)
    patch.setattr(fresh_reader, "snapshots_of", lambda _flavor: ModelSnapshots(world))
    patch.setattr(keyspace_reader, "read_topology", world.read_topology)
    patch.setattr(keyspace_reader, "TopologyLook", partial(Look, world))
    patch.setattr(keyspace_reader, "ThreadPoolExecutor", InTurn)

    def servers(name: str) -> list[Callable[[], Connection]]:
        shard = world.shards[name]
        return [partial(Connection, world, each) for each in (shard.replica, shard.primary)]

    kafka = ClientConfig({"bootstrap.servers": "nowhere:1"})
    uncertainty = ClockUncertainty(OFF_US)
    with KeyspaceReader(kafka, "shop", servers, flavor="mysql", clock=uncertainty) as reader:
        yield reader


def write_own(world: World, reader: KeyspaceReader, session: ReadYourWrites, row: str) -> int:
    """Let a session write a row where its reader says, and return its version; 0 if it cannot."""
    name = reader.shard_of(ROWS[row])
    if name != world.writable(row):
        return 0
    world.write(row)
    version = len(world.committed[row])
    session.wrote(reader.committed(Connection(world, world.shards[name].primary), name))
    return version
