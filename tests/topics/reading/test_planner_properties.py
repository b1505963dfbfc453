from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from event_token import KeyRange, ShardPosition, StreamPosition
from tests.generated import examples
from tests.topics.reading.shard_histories import (
    History,
    Reading,
    beginning,
    histories,
    merged,
    whole_range,
)
from topics.progress.record import GRID_US, Progress, Tick, cell_start_us
from topics.reading.followed_shards import Wait
from topics.reading.merge import RawRecord
from topics.reading.planner import Batch, MaxHold, Planner, Strict, ranges_between

randoms = st.randoms(use_true_random=False)
bounds = st.one_of(st.none(), st.integers(1, 12))


def _reading(
    made: list[History], random: Random, position: StreamPosition | None = None
) -> Reading:
    position = position or beginning(made)
    planner = Planner(position, whole_range(made), Strict(), ticks_max=4)
    return Reading(made, planner, random)


@given(histories(), randoms, bounds)
def test_batches_hold_everything_once_in_order(
    made: list[History], random: Random, max_rows: int | None
) -> None:
    """All batches together are all rows by (timestamp, shard, offset), in any order of arrival."""
    rows = [row for _, part in _reading(made, random).batches(max_rows) for row in part]

    assert rows == merged(made)


@given(histories(), randoms, bounds)
def test_batches_are_disjoint_in_time(
    made: list[History], random: Random, max_rows: int | None
) -> None:
    """A batch holds exactly F(previous) <= t < F, and F never goes back nor passes a head."""
    reading = _reading(made, random)

    for batch, rows in reading.batches(max_rows):
        heads = [
            made_shard.progress[reading.fed[made_shard.shard] - 1].head_us
            for made_shard in made
            if reading.fed[made_shard.shard]
        ]
        start_us, frontier_us = batch.start_frontier_us, batch.frontier_us
        assert start_us <= frontier_us == cell_start_us(frontier_us)
        assert len(heads) == len(made)
        assert frontier_us <= min(heads)
        assert rows == [r for r in merged(made) if start_us <= r.timestamp_us < frontier_us]
        assert not batch.late_shards


@given(histories(), randoms, st.integers(1, 12))
def test_batches_keep_to_the_row_bound(made: list[History], random: Random, max_rows: int) -> None:
    """A batch has no more rows than asked for, unless it is one grid cell."""
    for batch, rows in _reading(made, random).batches(max_rows):
        cells = {cell_start_us(row.timestamp_us) for row in rows}
        assert batch.rows == len(rows)
        assert len(rows) <= max_rows or len(cells) == 1


def _position_after(start: StreamPosition, delivered: list[RawRecord]) -> StreamPosition:
    shards = dict(start.shards)
    for row in delivered:
        shards[row.shard] = ShardPosition(row.offset + 1, row.seq, None)
    return StreamPosition(start.epoch, start.frontier_us, shards)


@given(histories(), randoms, bounds, bounds, st.data())
@settings(max_examples=examples(150))
def test_resume_after_any_event_gives_the_rest(
    made: list[History],
    random: Random,
    max_rows: int | None,
    max_rows_then: int | None,
    data: st.DataObject,
) -> None:
    """A new planner at the position of any event reads exactly what follows it, in order."""
    reading = _reading(made, random)
    total = sum(len(h.rows) for h in made)
    count = data.draw(st.integers(0, total))
    position, seen = reading.planner.position, 0
    for batch, rows in reading.batches(max_rows):
        if seen + len(rows) >= count:
            position = _position_after(position, rows[: count - seen])
            break
        seen, position = seen + len(rows), batch.end

    again = _reading(made, random, position)
    rest = [row for _, part in again.batches(max_rows_then) for row in part]

    assert rest == merged(made)[count:]


@given(histories(), randoms, bounds)
def test_ranges_follow_from_positions_alone(
    made: list[History], random: Random, max_rows: int | None
) -> None:
    """The ranges of a batch are those between its positions, and an empty one moves no shard."""
    reading = _reading(made, random)
    before = reading.planner.position

    for batch, _ in reading.batches(max_rows):
        assert batch.ranges == ranges_between(before, batch.end)
        before = batch.end


