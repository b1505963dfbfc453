"""Histories of shard logs as producers write them: rows, Kafka transactions, progress records."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from hypothesis import strategies as st

from event_token import KeyRange, ShardPosition, StreamPosition
from tests.topics.reading.record_merge import merge
from topics.kafka.lookups import Bounds, Lookup, OffsetAt, Question, RecordRange
from topics.kafka.partition_reader import PartitionReader, StoredRecord
from topics.names import ShardTopics
from topics.progress.history import NextProgress, ProgressAt, ProgressHistory
from topics.progress.record import CLOCK_AHEAD_US_MAX, Mark, Progress, Tick, cell_start_us
from topics.reading.followed_shards import FollowedShards
from topics.reading.merge import RawRecord
from topics.reading.planner import Batch, Planner, ShardRange, UnmergedPlanner
from topics.records.vevent import TYPES_BY_INDEX, EventType

T = TypeVar("T")

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
    next_offset: int = 0
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
        next_offset = self.next_offset
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
        self.next_offset = next_offset + 1  # a marker lies between
        self.head_us = max(self.head_us, self.now_us - behind_us)
        self._report(first_seq, tuple(ticks), None if mark is None else mark(next_offset - 1))

    def abort(self, rows: int) -> None:
        """Add a Kafka transaction that is aborted: its rows and its marker have offsets too."""
        self.next_offset += rows + 1

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


# Progress records are so far apart that stepping back takes them one by one.
PROGRESS_STEP = 64
# Commit times run this far ahead of heads in production, where a minute passes more slowly.
_SLOWER_US = CLOCK_AHEAD_US_MAX - CLOCK_AHEAD_US


class LogOf(PartitionReader):
    """The log of a history, with the offsets that markers and aborted records take.

    `start`: what is before was removed. `end`: what is behind is not readable yet.
    """

    def __init__(self, history: History, start: int = 0, end: int | None = None) -> None:
        self._history = history
        self._start = start
        self._end = history.next_offset if end is None else end

    def __exit__(self, *exc_info: object) -> None:
        """Nothing is open."""

    def bounds(self) -> tuple[int, int]:
        """What can be read."""
        return self._start, self._end

    def records(self, lower: int, upper: int) -> Iterator[StoredRecord]:
        """The rows and marks, without columns."""
        marks = {p.mark.offset for p in self._history.progress if p.mark is not None}
        for row in self._history.rows:
            if lower <= row.offset < upper:
                kind = EventType.JOURNAL if row.offset in marks else EventType.ROW
                numbers = (TYPES_BY_INDEX.index(kind), row.seq, row.timestamp_us)
                value = bytes(5) + b"".join(map(_long, numbers)) + bytes(32)
                yield StoredRecord(row.offset, row.timestamp_us // 1_000, None, value)


def _long(number: int) -> bytes:
    """Avro's form of a number that is not negative."""
    left, found = number << 1, []
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


class HistoryTopics(ProgressHistory):
    """The search for where the progress of a history is followed from, without brokers."""

    def __init__(self, history: History, log: LogOf | None = None) -> None:
        self.topics = ShardTopics("shop", history.shard)
        self._history = history
        self._log = log or LogOf(history)
        self._begun: dict[RecordRange, Iterator[StoredRecord]] = {}

    def feed_start(self, position: StreamPosition) -> int:
        """Index of the progress record at which a feed begins for a position."""
        at = position.shards[self._history.shard]
        offset = self.result(self.offset_for_position(at, position.frontier_us + _SLOWER_US))
        return offset // PROGRESS_STEP

    def target_start(self, from_us: int) -> int:
        """Index of the record from which a feed follows a target: see Target.from_us."""
        return self.result(self.offset_for_time(from_us + _SLOWER_US)) // PROGRESS_STEP

    def result(self, lookup: Lookup[T]) -> T:
        """The result of a look-up in these topics."""
        answer: object = None
        try:
            while True:
                answer = self._answer(lookup.send(answer))
        except StopIteration as done:
            found: T = done.value
            return found

    def _answer(self, question: Question) -> object:
        match question:
            case Bounds(topic):
                is_log = topic == self.topics.log
                end = PROGRESS_STEP * len(self._history.progress)
                return self._log.bounds() if is_log else (0, end)
            case OffsetAt(_, timestamp_ms):
                heads = enumerate(each.head_us // 1_000 for each in self._history.progress)
                later = (n * PROGRESS_STEP for n, head_ms in heads if head_ms >= timestamp_ms)
                return next(later, -1)
            case RecordRange(topic, lower, upper):
                of_topic = self._log.records if topic == self.topics.log else self._records
                return next(self._begun.setdefault(question, of_topic(lower, upper)), None)
        raise AssertionError(question)

    def _records(self, lower: int, upper: int) -> Iterator[StoredRecord]:
        for n in range(-(-lower // PROGRESS_STEP), -(-upper // PROGRESS_STEP)):
            yield StoredRecord(n * PROGRESS_STEP, 0, None, None)

    def _decoded(self, record: StoredRecord) -> ProgressAt:
        return ProgressAt(record.offset, self._history.progress[record.offset // PROGRESS_STEP])


def result_of(find: Callable[[NextProgress], Lookup[T]], progress: Iterable[Progress]) -> T:
    """The result of a look-up that asks for nothing but these progress records, in order."""
    left = iter(progress)

    def next_progress() -> Lookup[ProgressAt | None]:
        yield from ()
        found = next(left, None)
        return None if found is None else ProgressAt(0, found)

    lookup = find(next_progress)
    try:
        raise AssertionError(next(lookup))
    except StopIteration as done:
        found: T = done.value
        return found


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
            s: fed[s] if s in fed else HistoryTopics(self.by_shard[s]).feed_start(position)
            for s in position.shards
        }
        for shard, target in self.planner.targets.items():
            is_known = self.reshards.get(shard) == target.reshard_id and shard in fed
            topics = HistoryTopics(self.by_shard[shard])
            self.fed[shard] = fed[shard] if is_known else topics.target_start(target.from_us)
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
