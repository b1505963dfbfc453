"""Histories of shard logs as producers write them: rows, Kafka transactions, progress records."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from hypothesis import strategies as st

from event_token import KeyRange, ShardPosition, StreamPosition
from tests.topics.reading.record_merge import merge
from topics.progress.cells import ordered_from_seq
from topics.progress.record import Mark, Progress, Tick, cell_start_us
from topics.reading.followed_shards import FollowedShards
from topics.reading.merge import RawRecord
from topics.reading.planner import Batch, Planner, ShardRange
from topics.reading.unmerged import UnmergedPlanner

START_US = 1_700_000_000_000_000
# How far a generated commit may lie beyond the head that is promised with it.
CLOCK_AHEAD_US = 40_000
# Steps in time inside a cell, over its border, and over many.
STEPS_US = (0, 1, 3_000, 10_000, 25_000, 400_000)


@dataclass
class History:
    """One shard's log and progress."""

    shard: str
    rows: list[RawRecord] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    end_offset: int = 0
    now_us: int = START_US
    head_us: int = START_US
    last_cell_us: int = -1

    def commit(
        self,
        transactions: Sequence[tuple[int, int]],
        behind_us: int = 0,
        mark: Callable[[int], Mark] | None = None,
    ) -> None:
        """Add a Kafka transaction: MySQL transactions as (step in time, rows).

        `mark` makes of the last record, by its offset, a mark.
        """
        first_seq, ticks = len(self.rows) + 1, []
        next_offset = 0 if not self.progress else self.end_offset + 1  # a marker lies between
        for step_us, count in transactions:
            self.now_us += step_us
            if cell_start_us(self.now_us) > self.last_cell_us:
                self.last_cell_us = cell_start_us(self.now_us)
                ticks.append(Tick(self.last_cell_us, next_offset))
            for i in range(count):
                seq = len(self.rows) + 1
                last = i == count - 1
                record = RawRecord(self.now_us, self.shard, next_offset, seq, last, 0, None, b"")
                self.rows.append(record)
                next_offset += 1
        self.end_offset = next_offset
        self.head_us = max(self.head_us, self.now_us - behind_us)
        self._report(first_seq, tuple(ticks), None if mark is None else mark(next_offset - 1))

    def heartbeat(self, step_us: int) -> None:
        """Promise a later head; records from here on are not older."""
        self.head_us += step_us
        self.now_us = max(self.now_us, self.head_us)
        self._report(len(self.rows) + 1, ())

    def _report(self, first_seq: int, ticks: tuple[Tick, ...], mark: Mark | None = None) -> None:
        self.progress.append(
            Progress(
                first_seq,
                len(self.rows),
                self.end_offset,
                "mysql",
                "",
                self.head_us,
                ticks,
                mark,
                "",
                0,
                0,
            )
        )

    def range_rows(self, part: ShardRange) -> list[RawRecord]:
        """The rows of a range, checked against its offsets."""
        rows = self.rows[part.first_seq - 1 : part.last_seq]
        assert all(part.start_offset <= row.offset < part.end_offset for row in rows)
        return rows


_transaction = st.tuples(st.sampled_from(STEPS_US), st.integers(1, 4))
_commit = st.tuples(
    st.lists(_transaction, min_size=1, max_size=6), st.sampled_from((0, 0, 0, CLOCK_AHEAD_US))
)
_step = st.one_of(_commit, st.sampled_from(STEPS_US))


@st.composite
def histories(draw: st.DrawFn, shards_max: int = 5) -> list[History]:
    """Some shards; the last record of each promises a head beyond all rows."""
    made = []
    for i in range(draw(st.integers(1, shards_max))):
        history = History(f"{i:02x}-{i + 1:02x}", now_us=START_US + draw(st.integers(0, 100_000)))
        for step in draw(st.lists(_step, max_size=12)):
            if isinstance(step, int):
                history.heartbeat(step)
            else:
                history.commit(*step)
        made.append(history)
    end_us = max(h.now_us for h in made) + 1_000_000
    for history in made:
        history.heartbeat(end_us - history.head_us)
    return made


def beginning(made: Sequence[History]) -> StreamPosition:
    """Before everything."""
    return StreamPosition(0, 0, {h.shard: ShardPosition(0, 0, None) for h in made})


def merged(made: Sequence[History]) -> list[RawRecord]:
    """Return what a reader must get, in the right order."""
    return sorted(row for h in made for row in h.rows)


def whole_range(made: Sequence[History]) -> KeyRange:
    """The range that the shards of `histories` make up."""
    return KeyRange.parse(f"00-{len(made):02x}")


