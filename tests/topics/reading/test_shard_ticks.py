from dataclasses import replace

import pytest

from event_token import KeyRange, ShardPosition, StreamPosition
from event_token.errors import UsageError
from tests.topics.reading.shard_histories import START_US, History
from topics.errors import PositionTooOld, ProgressBroken
from topics.progress.record import Cut, Mark, MarkKind, Progress, Tick
from topics.reading.followed_shards import Wait
from topics.reading.planner import Batch, MaxHold, Planner, is_hop, ranges_between
from topics.reading.shard_ticks import ShardTicks

CELL_US = 10_000


def history() -> History:
    """Five Kafka transactions of two rows, each in a cell of its own."""
    made = History("-")
    for _ in range(5):
        made.commit([(CELL_US, 2)])
    return made


def position(seq: int, offset: int, frontier_us: int = 0) -> StreamPosition:
    """A position in the only shard."""
    return StreamPosition(0, frontier_us, {"-": ShardPosition(offset, seq, None)})


def test_cuts_lie_on_ticks_and_never_before_the_position() -> None:
    """The cut at a time is the first tick from it on, the end where there is none."""
    made = history()
    known = ShardTicks("-", ShardPosition(3, 2, None))
    for progress in made.progress:
        known.observe(progress, 0)

    assert known.cut(START_US) == Cut(3, 2)
    assert known.cut(START_US + 3 * CELL_US) == Cut(6, 4)
    assert known.cut(START_US + 3 * CELL_US + 1) == Cut(9, 6)
    assert known.cut(START_US + 9 * CELL_US) == Cut(14, 10)


def test_progress_that_begins_behind_the_position_is_too_old() -> None:
    """A planner fed only from after its position stops; fed from at or before it, it works."""
    made = history()

    with pytest.raises(PositionTooOld, match="reaches back to seq 5, the reader is before"):
        ShardTicks("-", ShardPosition(3, 2, None)).observe(made.progress[2], 0)
    ShardTicks("-", ShardPosition(6, 4, None)).observe(made.progress[2], 0)
    ShardTicks("-", ShardPosition(6, 4, None)).observe(made.progress[1], 0)


def test_a_broken_chain_is_too_old_before_the_break_only() -> None:
    """A gap in the progress chain stops positions before it, and no later ones."""
    made = history()
    before = ShardTicks("-", ShardPosition(3, 2, None))
    before.observe(made.progress[0], 0)
    behind = ShardTicks("-", ShardPosition(9, 6, None))
    behind.observe(made.progress[0], 0)

    with pytest.raises(PositionTooOld, match="the progress chain breaks at 2"):
        before.observe(made.progress[3], 0)
    behind.observe(made.progress[3], 0)
    assert behind.cut(START_US + 9 * CELL_US) == Cut(11, 8)


@pytest.mark.parametrize(
    ("first_seq", "last_seq", "tick"),
    [(3, 4, None), (7, 5, None), (5, 6, (60_001, 6)), (5, 6, (60_000, 60)), (5, 6, (0, 6))],
)
def test_faulty_progress_stops_the_reader(
    first_seq: int, last_seq: int, tick: tuple[int, int] | None
) -> None:
    """Progress that repeats, runs backwards, or has ticks off the grid or the log, is an error."""
    made = history()
    known = ShardTicks("-", ShardPosition(0, 0, None))
    known.observe(made.progress[0], 0)
    known.observe(made.progress[1], 0)
    ticks = () if tick is None else (Tick(START_US + tick[0], tick[1]),)

    with pytest.raises(ProgressBroken, match="shard -:"):
        known.observe(
            Progress(first_seq, last_seq, 8, "mysql", "", START_US, ticks, None, "", 0, 0), 0
        )


def test_a_position_behind_a_mark_has_passed_it() -> None:
    """A reader that starts after a mark is not stopped by it."""
    made = history()
    mark = Mark(MarkKind.BEGIN, 4, "r1", ("-",), ("-80", "80-"), None)
    marked = replace(made.progress[1], mark=mark)
    planner = Planner(position(4, 5), KeyRange.parse("-"))
    for progress in (made.progress[0], marked, *made.progress[2:]):
        planner.observe("-", progress, 0)

    batch = planner.next_batch(0)

    assert isinstance(batch, Batch)
    assert (batch.ranges["-"].first_seq, batch.ranges["-"].last_seq) == (5, 8)


