"""Hops, one rule at a time: `test_hop_machine` covers them by generated histories."""

from collections.abc import Callable

import pytest

from event_token import KeyRange, ShardPosition, StreamPosition
from tests.topics.reading.shard_histories import START_US, History
from topics.errors import PositionTooOld, ProgressBroken
from topics.progress.record import GRID_US, Mark, MarkKind, cell_start_us
from topics.reading.followed_shards import Wait
from topics.reading.hops import Hops
from topics.reading.planner import Batch, Planner
from topics.reading.shard_ticks import ShardTicks

HOP_US = START_US + 5 * GRID_US


def planner_of(*shards: str) -> Planner:
    """A planner of the whole keyspace, before the first record of these shards."""
    start = {shard: ShardPosition(0, 0, None) for shard in shards}
    return Planner(StreamPosition(0, 0, start), KeyRange.parse("-"))


def marked(
    history: History,
    kind: MarkKind,
    reshard: tuple[tuple[str, ...], tuple[str, ...]],
    hop_time_us: int | None = None,
    step_us: int = GRID_US,
) -> History:
    """The history with a mark, `step_us` after its last record."""
    history.commit(
        [(step_us, 1)], mark=lambda offset: Mark(kind, offset, "r1", *reshard, hop_time_us)
    )
    return history


def feed(planner: Planner, history: History) -> None:
    """Give the planner all progress of a shard."""
    for progress in history.progress:
        planner.observe(history.shard, progress, 0)


def read_all(planner: Planner) -> Wait:
    """Take batches until there is none."""
    while isinstance(step := planner.next_batch(0), Batch):
        planner.advance(step)
    return step


def begun(shard: str, reshard: tuple[tuple[str, ...], tuple[str, ...]], hop_us: int) -> History:
    """A target with its BEGIN, and a head beyond it."""
    history = marked(
        History(shard, now_us=hop_us), MarkKind.BEGIN, reshard, hop_us, step_us=GRID_US
    )
    history.heartbeat(10 * GRID_US)
    return history


def test_a_hop_waits_for_every_target() -> None:
    """D6: with one of two BEGINs the reader stays at the hop time, with both it hops."""
    split = (("-",), ("-80", "80-"))
    source = marked(History("-"), MarkKind.END, split)
    source.heartbeat(9 * GRID_US)
    planner = planner_of("-")
    feed(planner, source)
    read_all(planner)
    feed(planner, begun("-80", split, HOP_US))

    wait = read_all(planner)

    assert wait.shards == ("80-",)
    assert set(planner.position.shards) == {"-"}
    assert planner.position.frontier_us == HOP_US
    feed(planner, begun("80-", split, HOP_US))
    read_all(planner)
    assert set(planner.position.shards) == {"-80", "80-"}
    assert planner.position.epoch == 1
    assert planner.position.frontier_us > HOP_US


def test_the_frontier_goes_on_until_all_sources_have_ended() -> None:
    """D6: the END of one of two sources does not hold the other one back."""
    merge = (("-80", "80-"), ("-",))
    first = marked(History("-80"), MarkKind.END, merge)
    first.heartbeat(20 * GRID_US)
    second = History("80-")
    second.commit([(15 * GRID_US, 1)])
    second.heartbeat(GRID_US)
    planner = planner_of("-80", "80-")
    feed(planner, first)
    feed(planner, second)

    read_all(planner)

    assert planner.position.frontier_us == START_US + 16 * GRID_US
    assert planner.position.shards["80-"].seq == 1


def test_what_a_cancel_gives_back_is_not_late() -> None:
    """A record behind END is older than no frontier, for a CANCEL makes it part of the stream."""
    merge = (("-80", "80-"), ("-",))
    first = marked(History("-80"), MarkKind.END, merge)
    first.commit([(GRID_US, 1)])
    first.heartbeat(20 * GRID_US)
    second = History("80-")
    second.heartbeat(30 * GRID_US)
    planner = planner_of("-80", "80-")
    feed(planner, first)
    feed(planner, second)
    wait = read_all(planner)
    seen = len(first.progress)
    marked(first, MarkKind.CANCEL, merge)
    first.heartbeat(20 * GRID_US)
    for progress in first.progress[seen:]:
        planner.observe("-80", progress, 0)

    step = planner.next_batch(0)

    assert "no END of 80-" in wait.reason
    assert isinstance(step, Batch)
    assert step.ranges["-80"].first_seq == 2
    assert not step.late_shards


