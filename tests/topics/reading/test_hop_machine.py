"""The hop, over generated histories and a reader that stops and resumes anywhere."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from event_token import KeyRange, ShardPosition, StreamPosition
from tests.generated import examples
from tests.topics.reading.reshard_histories import SLOTS, Keyspace, name_of
from tests.topics.reading.shard_histories import (
    CLOCK_AHEAD_US,
    STEPS_US,
    Reading,
    UnmergedReading,
)
from topics.progress.record import cell_start_us
from topics.reading import hops
from topics.reading.merge import RawRecord
from topics.reading.planner import Batch, MaxHold, Mode, Planner, Strict, UnmergedPlanner

steps = st.sampled_from(STEPS_US)
# A clock that jumps: backwards it stands still in the log, for the producer clamps.
jumps = st.sampled_from((50_000, 5_000_000))
bounds = st.one_of(st.none(), st.integers(1, 12))
rows = st.integers(0, 3)


class HopMachine(RuleBasedStateMachine):
    """Writers, operators of reshards and one reader take steps in any order."""

    mode: Mode = Strict()

    def __init__(self) -> None:
        """Let the reader's minute pass as fast as the histories do, which begin its feeds by it."""
        super().__init__()
        self.clocks = pytest.MonkeyPatch()
        self.clocks.setattr(hops, "CLOCK_AHEAD_US_MAX", CLOCK_AHEAD_US)

    @initialize(
        edges=st.sets(st.integers(1, SLOTS - 1), max_size=3),
        key_range=st.tuples(st.integers(0, SLOTS - 1), st.integers(1, SLOTS)),
        random=st.randoms(use_true_random=False),
        restless=st.booleans(),
    )
    def begin(
        self, edges: set[int], key_range: tuple[int, int], random: Random, *, restless: bool
    ) -> None:
        """A keyspace of some shards, and a reader of any part of it, which may often restart."""
        self.restless = restless
        self.keyspace = Keyspace(sorted(edges))
        first, end = key_range if key_range[0] < key_range[1] else (0, SLOTS)
        self.key_range = KeyRange.parse(name_of(first, end))
        self.random = random
        self.position = self.keyspace.beginning(self.key_range)
        self.delivered: list[RawRecord] = []
        self.reading = self.open()

    def open(self) -> Reading | UnmergedReading:
        """A reader at the position."""
        planner = Planner(
            self.position, self.key_range, self.mode, ticks_max=4, retired_us=self.retired_us()
        )
        return Reading(list(self.keyspace.histories.values()), planner, self.random)

    def retired_us(self) -> dict[str, int]:
        """What a reader that begins now has read in the topology, if it has looked there."""
        return dict(self.keyspace.retired_us) if self.random.randint(0, 1) else {}

    def histories_seen(self) -> None:
        """Let the reader see all topics that exist now."""
        self.reading.made = list(self.keyspace.histories.values())

    # Writers ------------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        transactions=st.lists(st.tuples(steps, st.integers(1, 3)), max_size=4),
        behind_us=st.sampled_from((0, 0, CLOCK_AHEAD_US)),
    )
    def write(
        self, data: st.DataObject, transactions: list[tuple[int, int]], behind_us: int
    ) -> None:
        """Rows in a shard that serves or is being filled."""
        shard = data.draw(st.sampled_from(self.keyspace.writable()))
        if transactions:
            self.keyspace.histories[shard].commit(transactions, behind_us)

    @rule(data=st.data(), step_us=st.one_of(steps, jumps))
    def promise(self, data: st.DataObject, step_us: int) -> None:
        """A heartbeat, also of a shard that has ended; its server's clock may have jumped."""
        shard = data.draw(st.sampled_from(sorted(self.keyspace.histories)))
        self.keyspace.histories[shard].heartbeat(step_us)

    @rule(step_us=st.one_of(steps, jumps))
    def promise_all(self, step_us: int) -> None:
        """Heartbeats of all servers whose clocks agree: the frontier moves."""
        histories = self.keyspace.histories.values()
        latest_us = max(history.head_us for history in histories)
        for history in histories:
            if self.random.randint(0, 9):
                history.heartbeat(latest_us + step_us - history.head_us)

    @rule(data=st.data(), step_us=steps)
    def write_after_the_end(self, data: st.DataObject, step_us: int) -> None:
        """Log DDL behind END: it belongs to nobody's stream, or comes after a CANCEL."""
        over = [s for s, seq in self.keyspace.last_seq.items() if seq is not None]
        over += [s for reshard in self.keyspace.under_way() for s in reshard.ended]
        if over:
            self.keyspace.histories[data.draw(st.sampled_from(over))].commit([(step_us, 1)])

    @rule(data=st.data(), rows=st.integers(1, 200))
    def abort(self, data: st.DataObject, rows: int) -> None:
        """A producer dies: its successor aborts what it had written, and offsets have a gap."""
        shard = data.draw(st.sampled_from(sorted(self.keyspace.histories)))
        self.keyspace.histories[shard].abort(rows)

    # Operators ----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.keyspace.histories) < 14)
    @rule(data=st.data(), edges=st.sets(st.integers(1, SLOTS - 1), max_size=3))
    def create(self, data: st.DataObject, edges: set[int]) -> None:
        """A reshard of one or more neighbours into any number of shards."""
        busy = self.keyspace.busy()
        ordered = sorted(self.keyspace.serving, key=self.keyspace.slots)
        free = [i for i, shard in enumerate(ordered) if shard not in busy]
        if not free:
            return
        at = data.draw(st.sampled_from(free))
        count = data.draw(st.integers(1, 3))
        sources = [ordered[i] for i in range(at, min(at + count, len(ordered)))]
        sources = sources[: next((i for i, s in enumerate(sources) if s in busy), len(sources))]
        self.keyspace.begin_reshard(sources, sorted(edges))

    @precondition(lambda self: self.keyspace.under_way())
    @rule(data=st.data(), before=rows, step_us=steps)
    def switch_a_step(self, data: st.DataObject, before: int, step_us: int) -> None:
        """The next END, or, when all have ended, the next BEGIN."""
        reshard = data.draw(st.sampled_from(self.keyspace.under_way()))
        left = [s for s in reshard.sources if s not in reshard.ended]
        if left:
            self.keyspace.end(reshard, data.draw(st.sampled_from(left)), before, step_us)
            return
        left = [s for s in reshard.targets if s not in reshard.begun]
        self.keyspace.begin(reshard, data.draw(st.sampled_from(left)), before, step_us)

    @precondition(lambda self: len(self.keyspace.histories) < 14)
    @rule(aborted=st.integers(0, 200), behind=rows, step_us=st.one_of(steps, jumps))
    def merge_slowly(self, aborted: int, behind: int, step_us: int) -> None:
        """END of one of several sources with records behind it, long before the next END."""
        if not (waiting := self.keyspace.waiting_for_ends()):
            busy = self.keyspace.busy()
            ordered = sorted(self.keyspace.serving, key=self.keyspace.slots)
            pairs = [pair for pair in pairwise(ordered) if busy.isdisjoint(pair)]
            if not pairs:
                return
            self.keyspace.begin_reshard(self.random.choice(pairs), [])
            waiting = self.keyspace.waiting_for_ends()
        reshard, source = self.random.choice(waiting)
        self.keyspace.end(reshard, source, 0, 0)
        if aborted:
            self.keyspace.histories[source].abort(aborted)
        for _ in range(behind):
            self.keyspace.histories[source].commit([(step_us, 1)])
        latest_us = max(history.head_us for history in self.keyspace.histories.values())
        for history in self.keyspace.histories.values():
            history.heartbeat(latest_us + step_us - history.head_us)

    @precondition(lambda self: self.keyspace.under_way())
    @rule(data=st.data(), step_us=steps)
    def cancel(self, data: st.DataObject, step_us: int) -> None:
        """Cancel, also when all targets but one have begun: the sources continue."""
        reshard = data.draw(st.sampled_from(self.keyspace.under_way()))
        self.keyspace.cancel(reshard, step_us)

    @precondition(lambda self: self.keyspace.cancelled())
    @rule(data=st.data(), step_us=steps)
    def cancel_a_step(self, data: st.DataObject, step_us: int) -> None:
        """CANCEL in the next source, or BEGIN in a target where CANCEL came first."""
        reshard = data.draw(st.sampled_from(self.keyspace.cancelled()))
        late = [s for s in reshard.targets if s not in reshard.begun]
        if reshard.ended and self.random.randint(0, 1):
            self.keyspace.begin_too_late(reshard, data.draw(st.sampled_from(late)), step_us)
        else:
            self.keyspace.open_source(reshard, step_us)

    # The reader ---------------------------------------------------------------------------------

    @rule(count=st.integers(1, 30))
    def see(self, count: int) -> None:
        """Some progress records arrive, of any shards."""
        self.histories_seen()
        for _ in range(count):
            self.reading.feed()

    @rule()
    def see_all(self) -> None:
        """Let the reader catch up with the writers."""
        self.histories_seen()
        while self.reading.feed():
            if planned := self.reading.plan():
                self.take(*planned)
                self.position = self.reading.planner.position
                if self.restless and self.random.randint(0, 1):
                    self.stop_and_go_on()

    @rule(max_rows=bounds, count=st.integers(1, 5))
    def read(self, max_rows: int | None, count: int) -> None:
        """Take what is planned."""
        self.histories_seen()
        for _ in range(count):
            self.reading.now_ms += self.random.randint(0, 50)
            planned = self.reading.plan(max_rows)
            if planned is None:
                return
            self.take(*planned)
            self.position = self.reading.planner.position

    def take(self, batch: Batch, part: list[RawRecord]) -> None:
        """Deliver a batch: time never goes back, and a hop is at its hop time."""
        self.delivered += part
        if isinstance(self.mode, Strict):
            assert not batch.late_shards
            assert all(row.timestamp_us >= batch.start_frontier_us for row in part)
            if not part and batch.end.epoch != self.position.epoch:
                assert batch.frontier_us in self.keyspace.hop_times_us

    @rule()
    def stop_and_go_on(self) -> None:
        """Restart the reader at its position."""
        self.reading = self.open()

    @rule(max_rows=bounds, data=st.data())
    def stop_inside_a_batch(self, max_rows: int | None, data: st.DataObject) -> None:
        """Stop after any row of a batch; another reader resumes there."""
        self.histories_seen()
        start = self.position
        planned = self.reading.plan(max_rows)
        if planned is None:
            return
        part = planned[1]
        kept = part[: data.draw(st.integers(0, len(part)))]
        if len(kept) == len(part):
            self.position = self.reading.planner.position
        else:
            shards = dict(start.shards)
            for row in kept:
                shards[row.shard] = ShardPosition(row.offset + 1, row.seq, None)
            self.position = StreamPosition(start.epoch, start.frontier_us, shards)
        self.take(planned[0], kept)
        self.reading = self.open()

    def teardown(self) -> None:
        """Complete and read everything: every change has arrived once, in order."""
        try:
            self.complete()
        finally:
            self.clocks.undo()

    def complete(self) -> None:
        """Bring all reshards to their end, and the reader to the ends of all logs."""
        if not hasattr(self, "reading"):
            return
        self.keyspace.finish()
        self.histories_seen()
        for batch, part in self.reading.batches(self.random.choice((None, 1, 7))):
            assert batch.frontier_us == cell_start_us(batch.frontier_us)
            self.take(batch, part)
            self.position = batch.end
        self.check()

    def check(self) -> None:
        """Compare with what was written."""
        assert self.delivered == self.keyspace.expected(self.key_range)