def test_what_is_not_older_than_what_was_read() -> None:
    """Of a shard that was read in part, what follows is as old as the cell of the position."""
    made = History("-")
    for step_us in (CELL_US, 0, CELL_US, CELL_US):
        made.commit([(step_us, 2)])
    cells = [progress.ticks[0].timestamp_us for progress in made.progress if progress.ticks]
    whole = ShardTicks("-", ShardPosition(0, 0, None))
    assert whole.read_cell_us == 0

    for progress in made.progress:
        whole.observe(progress, 0)
    assert whole.read_cell_us == cells[0]
    whole.advance(whole.cut(cells[1]))
    assert (whole.at.seq, whole.read_cell_us) == (4, cells[1])
    whole.advance(whole.cut(cells[2] + CELL_US))
    assert whole.read_cell_us == whole.head_cell_us


def test_records_behind_an_end_are_as_old_as_its_cell() -> None:
    """A row in the grid cell of END may be as old as the cell; without a row there is no time."""
    made = History("-")
    made.commit([(CELL_US, 1)])
    split = ("-",), ("-80", "80-")
    made.commit([(0, 1)], mark=lambda offset: Mark(MarkKind.END, offset, "r1", *split, None))
    known = ShardTicks("-", ShardPosition(0, 0, None))
    for progress in made.progress:
        known.observe(progress, 0)
    assert known.behind_end_us is None

    made.commit([(0, 1)])
    known.observe(made.progress[-1], 0)

    assert known.behind_end_us == made.progress[0].ticks[0].timestamp_us


def test_nothing_lies_between_the_positions_of_a_hop() -> None:
    """A hop replaces shards and reads nothing; the way back is no hop."""
    kept, ended, begun = (ShardPosition(at, at, None) for at in (1, 2, 3))
    source = StreamPosition(4, START_US, {"-80": kept, "80-": ended})
    shards = {"-80": kept, "80-c0": begun, "c0-": begun}

    assert ranges_between(source, StreamPosition(5, START_US, shards)) == {}
    for other in (
        StreamPosition(6, START_US, shards),
        StreamPosition(3, START_US, shards),
        StreamPosition(5, START_US + CELL_US, shards),
        StreamPosition(5, START_US, shards | {"-80": ended}),
    ):
        with pytest.raises(UsageError, match="positions of different shards"):
            ranges_between(source, other)
    assert not is_hop(source, replace(source, epoch=5))
    halves = {shard: ShardPosition(1, 1, None) for shard in ("-80", "80-")}
    assert is_hop(position(4, 5), StreamPosition(1, 0, halves))


def test_memory_is_bounded_by_wants() -> None:
    """A shard that is far ahead is not read until the others have caught up."""
    start = StreamPosition(
        0, 0, {"-80": ShardPosition(0, 0, None), "80-": ShardPosition(0, 0, None)}
    )
    planner = Planner(start, KeyRange.parse("-"), ticks_max=3)
    ahead, behind = History("-80"), History("80-")
    for _ in range(4):
        ahead.commit([(CELL_US, 1)])
    behind.heartbeat(9 * CELL_US)
    for progress in ahead.progress[:3]:
        assert planner.wants("-80")
        planner.observe("-80", progress, 0)

    assert not planner.wants("-80")
    assert planner.wants("80-")
    planner.observe("80-", behind.progress[0], 0)
    batch = planner.next_batch(0)
    assert isinstance(batch, Batch)
    planner.advance(batch)
    assert planner.wants("-80")


def test_waiting_says_for_whom_and_how_long() -> None:
    """The reason names each shard that holds back, and whether it ever reported progress."""
    start = StreamPosition(
        0, 0, {"-80": ShardPosition(0, 0, None), "80-": ShardPosition(0, 0, None)}
    )
    planner = Planner(start, KeyRange.parse("-"))
    quiet = History("-80")
    quiet.heartbeat(0)
    planner.observe("-80", quiet.progress[0], seen_at_ms=1_000)

    wait = planner.next_batch(now_ms=4_500)
    assert isinstance(wait, Wait)
    assert wait.shards == ("80-",)
    assert wait.reason == "shard 80- has no progress yet: is its producer running?"
    other = History("80-")
    other.heartbeat(0)
    planner.observe("80-", other.progress[0], seen_at_ms=2_000)
    batch = planner.next_batch(now_ms=4_500)
    assert isinstance(batch, Batch)
    planner.advance(batch)
    wait = planner.next_batch(now_ms=4_500)
    assert isinstance(wait, Wait)
    assert wait.shards == ("-80", "80-")
    assert f"shard -80 is at head {START_US} us, unchanged for 3500 ms" in wait.reason
    wait = planner.next_batch(now_ms=2_000)
    assert isinstance(wait, Wait)
    assert f"shard 80- is at head {START_US} us, unchanged for 0 ms" in wait.reason


