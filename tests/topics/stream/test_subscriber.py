import secrets
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pytest

from event_token import ClockUncertainty, KeyRange, Order, ShardPosition, StreamPosition, compare
from event_token.errors import UsageError
from shardstream.local.kafka_cluster import KafkaCluster
from tests.interrupts import Interrupt, SoftTimeLimit
from tests.topics.schemas.writing import remove_topics
from tests.topics.shard_writer import (
    CELL_US,
    ITEMS,
    START_US,
    TIMEOUT_S,
    ShardWriter,
    Writers,
    serving,
)
from tests.topics.splits import FAR_US, Seen, seen
from tests.topics.subscribing import idle, taken
from topics.errors import LogShrank, PositionTooOld, ReaderClosed, RowsNotReadable, StartNotReached
from topics.kafka.client import ClientConfig
from topics.kafka.consumer import StreamConsumer
from topics.keyspace.topology import ShardEntry, Topology
from topics.reading.planner import MaxHold
from topics.records.vevent import Op, VEvent
from topics.start.positions import resolve_start
from topics.stream.log_reader import ShardLogReader
from topics.stream.subscriber import ReaderStats, StreamSubscriber

# How often a read is ended: by the progress topic, and by logs.
RAISED = 4


def written(writers: Sequence[ShardWriter]) -> list[Seen]:
    """Return everything that was written, in merged order."""
    return sorted(seen([e for w in writers for e in w.written]))


def three_shards(writers: Writers) -> list[ShardWriter]:
    """Three shards with interleaved transactions, one of them sparse."""
    made = writers("-40", "40-80", "80-")
    for n in range(6):
        made[0].commit((n * 25_000, 3), (n * 25_000 + 4_000, 1), (n * 25_000 + 12_000, 2))
        made[1].commit((n * 25_000 + 1_000, 2))
    made[2].commit((60_000, 2))
    for writer in made:
        writer.heartbeat(FAR_US)
    return made


@pytest.fixture(scope="module")
def three(kafka: KafkaCluster) -> Iterator[tuple[str, list[Seen]]]:
    """A keyspace of three shards, and what was written there; nobody writes any more."""
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    keyspace = f"ks{secrets.token_hex(4)}"
    with serving(config, keyspace) as writers:
        yield keyspace, written(three_shards(writers))


def test_all_shards_in_merged_order(config: ClientConfig, three: tuple[str, list[Seen]]) -> None:
    """Every event arrives once, by (timestamp, shard, offset), and transactions stay together."""
    keyspace, everything = three

    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        events = list(islice(stream, len(everything)))

    assert seen(events) == everything
    for before, after in pairwise(events):
        assert before.last or (after.shard, after.gtid) == (before.shard, before.gtid)
    assert not any(event.late for event in events)


@pytest.mark.full
def test_resume_by_the_position_of_an_event(
    config: ClientConfig, three: tuple[str, list[Seen]]
) -> None:
    """A position string of any event, also inside a transaction, resumes with exactly the rest."""
    keyspace, everything = three
    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        events = list(islice(stream, len(everything)))

    for at in (0, 1, 7, 20, len(everything) - 2):
        position = events[at].position
        assert position is not None
        with StreamSubscriber(keyspace, start=position.to_string(), config=config) as stream:
            rest = list(islice(stream, len(everything) - at - 1))

        assert seen(rest) == everything[at + 1 :]
        # The frontiers may differ: they say where batches were cut.
        resumed, uninterrupted = rest[-1].position, events[-1].position
        assert resumed is not None
        assert uninterrupted is not None
        assert resumed.shards == uninterrupted.shards