class MaxHoldMachine(HopMachine):
    """The same with a reader that continues without silent shards: rows are late, none is lost."""

    mode = MaxHold(20)

    def check(self) -> None:
        """Compare shard by shard."""
        self.reading.now_ms += 1_000
        expected = self.keyspace.expected(self.key_range)
        for shard in self.keyspace.histories:
            assert [r for r in self.delivered if r.shard == shard] == [
                r for r in expected if r.shard == shard
            ]


class UnmergedMachine(MaxHoldMachine):
    """The same with a reader of each shard for itself, which may go on as a merged one."""

    def open(self) -> Reading | UnmergedReading:
        """A reader at the position, mostly unmerged."""
        made = list(self.keyspace.histories.values())
        if self.random.randint(0, 3) == 0:
            merged = Planner(
                self.position, self.key_range, ticks_max=4, retired_us=self.retired_us()
            )
            return Reading(made, merged, self.random)
        planner = UnmergedPlanner(
            self.position, self.key_range, ticks_max=4, retired_us=self.retired_us()
        )
        return UnmergedReading(made, planner, self.random)


TestHop = HopMachine.TestCase
TestHop.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestMaxHoldHop = MaxHoldMachine.TestCase
TestMaxHoldHop.settings = settings(max_examples=examples(50), stateful_step_count=40)
TestUnmergedHop = UnmergedMachine.TestCase
TestUnmergedHop.settings = settings(max_examples=examples(100), stateful_step_count=40)