def test_what_a_planner_refuses() -> None:
    """Positions of other shards, negative holds and batches without rows are bad input."""
    half = StreamPosition(0, 0, {"-80": ShardPosition(0, 0, None)})
    with pytest.raises(UsageError, match="of the shards -80, the stream of the key range -:"):
        Planner(half, KeyRange.parse("-"))
    with pytest.raises(UsageError, match="negative"):
        MaxHold(-1)
    with pytest.raises(UsageError, match="max_rows 0"):
        Planner(position(0, 0), KeyRange.parse("-")).next_batch(0, 0)
    for seq, offset in ((2, 3), (2, 6), (5, 3)):
        with pytest.raises(UsageError, match="lies before the start"):
            ranges_between(position(4, 5), position(seq, offset))
    with pytest.raises(UsageError, match="positions of different shards"):
        ranges_between(position(4, 5), half)


def _marked(made: History, kind: MarkKind, hop_time_us: int | None = None) -> None:
    """Add a mark of a split of `-`."""
    split = ("-",), ("-80", "80-")
    made.commit([(CELL_US, 1)], mark=lambda offset: Mark(kind, offset, "r1", *split, hop_time_us))


@pytest.mark.parametrize("later_cells", [0, 5])
def test_a_retired_shard_without_its_end_stops_the_reader(later_cells: int) -> None:
    """If progress no longer has an END that the topology knows of, nothing passes it."""
    made = history()
    _marked(made, MarkKind.END)
    made.heartbeat(CELL_US)
    hop_time_us = START_US + 8 * CELL_US
    made.heartbeat(hop_time_us - made.head_us + later_cells * CELL_US)
    behind_end = position(11, made.end_offset, START_US)
    planner = Planner(behind_end, KeyRange.parse("-"), retired_us={"-": hop_time_us})
    planner.observe("-", made.progress[-2], 0)
    batch = planner.next_batch(0)
    assert isinstance(batch, Batch)
    assert batch.frontier_us == hop_time_us - CELL_US
    planner.advance(batch)
    planner.observe("-", made.progress[-1], 0)

    with pytest.raises(PositionTooOld, match="no longer shows the END"):
        planner.next_batch(0)


@pytest.mark.parametrize("hop_time_us", [None, START_US, START_US + 99 * CELL_US])
def test_a_faulty_switch_stops_the_reader(hop_time_us: int | None) -> None:
    """BEGIN without a hop time, with one before END, or older than the one it names, is refused."""
    source, target = history(), History("-80")
    _marked(source, MarkKind.END)
    planner = Planner(position(0, 0), KeyRange.parse("-80"))
    for progress in source.progress:
        planner.observe("-", progress, 0)
    target.heartbeat(20 * CELL_US)
    _marked(target, MarkKind.BEGIN, hop_time_us)
    planner.observe("-80", target.progress[0], 0)

    with pytest.raises(ProgressBroken, match="reshard r1"):
        _observe_and_plan(planner, "-80", target.progress[1:])


def _observe_and_plan(planner: Planner, shard: str, found: list[Progress]) -> None:
    for progress in found:
        planner.observe(shard, progress, 0)
    planner.next_batch(0)


def test_marks_that_contradict_each_other_stop_the_reader() -> None:
    """Another reshard's END, a mark inside a transaction and targets with a gap are refused."""
    twice = history()
    _marked(twice, MarkKind.END)
    twice.commit([(0, 1)], mark=lambda n: Mark(MarkKind.END, n, "r2", ("-",), ("-.2",), None))
    inside = history()
    inside.commit([(0, 2)], mark=lambda n: Mark(MarkKind.END, n - 1, "r1", ("-",), ("-.2",), None))
    hole = history()
    hole.commit([(0, 1)], mark=lambda n: Mark(MarkKind.END, n, "r1", ("-",), ("-80",), None))

    for made, message in (
        (twice, "without a CANCEL"),
        (inside, "does not end"),
        (hole, "the same key range"),
    ):
        planner = Planner(position(0, 0), KeyRange.parse("-"))
        with pytest.raises(ProgressBroken, match=message):
            _observe_and_plan(planner, "-", made.progress)