def test_what_lies_behind_an_end_holds_nobody_back_after_the_hop() -> None:
    """Records behind END belong to no stream once all targets have begun."""
    split = (("-",), ("-80", "80-"))
    source = marked(History("-"), MarkKind.END, split)
    source.commit([(0, 1), (GRID_US, 1)])
    source.heartbeat(9 * GRID_US)
    planner = planner_of("-")
    feed(planner, source)
    held = read_all(planner)
    assert held.shards == ("-80", "80-")
    for shard in ("-80", "80-"):
        feed(planner, begun(shard, split, HOP_US))

    read_all(planner)

    assert planner.position.epoch == 1


@pytest.mark.parametrize("hop_us", [START_US + 2 * GRID_US, START_US + 8 * GRID_US])
def test_a_hop_time_before_the_latest_end_is_refused(hop_us: int) -> None:
    """D6: rows up to the latest END would lie behind the hop time, and come late."""
    merge = (("-80", "80-"), ("-",))
    early = marked(History("-80"), MarkKind.END, merge, step_us=GRID_US)
    late = marked(History("80-"), MarkKind.END, merge, step_us=8 * GRID_US)
    planner = planner_of("-80", "80-")
    for history in (early, late):
        history.heartbeat(20 * GRID_US)
        feed(planner, history)
    feed(planner, begun("-", merge, hop_us))

    with pytest.raises(ProgressBroken, match="the switch was faulty"):
        planner.next_batch(0)


def test_a_hop_time_at_the_end_of_the_latest_ends_cell_is_accepted() -> None:
    """D6: the least hop time of a correct switch is taken."""
    merge = (("-80", "80-"), ("-",))
    planner = planner_of("-80", "80-")
    for shard, cells in (("-80", 1), ("80-", 8)):
        history = marked(History(shard), MarkKind.END, merge, step_us=cells * GRID_US)
        history.heartbeat(20 * GRID_US)
        feed(planner, history)
    feed(planner, begun("-", merge, START_US + 9 * GRID_US))

    read_all(planner)

    assert set(planner.position.shards) == {"-"}


def test_targets_that_name_two_hop_times_are_refused() -> None:
    """D6: both may be late enough, but the reader can only hop at one of them."""
    split = (("-",), ("-80", "80-"))
    source = marked(History("-"), MarkKind.END, split)
    planner = planner_of("-")
    feed(planner, source)
    feed(planner, begun("-80", split, HOP_US))
    feed(planner, begun("80-", split, HOP_US + GRID_US))

    with pytest.raises(ProgressBroken, match="the switch was faulty"):
        planner.next_batch(0)


