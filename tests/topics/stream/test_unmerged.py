"""A Subscriber in mode Unmerged, on real topics with logs as producers write them."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice

import pytest

from event_token import StreamPosition
from tests.topics.shard_writer import ITEMS, START_US, TIMEOUT_S, Reshard, ShardWriter, Writers
from tests.topics.splits import FAR_US, SPLIT, split
from tests.topics.subscribing import taken
from topics.errors import PositionTooOld
from topics.kafka.client import ClientConfig, Deadline
from topics.progress.record import MarkKind
from topics.reading.planner import Strict, Unmerged
from topics.records.vevent import EventType, Op, VEvent
from topics.stream.subscriber import ReadingMode, StreamSubscriber

BEGIN, END = MarkKind.BEGIN, MarkKind.END
UNMERGED = Unmerged()
Seen = tuple[str, int]


def by_shard(events: Iterable[VEvent | Seen]) -> dict[str, list[int]]:
    """The seqs of each shard, as they came."""
    found: dict[str, list[int]] = defaultdict(list)
    for event in events:
        shard, seq = (event.shard, event.seq) if isinstance(event, VEvent) else event
        found[shard].append(seq)
    return dict(found)


def dead_and_living(writers: Writers) -> tuple[ShardWriter, ShardWriter]:
    """A shard whose producer died after one row, and one that goes on."""
    dead, living = writers("-80", "80-")
    dead.commit((0, 1))
    living.commit((FAR_US, 2), (2 * FAR_US, 1))
    return dead, living


@pytest.mark.full
def test_a_dead_shard_delays_no_other(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """A shard without progress holds up neither events nor starts nor positions of the others."""
    dead, living = dead_and_living(writers)
    for start, expected in (
        ("earliest", {"-80": [1], "80-": [1, 2, 3]}),
        (START_US + 2 * FAR_US, {"80-": [3]}),
    ):
        with StreamSubscriber(keyspace, start=start, config=config, mode=UNMERGED) as stream:
            events = taken(stream, sum(map(len, expected.values())))
            position = stream.position
        assert by_shard(events) == expected
        # What the dead shard has yet to write is not before it.
        assert position is not None
        assert position.frontier_us <= START_US
        assert not any(event.late for event in events)

    with StreamSubscriber(keyspace, config=config, mode=UNMERGED, idle_timeout_s=0.5) as stream:
        assert list(stream) == []
        living.commit((3 * FAR_US, 1))
        assert by_shard(taken(stream, 1)) == {"80-": [4]}
        dead.commit((1, 1))  # its producer is back: a row of long ago
        late = taken(stream, 1)
    assert by_shard(late) == {"-80": [2]}
    assert not late[0].late


@pytest.mark.full
def test_a_position_continues_each_shard(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """A position of any event gives exactly the rest of each shard, also to a merged stream."""
    dead, living = dead_and_living(writers)
    with StreamSubscriber(keyspace, start="earliest", config=config, mode=UNMERGED) as stream:
        events = taken(stream, 4)
    dead.heartbeat(4 * FAR_US)
    living.heartbeat(4 * FAR_US)

    for at, event in enumerate(events):
        assert event.position is not None
        start = event.position.to_string()
        modes: tuple[ReadingMode, ...] = (UNMERGED, Strict())
        for mode in modes[: 1 + (at == 1)]:
            with StreamSubscriber(keyspace, start=start, config=config, mode=mode) as stream:
                rest = list(islice(stream, len(events) - at - 1))
            assert by_shard([*events[: at + 1], *rest]) == {"-80": [1], "80-": [1, 2, 3]}


@pytest.mark.full
def test_a_split_and_a_merge_are_hopped_over(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """Each change once across a split and a merge, from any position; BEGIN and END are seen."""
    [left, _, low, high], expected = split(writers, targets)
    merge = Reshard("r2", ("-80", "80-c0"), ("-c0.2",), 90_000)
    (merged,) = targets("-c0.2")
    merged.commit((60_000, 2))
    for source in (low, left):
        source.mark(80_000, END, merge)
    merged.mark(95_000, BEGIN, merge)
    merged.commit((96_000, 2))
    wanted = by_shard([(shard, seq) for _, shard, seq in expected])
    wanted["-80"].append(left.seq)
    wanted["80-c0"].append(low.seq)
    wanted["-c0.2"] = [3, 4, 5]
    count = sum(map(len, wanted.values()))

    with StreamSubscriber(keyspace, start="earliest", config=config, mode=UNMERGED) as stream:
        events = taken(stream, count)
    assert by_shard(events) == wanted
    marks = [json.loads(e.statement or "") for e in events if e.type is EventType.JOURNAL]
    assert sorted(mark["kind"] for mark in marks) == ["BEGIN"] * 3 + ["END"] * 3
    assert list(_last(events).shards) == ["-c0.2", "c0-"]
    assert _last(events).epoch == 2

    for at in range(0, count - 1, 8):
        start = _last(events[: at + 1])
        with StreamSubscriber(keyspace, start=start, config=config, mode=UNMERGED) as stream:
            rest = taken(stream, count - at - 1)
        assert by_shard([*events[: at + 1], *rest]) == wanted
    assert high.seq == wanted["c0-"][-1]


def _last(events: Sequence[VEvent]) -> StreamPosition:
    position = events[-1].position
    assert position is not None
    return position


def test_part_of_a_shard_and_some_tables(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """Rows are filtered by table and keyspace id, transaction by transaction in each shard."""
    left, right = writers("-80", "80-")
    for n, (writer, ids) in enumerate(((left, b"\x10"), (right, b"\xf0"), (right, b"\x90"))):
        rows = [
            writer.row(n, 0, last=False, ids=(None, ids)),
            writer.row(n, 1, last=False, ids=(None, ids)),
            writer.row(n, 2, shape=ITEMS, ids=(None, ids)),
        ]
        writer.commit_events(rows)

    with StreamSubscriber(
        keyspace, "-c0", "earliest", config=config, mode=UNMERGED, tables=["shop.orders"]
    ) as stream:
        events = taken(stream, 4)

    assert by_shard(events) == {"-80": [1, 2], "80-": [4, 5]}
    assert [(e.op, e.last) for e in events if e.shard == "80-"] == [
        (Op.INSERT, False),
        (Op.INSERT, True),
    ]


@pytest.mark.full
def test_rows_that_are_not_readable_yet_delay_no_other_shard(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """Progress may be readable before its rows: the other shards' events come meanwhile."""
    slow, quick = writers("-80", "80-")
    slow.commit((0, 1))
    rows = slow.rows([(1_000, 2)])
    slow.producer.begin_transaction()
    slow.produce(rows)
    # Progress in a transaction of its own, which a faulty broker may show first.
    early = ShardWriter(config, f"{keyspace}x", "-80")
    early.topics = slow.topics
    early.seq, early.last_cell_us = slow.seq, slow.last_cell_us
    early.commit_progress(slow.progress(rows, slow.rows_end - 2))
    quick.commit((0, 3))

    with StreamSubscriber(
        keyspace, start="earliest", config=config, mode=UNMERGED, idle_timeout_s=0.5
    ) as stream:
        assert by_shard(taken(stream, 4)) == {"-80": [1], "80-": [1, 2, 3]}
        deadline = Deadline(TIMEOUT_S)
        while True:  # the early progress may come after the rows of the other shard
            assert list(stream) == []
            if stream.waiting is not None and "not readable yet" in stream.waiting.reason:
                break
            assert not deadline.passed, stream.waiting
        assert stream.waiting.shards[0] == "-80"
        slow.producer.commit_transaction(TIMEOUT_S)
        assert by_shard(taken(stream, 2)) == {"-80": [2, 3]}
    early.close()


