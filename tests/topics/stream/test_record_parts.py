"""Records in parts: joined by every reader, never split by a position, refused when damaged."""

import base64
import json
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import pytest

from event_token.errors import Halt, ShardstreamError
from shardstream import Subscriber
from shardstream.local.kafka_cluster import KafkaCluster
from tests.topics.records.record_encoder import record_key
from tests.topics.schemas.writing import transactional
from tests.topics.shard_writer import (
    CELL_US,
    TIMEOUT_S,
    ShardWriter,
    Writers,
    limit_messages,
    serving,
)
from tests.topics.subscribing import taken
from topics.errors import CorruptRecord, LogGap, LogRepeat, PositionTooOld
from topics.kafka.client import RECORD_BYTES_OPTION, ClientConfig, open_producer
from topics.kafka.lookups import Lookup, Lookups, first_between, last_between
from topics.kafka.partition_reader import PartitionReader
from topics.kafka.record_parts import PART_HEADER, Headers, RecordBeyondLimit
from topics.kafka.topic_settings import RECORD_BYTES_MIN
from topics.progress.committed_tail import read_committed_tail
from topics.progress.history import ProgressHistory
from topics.progress.record import Progress
from topics.reading.planner import ShardRange, Strict, Unmerged
from topics.records.vevent import VEvent
from topics.start.start_forms import Start
from topics.stream.log_reader import ShardLogReader
from topics.stream.subscriber import ReadingMode

MIB = 1024 * 1024
# Of a record: from those that just fit to several parts, small ones between, and one of which the
# parts are tiny.
SIZES = (
    *(RECORD_BYTES_MIN + more for more in (-2048, -600, -512, -511, -256, -1, 0, 1, 2048)),
    *(0, 2 * RECORD_BYTES_MIN - 1, 10, 10, 5 * RECORD_BYTES_MIN, 0),
)

Message = tuple[bytes, Headers]


def text_of(size: int) -> str:
    """Text of a size that zstd makes a quarter smaller at most."""
    return base64.b64encode(random.Random(size).randbytes(size)).decode()[:size]


def limited(config: ClientConfig, writers: Writers) -> ShardWriter:
    """A writer of a log whose topic takes one MiB."""
    [made] = writers("-")
    limit_messages(config, made.topics.log, RECORD_BYTES_MIN)
    made.producer = transactional(
        ClientConfig({**config, "batch.size": str(RECORD_BYTES_MIN)}), made.topics.transactional_id
    )
    made.message_bytes_max = RECORD_BYTES_MIN
    return made


@pytest.fixture
def writer(config: ClientConfig, writers: Writers) -> ShardWriter:
    """The writer of a log whose topic takes one MiB."""
    return limited(config, writers)


@pytest.fixture(scope="module")
def sized(kafka: KafkaCluster) -> Iterator[tuple[ShardWriter, list[VEvent]]]:
    """The writer of a log with rows of all sizes, and these; nobody writes any more."""
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    with serving(config, f"ks{secrets.token_hex(4)}") as writers:
        made = limited(config, writers)
        yield made, write_sizes(made)