@pytest.mark.full
def test_a_position_of_a_log_that_was_recreated_is_refused(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """F09: Records of a recreated topic with the seqs and offsets that follow are not taken."""
    (writer,) = writers("-")
    for n in range(3):
        writer.commit((n * CELL_US, 1))
    writer.heartbeat(FAR_US)
    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        events = list(islice(stream, 3))
    remove_topics(config, [writer.topics.log, writer.topics.progress])
    (again,) = writers("-")
    for n in range(5):
        again.commit((FAR_US + n * CELL_US, 1))
    again.heartbeat(2 * FAR_US)

    for event in events:
        with (
            StreamSubscriber(keyspace, start=event.position or "", config=config) as stream,
            pytest.raises(LogShrank, match="the log was recreated"),
        ):
            next(stream)


def test_latest_gives_what_comes_after(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """A start at `latest` skips what is there and delivers what is written afterwards."""
    (writer,) = writers("-")
    writer.commit((0, 5))
    writer.wait_committed()

    with StreamSubscriber(keyspace, config=config, idle_timeout_s=0.5) as stream:
        assert list(stream) == []
        writer.commit((CELL_US, 2), (3 * CELL_US, 1))
        writer.heartbeat(FAR_US)
        events = taken(stream, 3)

    assert seen(events) == written([writer])[5:]


@pytest.mark.full
def test_start_at_a_time(config: ClientConfig, three: tuple[str, list[Seen]]) -> None:
    """A start at a time delivers everything not older than the time's grid cell."""
    keyspace, everything = three
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=START_US + 61_234)
    expected = [e for e in everything if e[0] >= START_US + 60_000]

    for start in (moment, START_US + 61_234):
        with StreamSubscriber(keyspace, start=start, config=config) as stream:
            events = list(islice(stream, len(expected)))

        assert seen(events) == expected


def test_a_start_at_a_time_leaves_room_for_the_clocks(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """With a clock uncertainty a start begins so much earlier, and close changes are UNKNOWN."""
    left, right = writers("-80", "80-")
    right.heartbeat(0)
    left.commit((0, 1), (30_000, 1))
    right.commit((60_000, 1))
    for writer in (left, right):
        writer.heartbeat(FAR_US)
    clock = ClockUncertainty(uncertainty_us=25_000, mariadb_longest_statement_us=5_000)

    with StreamSubscriber(keyspace, start=START_US + 60_000, config=config, clock=clock) as stream:
        events = list(islice(stream, 2))

    a, b = (event.token for event in events)
    assert seen(events) == seen([*left.written[1:], *right.written])
    assert compare(a, b) is Order.OLDER
    assert stream.compare(a, b) is Order.UNKNOWN


@pytest.mark.full
def test_start_before_a_log_that_was_started_over(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """A time before the beginning of one shard's log is refused; `earliest` and that time are not.

    The log may begin with rows, or with the heartbeat of a shard without writes.
    """
    kept, rows, idle_shard = writers("-40", "40-80", "80-")
    kept.commit((0, 1), (100_000, 1))
    rows.commit((50_000, 1))
    idle_shard.heartbeat(62_345)
    for writer in (kept, rows, idle_shard):
        writer.heartbeat(FAR_US)

    for key_range, begins in (("40-80", 50_000), ("80-", 70_000)):
        with (
            StreamSubscriber(keyspace, key_range, START_US + 40_000, config=config) as stream,
            pytest.raises(
                PositionTooOld,
                match=f"shard {key_range}: its log begins at {START_US + begins} us, after the "
                f"start at {START_US + 40_000} us.*or from earliest",
            ),
        ):
            next(stream)
    everything = written([kept, rows])
    for start, first in (("earliest", 0), (START_US + 70_000, 2)):
        with StreamSubscriber(keyspace, start=start, config=config) as stream:
            assert seen(taken(stream, 3 - first)) == everything[first:]


def test_start_at_a_time_that_no_shard_has_reached(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """A start beyond a shard's head names the shard and its progress."""
    (writer,) = writers("-")
    writer.commit((0, 1))

    with pytest.raises(StartNotReached, match="shard -: its log has reached"):
        resolve_start(
            START_US + FAR_US,
            config=config,
            topology=Topology(keyspace, 0, (ShardEntry("-"),)),
            key_range=KeyRange.parse("-"),
            schema_ids=writer.schema_ids,
            wait_s=0.2,
        )


@pytest.mark.full
def test_starts_after_retention(config: ClientConfig, keyspace: str, writers: Writers) -> None:
    """With the log's head removed: earliest begins at a whole cell, older starts are refused."""
    (writer,) = writers("-")
    with StreamSubscriber(keyspace, start="earliest", config=config, idle_timeout_s=0.2) as stream:
        for n in range(4):
            writer.commit((2 * n * CELL_US, 2), (2 * n * CELL_US + 1, 2))
        events = taken(stream, 2)
    writer.heartbeat(FAR_US)
    writer.wait_committed()
    writer.remove_until(7)  # in the middle of the second Kafka transaction

    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        assert seen(list(islice(stream, 8))) == written([writer])[8:]
    with StreamSubscriber(keyspace, start=START_US + 4 * CELL_US, config=config) as stream:
        assert seen(list(islice(stream, 8))) == written([writer])[8:]
    with (
        StreamSubscriber(keyspace, start=START_US + CELL_US, config=config) as stream,
        pytest.raises(PositionTooOld, match="no longer reaches back"),
    ):
        next(stream)
    with (
        StreamSubscriber(keyspace, start=events[-1].position or "", config=config) as stream,
        pytest.raises(PositionTooOld, match="retention has removed seq 3"),
    ):
        next(stream)


def test_retention_of_markers_alone_loses_nothing(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """A position at the end of a log that retention has emptied resumes with new records."""
    (writer,) = writers("-")
    writer.commit((0, 3))
    writer.wait_committed()
    start = StreamPosition(0, START_US, {"-": ShardPosition(3, 3, None)})
    writer.remove_until(writer.end_offset())
    writer.commit((CELL_US, 2))
    writer.heartbeat(FAR_US)

    with StreamSubscriber(keyspace, start=start, config=config) as stream:
        assert seen(list(islice(stream, 2))) == written([writer])[3:]


def test_progress_before_its_rows(config: ClientConfig, keyspace: str, writers: Writers) -> None:
    """Rows announced by progress are waited for, even past the partition's end."""
    (writer,) = writers("-")
    writer.commit((0, 3))
    writer.heartbeat(CELL_US)
    writer.wait_committed()
    events: list[VEvent] = []

    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        events += islice(stream, 3)
        rows = writer.rows([(CELL_US, 4)])
        end = writer.end_offset()
        writer.commit_progress(writer.progress(rows, end))
        writer.head_us = START_US + FAR_US
        writer.commit_progress(writer.progress((), end + 4))
        reading = threading.Thread(target=lambda: events.extend(islice(stream, 4)))
        reading.start()
        reading.join(1.0)
        assert len(events) == 3
        writer.commit_rows(rows)
        reading.join(TIMEOUT_S)

    assert seen(events) == written([writer])


@pytest.mark.full
def test_going_on_after_a_passing_fault(
    config: ClientConfig, keyspace: str, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a Retry the same iterator resumes after the last event, without loss or repeat."""
    readers: list[ShardLogReader] = []

    def kept(*args: Any, **kwargs: Any) -> ShardLogReader:
        readers.append(ShardLogReader(*args, **kwargs))
        return readers[-1]

    monkeypatch.setattr("topics.stream.log_reader.ShardLogReader", kept)
    (writer,) = writers("-")
    writer.commit((0, 3))
    writer.wait_committed()
    rows = writer.rows([(0, 2), (CELL_US, 2)])
    writer.commit_progress(writer.progress(rows, writer.end_offset()))
    writer.head_us = START_US + FAR_US
    writer.commit_progress(writer.progress((), writer.end_offset() + 4))
    events: list[VEvent] = []

    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        events += islice(stream, 3)
        monkeypatch.setattr(readers[0], "_rows_wait_s", 0.5)
        with pytest.raises(RowsNotReadable, match="announces seq"):
            next(stream)
        resume = stream.position
        writer.commit_rows(rows)
        events += islice(stream, 4)

    assert seen(events) == seen(writer.written)
    assert resume == events[2].position


def test_a_silent_shard_holds_a_strict_stream(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """F23: Nothing passes a shard without progress, and the stream names that shard."""
    loud, silent = writers("-80", "80-")
    loud.commit((0, 1), (5 * CELL_US, 1))
    silent.heartbeat(2 * CELL_US)

    with StreamSubscriber(keyspace, start="earliest", config=config, idle_timeout_s=0.5) as stream:
        assert seen(taken(stream, 1)) == written([loud])[:1]
        idle(stream, ("80-",))


def test_max_hold_gives_the_rest_late(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """F23: With max_hold a silent shard is passed, and its rows arrive late, in their order."""
    loud, silent = writers("-80", "80-")
    loud.head_us = START_US + FAR_US
    loud.commit((0, 1), (50 * CELL_US, 1))

    mode = MaxHold(100)
    with StreamSubscriber(keyspace, start="earliest", config=config, mode=mode) as stream:
        events = list(islice(stream, 2))
        silent.commit((CELL_US, 2), (51 * CELL_US, 1))
        silent.heartbeat(FAR_US)
        events += islice(stream, 3)

    assert seen(events) == [*written([loud]), *written([silent])]
    assert [event.late for event in events] == [False, False, True, True, True]
    assert stream.stats == ReaderStats(events=5, late=3, possible_duplicates=0, hops=0)


def test_key_range_and_tables(config: ClientConfig, keyspace: str, writers: Writers) -> None:
    """A part of a shard is filtered by keyspace id; the last row left ends its transaction."""
    (writer,) = writers("-")
    low, high = b"\x10", b"\xf0"
    writer.commit_events(
        [
            writer.row(0, 0, last=False, ids=(None, low)),
            writer.row(0, 1, last=False, ids=(None, high)),
            writer.row(0, 2, last=False, op=Op.UPDATE, ids=(low, high)),
            writer.row(0, 3, last=False, shape=ITEMS, ids=(None, low)),
            writer.row(0, 4, ids=(None, high)),
            writer.row(CELL_US, op=Op.UPDATE, ids=(high, low)),
        ]
    )
    writer.heartbeat(FAR_US)

    tables = ["shop.orders"]
    with StreamSubscriber(keyspace, "-80", "earliest", config=config, tables=tables) as stream:
        events = list(islice(stream, 3))

    assert [(e.seq, e.op, e.last) for e in events] == [
        (1, Op.INSERT, False),
        (3, Op.DELETE, True),
        (6, Op.INSERT, True),
    ]


def test_close_from_another_thread(config: ClientConfig, keyspace: str, writers: Writers) -> None:
    """A17: a waiting stream ends when another thread closes it; a new iteration is refused."""
    (writer,) = writers("-")
    writer.commit((0, 1))
    writer.heartbeat(FAR_US)
    stream = StreamSubscriber(keyspace, start="earliest", config=config)
    events: list[VEvent] = []
    first = threading.Event()

    def read() -> None:
        for event in stream:
            events.append(event)
            first.set()

    reading = threading.Thread(target=read)
    reading.start()
    assert first.wait(TIMEOUT_S)
    stream.close()
    reading.join(TIMEOUT_S)

    assert not reading.is_alive()
    assert len(events) == 1
    for again in (iter, StreamSubscriber.__enter__):
        with pytest.raises(ReaderClosed, match="create a new one"):
            again(stream)
    stream.close()


def test_what_cannot_be_subscribed_to(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """A position of other shards is refused, with the shards of both."""
    writers("-")
    elsewhere = StreamPosition(0, 0, {"-80": ShardPosition(0, 0, None)})

    with (
        StreamSubscriber(keyspace, start=elsewhere, config=config) as stream,
        pytest.raises(UsageError, match="is of the shards -80, the stream of the key range -:"),
    ):
        next(stream)


@pytest.mark.parametrize("error", [SoftTimeLimit, Interrupt])
def test_what_ends_a_read_loses_no_event(
    config: ClientConfig,
    three: tuple[str, list[Seen]],
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    """A signal handler that raises once records are fetched: the next read begins before them."""
    keyspace, everything = three
    events: list[VEvent] = []
    raised: list[int] = []
    take = StreamConsumer.take

    def take_and_raise(consumer: StreamConsumer, *arguments: Any) -> list[Any]:
        found = take(consumer, *arguments)
        if found and len(raised) < RAISED:
            raised.append(len(found))
            raise error
        return found

    monkeypatch.setattr(StreamConsumer, "take", take_and_raise)
    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        while len(events) < len(everything):
            try:
                events += stream.take(5, TIMEOUT_S)
            except error:
                assert stream.position is not None

    assert len(raised) == RAISED
    assert seen(events) == everything