def test_what_retention_removed(config: ClientConfig, keyspace: str, writers: Writers) -> None:
    """A position whose records are gone is too old."""
    (writer,) = writers("-")
    for n in range(3):
        writer.commit((n * 20_000, 2))
    with StreamSubscriber(keyspace, start="earliest", config=config, mode=UNMERGED) as stream:
        first = taken(stream, 1)
    writer.remove_until(writer.rows_end - 2)

    with (
        StreamSubscriber(keyspace, start=_last(first), config=config, mode=UNMERGED) as stream,
        pytest.raises(PositionTooOld, match="retention has removed seq 2"),
    ):
        taken(stream, 1)


@pytest.mark.full
def test_a_reader_at_the_end_of_a_source(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """Between END and BEGIN the other shards go on; the stream names what the hop waits for."""
    left, source = writers("-80", "80-")
    low, high = targets("80-c0", "c0-")
    source.commit((0, 2))
    source.mark(35_000, END, SPLIT)
    with StreamSubscriber(
        keyspace, start="earliest", config=config, mode=UNMERGED, idle_timeout_s=0.5
    ) as stream:
        assert by_shard(taken(stream, 3)) == {"80-": [1, 2, 3]}
        left.commit((36_000, 1))
        assert by_shard(taken(stream, 1)) == {"-80": [1]}
        low.mark(42_000, BEGIN, SPLIT)
        assert list(stream) == []
        high.mark(42_000, BEGIN, SPLIT)
        high.commit((43_000, 1))
        assert by_shard(taken(stream, 3)) == {"80-c0": [1], "c0-": [1, 2]}