@pytest.mark.parametrize(
    "second",
    [
        (("-80", "80-"), ("-.2",)),
        (("-80", "80-.2"), ("-",)),
        (("-80.2", "80-"), ("-",)),
    ],
)
def test_ends_that_contradict_each_other_are_refused(
    second: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    """D6: ENDs of one reshard name the same sources, the one's own among them, and targets."""
    planner = planner_of("-80", "80-")
    feed(planner, marked(History("-80"), MarkKind.END, (("-80", "80-"), ("-",))))

    with pytest.raises(ProgressBroken, match="another one with that id"):
        feed(planner, marked(History("80-"), MarkKind.END, second))


def test_an_end_of_another_shards_reshard_is_refused() -> None:
    """D6: a shard whose END does not name it would never be left."""
    planner = planner_of("-80", "80-")

    with pytest.raises(ProgressBroken, match="shard -80: END of reshard r1"):
        feed(planner, marked(History("-80"), MarkKind.END, (("80-",), ("80-c0", "c0-"))))


@pytest.mark.parametrize(
    ("shard", "reshard"),
    [
        ("-40", (("-40", "80-"), ("-",))),
        ("-40", (("-40", "20-"), ("-",))),
        ("-40", (("-40",), ("-20",))),
        ("-40", (("-40",), ("-20", "10-40"))),
        ("-40", (("-40",), ("-20", "20-60"))),
        ("-40", (("-40",), ())),
        ("-40", (("-40",), ("no shard",))),
    ],
)
def test_reshards_that_leave_a_hole_are_refused(
    shard: str, reshard: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    """D6: sources, and targets, that do not cover one range exactly once would lose changes."""
    start = {each: ShardPosition(0, 0, None) for each in (shard, "40-")}
    planner = Planner(StreamPosition(0, 0, start), KeyRange.parse("-"))

    with pytest.raises(ProgressBroken, match="do not make up the same key range"):
        feed(planner, marked(History(shard), MarkKind.END, reshard))


def test_a_begin_that_compaction_removed_stops_the_reader() -> None:
    """B14: the marks of a switched reshard are all written, so none of them is waited for."""
    split = (("-",), ("-80", "80-"))
    source = marked(History("-"), MarkKind.END, split)
    source.heartbeat(9 * GRID_US)
    start = StreamPosition(0, 0, {"-": ShardPosition(0, 0, None)})
    planner = Planner(start, KeyRange.parse("-"), retired_us={"-": HOP_US})
    feed(planner, source)
    read_all(planner)
    feed(planner, begun("-80", split, HOP_US))
    compacted = begun("80-", split, HOP_US)
    compacted.commit([(GRID_US, 2)])
    del compacted.progress[:-1]
    feed(planner, compacted)

    with pytest.raises(PositionTooOld, match="target 80- no longer shows its BEGIN"):
        planner.next_batch(0)


@pytest.mark.parametrize("is_switched", [False, True])
def test_a_begin_that_may_still_come_is_waited_for(is_switched: bool) -> None:
    """B14: progress that reaches back is complete, and an unfinished switch is waited for."""
    source = marked(History("-"), MarkKind.END, (("-",), ("-80", "80-")))
    source.heartbeat(9 * GRID_US)
    start = StreamPosition(0, 0, {"-": ShardPosition(0, 0, None)})
    retired_us = {"-": HOP_US} if is_switched else {}
    planner = Planner(start, KeyRange.parse("-80"), retired_us=retired_us)
    feed(planner, source)
    read_all(planner)
    target = History("-80", now_us=HOP_US)
    target.commit([(0, 1)])
    target.heartbeat(10 * GRID_US)
    target.commit([(GRID_US, 2)])
    if not is_switched:
        del target.progress[:-1]
    feed(planner, target)
    feed(planner, begun("80-", (("-",), ("-80", "80-")), HOP_US))

    wait = read_all(planner)

    assert wait.shards == ("-80",)


def test_a_hop_waits_for_every_end() -> None:
    """D6: a target that has begun is not entered while the END of a source is still unseen."""
    merge = (("-80", "80-"), ("-",))
    first = marked(History("-80"), MarkKind.END, merge)
    first.heartbeat(9 * GRID_US)
    second = History("80-")
    second.commit([(GRID_US, 1)])
    second.heartbeat(9 * GRID_US)
    planner = planner_of("-80", "80-")
    for history in (first, second, begun("-", merge, HOP_US)):
        feed(planner, history)

    wait = read_all(planner)

    assert set(planner.position.shards) == {"-80", "80-"}
    assert planner.position.frontier_us == HOP_US
    assert wait.shards == ("80-",)
    assert "reshard r1: no END of 80-" in wait.reason


def test_a_hop_waits_for_targets_outside_of_the_range() -> None:
    """B17: a reader of half a split stays until the other half has begun, too."""
    split = (("-",), ("-80", "80-"))
    source = marked(History("-"), MarkKind.END, split)
    source.heartbeat(9 * GRID_US)
    start = {"-": ShardPosition(0, 0, None)}
    planner = Planner(StreamPosition(0, 0, start), KeyRange.parse("-80"))
    feed(planner, source)
    feed(planner, begun("-80", split, HOP_US))

    wait = read_all(planner)

    assert wait.shards == ("80-",)
    assert set(planner.position.shards) == {"-"}
    feed(planner, begun("80-", split, HOP_US))
    assert not planner.wants("80-")
    read_all(planner)
    assert set(planner.position.shards) == {"-80"}


def test_a_begin_behind_a_cancel_does_not_count() -> None:
    """B17: the first mark of an id in a target's log decides; CANCEL in the source follows."""
    split = (("-",), ("-80", "80-"))
    source = marked(History("-"), MarkKind.END, split)
    source.heartbeat(9 * GRID_US)
    planner = planner_of("-")
    feed(planner, source)
    feed(planner, begun("-80", split, HOP_US))
    late = marked(History("80-", now_us=HOP_US), MarkKind.CANCEL, split)
    marked(late, MarkKind.BEGIN, split, HOP_US)
    late.heartbeat(10 * GRID_US)
    feed(planner, late)

    wait = read_all(planner)

    assert wait.shards == ("-",)
    assert "cancelled on 80-, but not yet on -" in wait.reason
    source.commit([(GRID_US, 2)])  # the decision makes it an ordinary row
    marked(source, MarkKind.CANCEL, split)
    source.heartbeat(20 * GRID_US)
    for progress in source.progress[-3:]:
        planner.observe("-", progress, 0)
    read_all(planner)
    assert planner.position.shards["-"].seq == 4
    assert planner.position.epoch == 0


def test_a_target_far_ahead_is_not_read_until_the_hop() -> None:
    """What is kept of a target that has begun is bounded; one that has not is always read."""
    split = (("-",), ("-80", "80-"))
    source = marked(History("-"), MarkKind.END, split)
    source.heartbeat(9 * GRID_US)
    ahead, behind = begun("-80", split, HOP_US), begun("80-", split, HOP_US)
    for _ in range(3):
        ahead.commit([(GRID_US, 1)])
    planner = Planner(planner_of("-").position, KeyRange.parse("-"), ticks_max=3)
    feed(planner, source)

    assert planner.wants("-80")
    feed(planner, ahead)
    assert not planner.wants("-80")
    assert planner.wants("80-")
    feed(planner, behind)
    read_all(planner)
    assert set(planner.position.shards) == {"-80", "80-"}


def test_the_end_of_a_source_is_awaited_however_far_ahead_it_is() -> None:
    """A row behind one END holds the frontier until the other source has ended, too."""
    merge = (("-80", "80-"), ("-",))
    ended = marked(History("-80"), MarkKind.END, merge)
    running = History("80-")
    for history in (ended, running):
        history.heartbeat(GRID_US)
    for _ in range(3):
        running.commit([(GRID_US, 1)])
    planner = Planner(planner_of("-80", "80-").position, KeyRange.parse("-"), ticks_max=3)
    feed(planner, running)
    feed(planner, ended)
    assert not planner.wants("80-")

    ended.commit([(GRID_US, 1)])
    planner.observe("-80", ended.progress[-1], 0)
    assert planner.wants("80-")


def test_sources_are_read_to_the_latest_end() -> None:
    """Without BEGIN the frontier ends with the cell of the latest END, not of the first one."""
    merge = (("-80", "80-"), ("-",))
    first = marked(History("-80"), MarkKind.END, merge)
    latest = History("80-")
    latest.commit([(3 * GRID_US, 2)])
    marked(latest, MarkKind.END, merge)
    planner = planner_of("-80", "80-")
    for history in (first, latest):
        history.heartbeat(9 * GRID_US)
        feed(planner, history)

    wait = read_all(planner)

    assert wait.shards == ("-",)
    assert planner.position.frontier_us == cell_start_us(latest.rows[-1].timestamp_us) + GRID_US
    assert planner.position.shards["80-"].seq == 3


def test_two_reshards_at_once_are_both_followed() -> None:
    """What a target logs after its BEGIN is wanted, whatever other reshards are open."""
    low, high = (("-80",), ("-40", "40-80")), (("80-",), ("80-c0", "c0-"))
    planner = planner_of("-80", "80-")
    for split, name in ((low, "r1"), (high, "r2")):
        source = History(split[0][0])
        source.commit([(GRID_US, 1)], mark=end_of(name, split))
        source.heartbeat(9 * GRID_US)
        feed(planner, source)

    feed(planner, begun("-40", low, HOP_US))

    assert planner.wants("-40")


def end_of(name: str, reshard: tuple[tuple[str, ...], tuple[str, ...]]) -> Callable[[int], Mark]:
    """Make END of a reshard at an offset."""
    return lambda offset: Mark(MarkKind.END, offset, name, *reshard, None)


def test_a_begin_is_looked_for_from_the_latest_end_on() -> None:
    """BEGIN is not older than any END, so earlier progress of targets is not needed."""
    merge = (("-80", "80-"), ("-",))
    active = {}
    for shard, cells in (("-80", 1), ("80-", 7)):
        history = marked(History(shard), MarkKind.END, merge, step_us=cells * GRID_US)
        active[shard] = ShardTicks(shard, ShardPosition(0, 0, None))
        active[shard].observe(history.progress[0], 0)
    hops = Hops(KeyRange.parse("-"))

    hops.update(active)

    assert hops.targets["-"].from_us == cell_start_us(START_US + 7 * GRID_US) + GRID_US


def test_a_reshard_that_holds_nobody_back_is_no_reason() -> None:
    """While another shard is silent before the hop time, the stream waits for that one alone."""
    split = (("-80",), ("-40", "40-80"))
    source = marked(History("-80"), MarkKind.END, split, step_us=7 * GRID_US)
    source.heartbeat(9 * GRID_US)
    other = History("80-")
    other.heartbeat(GRID_US)
    planner = planner_of("-80", "80-")
    for history in (source, other):
        feed(planner, history)

    wait = read_all(planner)

    assert wait.shards == ("80-",)
    assert "reshard" not in wait.reason