def feed_start(history: History, position: StreamPosition) -> int:
    """Index of the progress record at which a feed begins for a position.

    As ProgressHistory.offset_for_position: a position right behind a mark needs that mark.
    """
    at, wanted_us = position.shards[history.shard], position.frontier_us - CLOCK_AHEAD_US
    first_seq_max = at.seq + 1
    marks = [p.mark.offset for p in history.progress if p.mark is not None]
    if at.offset - 1 in marks:
        first_seq_max = at.seq
    heads = [p.head_us for p in history.progress]
    i = next((n for n, head_us in enumerate(heads) if head_us >= wanted_us), max(0, len(heads) - 1))
    while i > 0 and (
        ordered_from_seq(history.progress[i]) > at.seq + 1
        or history.progress[i].first_seq > first_seq_max
    ):
        i -= 1
    return i


def target_start(history: History, from_us: int) -> int:
    """Index of the record from which a feed follows a target: see Target.from_us."""
    long_ago = [p.head_us <= from_us - CLOCK_AHEAD_US for p in history.progress]
    return max(0, sum(long_ago) - 1)


AnyPlanner = TypeVar("AnyPlanner", bound=FollowedShards)


@dataclass
class Feeding(Generic[AnyPlanner]):
    """A planner fed with histories in any order, as long as it wants."""

    made: Sequence[History]
    planner: AnyPlanner
    random: Random
    now_ms: int = 0
    silent: frozenset[str] = frozenset()  # shards whose progress does not come for now

    def __post_init__(self) -> None:
        self.fed: dict[str, int] = {}
        self.reshards: dict[str, str] = {}  # the reshard for which a target is followed
        self.follow()

    @property
    def by_shard(self) -> Mapping[str, History]:
        """The histories by their shards."""
        return {h.shard: h for h in self.made}

    def follow(self) -> None:
        """Start feeding shards that the planner wants now, and stop feeding the others."""
        fed, position = self.fed, self.planner.position
        self.fed = {
            s: fed[s] if s in fed else feed_start(self.by_shard[s], position)
            for s in position.shards
        }
        for shard, target in self.planner.targets.items():
            is_known = self.reshards.get(shard) == target.reshard_id and shard in fed
            start = fed[shard] if is_known else target_start(self.by_shard[shard], target.from_us)
            self.fed[shard] = start
        self.reshards = {s: target.reshard_id for s, target in self.planner.targets.items()}

    def feed(self) -> bool:
        """Feed one wanted progress record; return False if there is none."""
        self.follow()
        ready = [
            self.by_shard[shard]
            for shard, fed in self.fed.items()
            if shard not in self.silent
            and fed < len(self.by_shard[shard].progress)
            and self.planner.wants(shard)
        ]
        if not ready:
            return False
        history = self.random.choice(ready)
        at = self.fed[history.shard]
        self.planner.observe(history.shard, history.progress[at], self.now_ms)
        self.fed[history.shard] = at + 1
        return True

    def plan(self, max_rows: int | None = None) -> tuple[Batch, list[RawRecord]] | None:
        """Plan and take what is next with its rows; None if the planner waits."""
        raise NotImplementedError

    def batches(self, max_rows: int | None = None) -> Iterator[tuple[Batch, list[RawRecord]]]:
        """Feed and plan until nothing is left; yield each batch with its merged rows."""
        while True:
            for _ in range(self.random.randint(0, 4)):
                self.feed()
            self.now_ms += self.random.randint(0, 50)
            planned = self.plan(max_rows)
            if planned is not None:
                yield planned
            elif not self.feed():
                return


class Reading(Feeding[Planner]):
    """The reading of a merged stream."""

    def plan(self, max_rows: int | None = None) -> tuple[Batch, list[RawRecord]] | None:
        """Plan and take a batch with its merged rows; None if the planner waits."""
        plan = self.planner.next_batch(self.now_ms, max_rows)
        if not isinstance(plan, Batch):
            return None
        streams = [iter(self.by_shard[s].range_rows(r)) for s, r in plan.ranges.items()]
        self.planner.advance(plan)
        return plan, list(merge(streams, plan.frontier_us))


class UnmergedReading(Feeding[UnmergedPlanner]):
    """The reading of each shard for itself, in any order of the shards."""

    def plan(self, max_rows: int | None = None) -> tuple[Batch, list[RawRecord]] | None:
        """Hop if that is due, else take the next range of some shard."""
        before = self.planner.position
        if self.planner.settle():
            return self._step(before), []
        shards = sorted(self.planner.position.shards)
        self.random.shuffle(shards)
        for shard in shards:
            part = self.planner.next_range(shard, max_rows or 10_000)
            if part is not None:
                self.planner.advance(part)
                return self._step(before), self.by_shard[shard].range_rows(part)
        return None

    def _step(self, before: StreamPosition) -> Batch:
        end = self.planner.position
        return Batch(before.frontier_us, end.frontier_us, {}, end, frozenset())