def write_sizes(writer: ShardWriter) -> list[VEvent]:
    """Write rows of all sizes, in Kafka transactions of three rows and more cells than one."""
    events = [writer.row(i * CELL_US // 2, note=text_of(size)) for i, size in enumerate(SIZES)]
    events.append(writer.row(len(SIZES) * CELL_US, note="x" * 3 * MIB))
    for begin in range(0, len(events), 3):
        writer.seq = events[min(begin + 3, len(events)) - 1].seq
        writer.commit_events(events[begin : begin + 3])
    writer.heartbeat((len(SIZES) + 10) * CELL_US)
    writer.wait_committed()
    return events


def notes_of(events: Sequence[VEvent]) -> list[str]:
    """The notes of rows; comparing them says nothing when it fails, but fast."""
    return [str((event.after or {})["note"]) for event in events]


@pytest.mark.full
def test_every_reader_joins_parts_and_restarts_at_every_record(
    sized: tuple[ShardWriter, list[VEvent]], config: ClientConfig
) -> None:
    """Records around the limit and beyond come whole, also to a reader that begins after any."""
    writer, wanted = sized
    keyspace = writer.topics.keyspace
    notes = notes_of(wanted)
    modes: tuple[ReadingMode, ...] = (Strict(), Unmerged())
    assert 2 <= len(writer.in_parts) < len(wanted)
    assert max(writer.in_parts.values()) > 3
    with Subscriber(keyspace, start="earliest", config=config) as stream:
        events = taken(stream, len(wanted))
    assert notes_of(events) == notes
    assert [event.seq for event in events] == [event.seq for event in wanted]
    starts: list[Start | None] = ["earliest", *(event.position for event in events[:-1])]
    for i, start in enumerate(starts):
        assert start is not None
        # Two records from each; all of them, which is as many bytes again, from the beginning.
        count = min(2, len(notes) - i) if i else len(notes)
        following = notes[i : i + count]
        for mode in modes:
            with Subscriber(keyspace, start=start, config=config, mode=mode) as stream:
                assert notes_of(taken(stream, count)) == following
        with Subscriber(keyspace, start=start, config=config) as stream:
            rows: list[str] = []
            for batch in stream.batches(["after.note"], bytes_max=2 * MIB):
                for table in batch.tables:
                    rows += [row["note"] for row in table.rows["after"].to_pylist()]
                if len(rows) >= count:
                    break
            assert rows == notes[i : i + len(rows)]


@pytest.mark.full
def test_tasks_read_lists_of_whole_records(
    sized: tuple[ShardWriter, list[VEvent]], config: ClientConfig
) -> None:
    """Ranges between any two records have their records, each at the offset of its last part."""
    writer, wanted = sized
    keyspace = writer.topics.keyspace
    values = [writer.encoder.encode(event) for event in wanted]
    reader = ShardLogReader(config, keyspace, "-")
    with PartitionReader(config, writer.topics.log, 0, TIMEOUT_S) as log:
        offsets = [record.offset for record in log.records(0, log.bounds()[1])]
    begins = [0, *(offset + 1 for offset in offsets)]

    for first in range(len(wanted)):
        for last in (first, min(first + 4, len(wanted) - 1), len(wanted) - 1):
            part = ShardRange("-", begins[first], begins[last + 1], first + 1, last + 1)
            lists = list(reader.read_many(part, 8, 3 * MIB))
            assert [value for found, _ in lists for value in found] == values[first : last + 1]
            assert [at for _, found in lists for at in found] == offsets[first : last + 1]
            assert [r.value for r in reader.read(part)] == values[first : last + 1]
    reader.close()


def all_progress(history: ProgressHistory) -> Lookup[list[Progress]]:
    """Return the progress of a shard."""
    next_progress = yield from history.records()
    found: list[Progress] = []
    while (record := (yield from next_progress())) is not None:
        found.append(record.progress)
    return found


def test_lookups_at_every_offset_find_whole_records(
    sized: tuple[ShardWriter, list[VEvent]], config: ClientConfig
) -> None:
    """A look-up from or to any offset, inside a record too, has the records that end there."""
    writer, wanted = sized
    keyspace = writer.topics.keyspace
    values = [writer.encoder.encode(event) for event in wanted]
    with PartitionReader(config, writer.topics.log, 0, TIMEOUT_S) as log:
        start, end = log.bounds()
        found = list(log.records(start, end))
        assert [record.value for record in found] == values
        assert all(record.headers == () for record in found)
        for at in range(start, end + 1):
            below = [record.offset for record in found if record.offset < at]
            last = log.last_between(start, at)
            assert (last.offset if last else None) == (below[-1] if below else None)
            above = [record.offset for record in islice(log.records(at, end), 2)]
            assert above == [record.offset for record in found if record.offset >= at][:2]
        newest = [record.offset for record in log.newest_first()]
        assert newest == [record.offset for record in found][::-1]
    places = range(start, end + 1)
    with Lookups(config) as lookups:
        last_below = lookups.results({at: last_between(writer.topics.log, 0, at) for at in places})
        first_from = lookups.results(
            {at: first_between(writer.topics.log, at, end) for at in places}
        )
        history = ProgressHistory(keyspace, "-", writer.schema_ids)
        *_, last_rows, _ = lookups.result(all_progress(history))
    for at in places:
        assert last_below[at] == next((r for r in reversed(found) if r.offset < at), None)
        assert first_from[at] == next((r for r in found if r.offset >= at), None)
    _, tail = read_committed_tail(config, writer.topics, writer.schema_ids, lambda: None)
    assert tail.agrees_with(last_rows)


def test_parts_of_an_aborted_record_are_not_seen(
    writer: ShardWriter, config: ClientConfig, keyspace: str
) -> None:
    """A producer that ends between two parts leaves nothing that a reader sees."""
    writer.commit((0, 1))
    lost = writer.row(CELL_US, note=text_of(3 * MIB))
    parts = writer.messages(lost)
    writer.producer.begin_transaction()
    for value, headers in parts[:-1]:
        writer.producer.produce(
            writer.topics.log, value, record_key(lost), 0, timestamp=0, headers=list(headers)
        )
    assert writer.producer.flush(TIMEOUT_S) == 0
    # Its successor fences it, as after kill -9, which aborts its transaction.
    writer.producer = transactional(config, writer.topics.transactional_id)
    writer.commit_events([lost])
    writer.heartbeat(3 * CELL_US)
    writer.wait_committed()

    with Subscriber(keyspace, start="earliest", config=config) as stream:
        events = taken(stream, 2)
    assert notes_of(events)[1] == text_of(3 * MIB)
    with PartitionReader(config, writer.topics.log, 0, TIMEOUT_S) as log:
        assert [record.offset for record in log.records(0, log.bounds()[1])] == [
            event.offset for event in events
        ]


def damaged(part: Message) -> Message:
    """A part one of whose bytes is another."""
    value, headers = part
    return value[:-1] + bytes([value[-1] ^ 1]), headers


def other_crc(part: Message) -> Message:
    """A part whose header is of another record."""
    value, [(name, text)] = part
    return value, [(name, json.dumps({**json.loads(text), "crc": 1}).encode())]


DAMAGES: dict[str, tuple[Callable[[list[Message]], list[Message]], type[Halt]]] = {
    "first missing": (lambda parts: parts[1:], LogGap),
    "middle missing": (lambda parts: [*parts[:1], *parts[2:]], LogGap),
    "last missing": (lambda parts: parts[:-1], LogGap),
    "repeated": (lambda parts: [parts[0], parts[1], *parts[1:]], LogRepeat),
    "bytes": (lambda parts: [parts[0], damaged(parts[1]), *parts[2:]], CorruptRecord),
    "of another": (lambda parts: [parts[0], other_crc(parts[1]), *parts[2:]], LogGap),
    "no header": (lambda parts: [parts[0], (parts[1][0], []), *parts[2:]], LogGap),
    "broken header": (
        lambda parts: [(parts[0][0], [(PART_HEADER, b"1 of 3")]), *parts[1:]],
        CorruptRecord,
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_missing_repeated_and_damaged_parts_halt_readers(
    writer: ShardWriter, config: ClientConfig, keyspace: str, damage: str
) -> None:
    """A log whose record in parts is not as it was written stops each reader at its offset."""
    change, error = DAMAGES[damage]
    writer.commit((0, 1))
    large = writer.row(CELL_US, note=text_of(3 * MIB))
    after = writer.row(2 * CELL_US)
    writer.wait_committed()
    first = writer.end_offset()
    parts = writer.messages(large)
    # As a producer would announce them, which a broker then has lost or damaged.
    progress = writer.progress([large, after], first)
    messages = [*change(parts), *writer.messages(after)]
    stranger = open_producer(ClientConfig({**config, "batch.size": str(RECORD_BYTES_MIN)}))
    for value, headers in messages:
        stranger.produce(writer.topics.log, value, record_key(large), 0, headers=list(headers))
    assert stranger.flush(TIMEOUT_S) == 0
    writer.commit_progress(progress)
    writer.heartbeat(4 * CELL_US)

    def events(mode: ReadingMode) -> None:
        with Subscriber(keyspace, start="earliest", config=config, mode=mode) as stream:
            taken(stream, 3)

    def rows() -> None:
        with Subscriber(keyspace, start="earliest", config=config) as stream:
            sum(batch.rows for batch in stream.batches(["after.note"]))

    def lookup() -> None:
        with PartitionReader(config, writer.topics.log, 0, TIMEOUT_S) as log:
            list(log.records(0, log.bounds()[1]))

    def task() -> None:
        reader = ShardLogReader(config, keyspace, "-")
        try:
            list(reader.read_many(ShardRange("-", 0, progress.end_offset, 1, 3), 100, MIB))
        finally:
            reader.close()

    # All of a subscriber take what they read from the same reader of a log.
    subscribers: list[Callable[[], None]] = [
        lambda: events(Strict()),
        lambda: events(Unmerged()),
        rows,
    ]
    subscriber = subscribers[[*DAMAGES].index(damage) % len(subscribers)]
    for read in (subscriber, lookup, task):
        with pytest.raises(Halt) as raised:
            read()
        assert isinstance(raised.value, error), raised.value
        assert "offset" in str(raised.value)
        assert writer.topics.log in str(raised.value)


def test_parts_beyond_the_reader_s_limit_are_refused(
    writer: ShardWriter, config: ClientConfig, keyspace: str
) -> None:
    """A record above record_bytes_max stops a reader with table, offset, size, limit and a way."""
    writer.commit_events([writer.row(0, note=text_of(3 * MIB))])
    writer.heartbeat(2 * CELL_US)
    writer.wait_committed()
    small = ClientConfig({**config, RECORD_BYTES_OPTION: str(2 * MIB)})

    modes: tuple[ReadingMode, ...] = (Strict(), Unmerged())
    for mode in modes:
        with (
            pytest.raises(RecordBeyondLimit) as raised,
            Subscriber(keyspace, start="earliest", config=small, mode=mode) as stream,
        ):
            taken(stream, 1)
        for said in ("shop.orders", "offset 0", "bytes", str(2 * MIB), "record_bytes_max"):
            assert said in str(raised.value)


def test_retention_may_cut_a_record(
    writer: ShardWriter, config: ClientConfig, keyspace: str
) -> None:
    """What retention has left of a record in parts is passed by look-ups and named to readers."""
    writer.commit((0, 1))
    writer.commit_events([writer.row(CELL_US, note=text_of(3 * MIB)), writer.row(2 * CELL_US)])
    writer.heartbeat(4 * CELL_US)
    writer.wait_committed()
    with PartitionReader(config, writer.topics.log, 0, TIMEOUT_S) as log:
        before, large, after = log.records(0, log.bounds()[1])
    with Subscriber(keyspace, start="earliest", config=config) as stream:
        [first] = taken(stream, 1)
    assert first.position is not None
    writer.remove_until(large.offset - 1)

    with PartitionReader(config, writer.topics.log, 0, TIMEOUT_S) as log:
        start, end = log.bounds()
        assert start == large.offset - 1
        assert [record.offset for record in log.records(start, end)] == [after.offset]
        assert log.last_between(start, after.offset) is None
    with (
        pytest.raises(ShardstreamError) as raised,
        Subscriber(keyspace, start=first.position, config=config) as stream,
    ):
        taken(stream, 1)
    assert isinstance(raised.value, PositionTooOld), raised.value
    assert before.offset < start
