"""A Subscriber follows reshards, on real topics with logs as producers write them."""

import json
from itertools import islice, pairwise

import pytest

from tests.topics.shard_writer import Reshard, Writers
from tests.topics.splits import (
    BEHIND_OFFSET,
    FAR_US,
    SPLIT,
    begin_slow_merge,
    finish_slow_merge,
    seen,
    split,
    topology_after_split,
)
from tests.topics.subscribing import idle, taken
from topics.errors import PositionTooOld
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import update_topology
from topics.progress.record import MarkKind
from topics.records.vevent import EventType, Op
from topics.stream.subscriber import StreamSubscriber

BEGIN, END, CANCEL = MarkKind.BEGIN, MarkKind.END, MarkKind.CANCEL
LOW, HIGH = b"\x90", b"\xf0"


@pytest.mark.full
def test_a_split_is_hopped_over(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """F24: The source up to END, then the targets from BEGIN: once, in order, never back in time.

    The source's server is gone: nothing moves its head any more. A new reader at the position
    of any event gets exactly the rest.
    """
    _, expected = split(writers, targets)

    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        events = list(islice(stream, len(expected)))
    assert seen(events) == expected
    assert all(a.timestamp_us <= b.timestamp_us for a, b in pairwise(events))
    end = next(i for i, event in enumerate(events) if event.type is EventType.JOURNAL)
    assert not any(event.late for event in events)

    for at in (0, end - 1, end, end + 1, len(events) - 2):
        position = events[at].position
        assert position is not None
        with StreamSubscriber(keyspace, start=position.to_string(), config=config) as stream:
            rest = list(islice(stream, len(expected) - at - 1))
        assert seen(rest) == expected[at + 1 :]
        resumed, uninterrupted = rest[-1].position, events[-1].position
        assert resumed is not None
        assert uninterrupted is not None
        assert resumed.shards == uninterrupted.shards  # The frontiers say where batches were cut.


@pytest.mark.full
def test_a_reader_that_watches_the_reshard(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """The stream stops at END, names what it waits for, and continues once the targets begin."""
    left, source = writers("-80", "80-")
    low, high = targets("80-c0", "c0-")
    source.commit((0, 2))
    source.mark(35_000, END, SPLIT)
    left.commit((30_000, 1), (41_000, 1))
    source.heartbeat(FAR_US)
    left.heartbeat(FAR_US)

    with StreamSubscriber(keyspace, start="earliest", config=config, idle_timeout_s=0.7) as stream:
        expected = sorted(seen([*source.written, *left.written[:1]]))
        assert seen(taken(stream, len(expected))) == expected
        idle(stream, ("80-c0", "c0-"))
        assert stream.waiting is not None
        assert "80-c0, c0- has no BEGIN yet" in stream.waiting.reason
        for target in (low, high):
            target.mark(42_000, BEGIN, SPLIT)
            target.commit((43_000, 1))
            target.heartbeat(FAR_US)
        rest = taken(stream, 5)

    assert seen(rest) == sorted(seen([*left.written[1:], *low.written, *high.written]))
    assert [json.loads(e.statement or "")["kind"] for e in rest if e.statement] == ["BEGIN"] * 2


@pytest.mark.full
def test_a_range_that_is_not_whole_shards(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """A reader of part of a source follows only the targets it overlaps, still filtered."""
    left, source = writers("-80", "80-")
    low, high = targets("80-c0", "c0-")
    del left
    source.commit_events([source.row(0, ids=(None, LOW)), source.row(1_000, ids=(None, HIGH))])
    source.mark(35_000, END, SPLIT)
    low.mark(42_000, BEGIN, SPLIT)
    high.mark(42_000, BEGIN, SPLIT)  # waited for, though c0- is not this reader's
    low.commit_events(
        [
            low.row(43_000, ids=(None, LOW)),
            low.row(44_000, ids=(None, b"\xb0")),
            low.row(44_000, op=Op.UPDATE, ids=(b"\xb0", LOW)),
        ]
    )
    low.heartbeat(FAR_US)

    with StreamSubscriber(keyspace, "80-a0", "earliest", config=config) as stream:
        events = list(islice(stream, 5))

    assert [(e.shard, e.seq, e.op) for e in events] == [
        ("80-", 1, Op.INSERT),
        ("80-", 3, Op.NONE),
        ("80-c0", 1, Op.NONE),
        ("80-c0", 2, Op.INSERT),
        ("80-c0", 4, Op.INSERT),
    ]


def test_hops_after_hops_with_a_cancelled_one(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """F28: A reader that was down follows a cancelled reshard, a split and a later merge."""
    left, source = writers("-80", "80-")
    cancelled = Reshard("r0", ("-80", "80-"), ("-",), 0)
    for writer in (left, source):
        writer.commit((0, 1))
    source.mark(1_000, END, cancelled)
    for writer in (left, source):  # the source goes on; `-` is gone, or never was
        writer.mark(2_000, CANCEL, cancelled)
    low, high = targets("80-c0", "c0-")
    source.commit((3_000, 2))
    source.mark(35_000, END, SPLIT)
    for target in (low, high):
        target.commit((2_000, 2))
        target.mark(40_000, BEGIN, SPLIT)
        target.commit((50_000, 1))
    merge = Reshard("r2", ("-80", "80-c0"), ("-c0.2",), 90_000)
    (merged,) = targets("-c0.2")
    merged.commit((60_000, 2))
    low.mark(70_000, END, merge)
    left.mark(81_000, END, merge)
    merged.mark(95_000, BEGIN, merge)
    merged.commit((96_000, 2))
    for writer in (high, merged):
        writer.heartbeat(FAR_US)
    genuine = [*source.written, *left.written]
    genuine += [*low.written[2:], *high.written[2:], *merged.written[2:]]

    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        events = list(islice(stream, len(genuine)))

    assert seen(events) == sorted(seen(genuine))
    position = events[-1].position
    assert position is not None
    assert list(position.shards) == ["-c0.2", "c0-"]
    assert position.epoch == 2
    assert stream.stats.hops == 2


@pytest.mark.full
def test_a_target_whose_topics_are_gone(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """A reader at the END of a cancelled reshard waits for CANCEL, not for the target."""
    left, source = writers("-80", "80-")
    source.commit((0, 1))
    source.mark(1_000, END, SPLIT)
    left.heartbeat(FAR_US)
    source.heartbeat(FAR_US)

    with StreamSubscriber(keyspace, start="earliest", config=config, idle_timeout_s=1.5) as stream:
        assert len(taken(stream, 2)) == 2
        assert list(stream) == []
        targets("80-c0", "c0-")[0].commit((0, 1))
        source.mark(FAR_US, CANCEL, SPLIT)
        source.commit((FAR_US, 1))
        left.heartbeat(2 * FAR_US)
        source.heartbeat(2 * FAR_US)
        rest = taken(stream, 2)

    assert seen(rest) == seen(source.written[2:])


@pytest.mark.full
def test_a_restart_behind_an_end_and_its_markers(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """A reader that restarts where a record follows END, minutes before the other END, hops."""
    running, ended = writers("-80", "80-")
    begin_slow_merge(running, ended)

    with StreamSubscriber(keyspace, start="earliest", config=config, idle_timeout_s=1) as stream:
        events = taken(stream, 3)
        idle(stream, ("-80", "-"))
        position = stream.position
    assert position is not None
    expected = finish_slow_merge(running, ended, targets("-")[0])
    with StreamSubscriber(keyspace, start=position, config=config, idle_timeout_s=1) as stream:
        events += taken(stream, len(expected) - 3)

    assert (position.shards["80-"].offset, position.shards["80-"].seq) == (BEHIND_OFFSET, 1)
    assert seen(events) == expected


def test_a_begin_that_retention_has_removed(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """B14, F27: a reader that was away longer than a target's progress is kept is stopped."""
    left, source = writers("-80", "80-")
    low, high = targets("80-c0", "c0-")
    source.commit((0, 2))
    source.mark(35_000, END, SPLIT)
    low.mark(46_000, BEGIN, SPLIT)
    # What compaction leaves of the progress of c0-: nothing from before its last record.
    high.commit_rows(high.rows([(46_000, 2)]))
    high.commit((47_000, 1))
    for writer in (left, source, low, high):
        writer.heartbeat(FAR_US)

    with StreamSubscriber(keyspace, start="earliest", config=config, idle_timeout_s=1) as stream:
        taken(stream, len(source.written))
        idle(stream, ("c0-",))  # as long as the switch may be unfinished
        position = stream.position
    assert position is not None
    update_topology(config, keyspace, lambda _: topology_after_split(keyspace))
    with (
        StreamSubscriber(keyspace, start=position, config=config) as stream,
        pytest.raises(PositionTooOld, match="target c0- no longer shows its BEGIN"),
    ):
        next(stream)