@given(histories(), randoms, st.data())
def test_strict_never_passes_a_silent_shard(
    made: list[History], random: Random, data: st.DataObject
) -> None:
    """With a silent shard nothing beyond its head is delivered, and the shard is named."""
    silent = data.draw(st.sampled_from(made))
    reading = _reading(made, random)
    keep = data.draw(st.integers(0, len(silent.progress) - 1))
    known = silent.progress[:keep]
    cut_off = [History(h.shard, h.rows, known if h is silent else h.progress) for h in made]
    reading.made = cut_off
    head_us = known[-1].head_us if known else 0

    rows = [row for _, part in reading.batches() for row in part]
    wait = reading.planner.next_batch(reading.now_ms)

    assert rows == [r for r in merged(made) if r.timestamp_us < cell_start_us(head_us)]
    assert isinstance(wait, Wait)
    assert wait.shards == (silent.shard,)
    assert silent.shard in wait.reason


@given(histories(), randoms, bounds, st.integers(0, 60), st.data())
@settings(max_examples=examples(150))
def test_max_hold_loses_nothing(
    made: list[History],
    random: Random,
    max_rows: int | None,
    max_hold_ms: int,
    data: st.DataObject,
) -> None:
    """Shards that fall silent and come back lose nothing; their rows are only late."""
    start = beginning(made)
    planner = Planner(start, whole_range(made), MaxHold(max_hold_ms), ticks_max=4)
    reading = Reading(made, planner, random)
    names = [h.shard for h in made]
    rows: list[RawRecord] = []
    for silent in [*data.draw(st.lists(st.sets(st.sampled_from(names)), max_size=3)), set()]:
        reading.silent = frozenset(silent)
        reading.now_ms += 1_000
        steps = data.draw(st.integers(0, 8)) if silent else None
        for n, (batch, part) in enumerate(reading.batches(max_rows)):
            late = {r.shard for r in part if r.timestamp_us < batch.start_frontier_us}
            assert late == batch.late_shards
            rows += part
            if n == steps:
                break

    for history in made:
        assert [row for row in rows if row.shard == history.shard] == history.rows


@given(st.sampled_from((3, 4, 8)), randoms)
@settings(max_examples=examples(30))
def test_dense_shards_and_a_sparse_one_do_not_deadlock(shards: int, random: Random) -> None:
    """However far 3, 4 or 8 shards drift apart, everything is read, in bounded memory."""
    made = [History(f"{i:02x}-{i + 1:02x}") for i in range(shards)]
    for history in made[1:]:
        for _ in range(60):
            history.commit([(random.choice((5_000, 30_000)), 1)])
    made[0].heartbeat(100)
    made[0].commit([(1_500_000, 1)])
    end_us = max(h.now_us for h in made) + 1_000_000
    for history in made:
        history.heartbeat(end_us - history.head_us)

    rows = [row for _, part in _reading(made, random).batches() for row in part]

    assert rows == merged(made)


def test_a_late_row_does_not_make_the_rows_behind_it_late() -> None:
    """A shard whose late rows fit into one batch has caught up after it, also under load."""
    shards = {"-80": ShardPosition(0, 0, None), "80-": ShardPosition(0, 0, None)}
    planner = Planner(StreamPosition(0, 10 * GRID_US, shards), KeyRange.parse("-"))
    late = []
    for cell in range(9, 14):
        for shard in ("80-",) if cell == 9 else shards:
            row = cell - (9 if shard == "80-" else 10)
            ticks = (Tick(cell * GRID_US, row),)
            head_us = (cell + 1) * GRID_US
            planner.observe(
                shard,
                Progress(row + 1, row + 1, row + 1, "mysql", "", head_us, ticks, None, "", 0, 0),
                0,
            )
        if cell > 9:
            batch = planner.next_batch(0, 1_000)
            assert isinstance(batch, Batch)
            planner.advance(batch)
            late.append(set(batch.late_shards))

    assert late == [{"80-"}, set(), set(), set()]
