"""One consumer for several logs: all rows in the order of each log, and few of them in memory."""

import secrets
from collections.abc import Iterator
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaError, Message

from event_token.errors import Halt
from shardstream.local.kafka_cluster import KafkaCluster
from tests.topics.shard_writer import CELL_US, TIMEOUT_S, ShardWriter, Writers, serving
from topics.errors import LogShrank, PositionTooOld, ReaderClosed, RowsNotReadable
from topics.kafka.client import ClientConfig
from topics.reading.planner import ShardRange
from topics.stream import log_fetcher, log_reader
from topics.stream.log_fetcher import FetchedLog, LogFetcher
from topics.stream.log_reader import ShardLogReader
from topics.stream.subscriber import StreamSubscriber

SHARDS = ("-40", "40-80", "80-c0", "c0-")
ROWS = 400
NOTE = "x" * 1_000
WAITING_BYTES = 40_000
Written = tuple[list[ShardWriter], dict[str, ShardRange]]


@pytest.fixture
def fetcher(config: ClientConfig) -> Iterator[LogFetcher]:
    """What lets few rows wait."""
    made = LogFetcher(config, WAITING_BYTES)
    yield made
    made.close()


@pytest.fixture(scope="module")
def written(kafka: KafkaCluster) -> Iterator[Written]:
    """The writers of four logs, and the ranges of their rows; nobody writes any more."""
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    with serving(config, f"ks{secrets.token_hex(4)}") as writers:
        made = writers(*SHARDS)
        yield made, {writer.shard: write_rows(writer) for writer in made}


def write_rows(writer: ShardWriter) -> ShardRange:
    """Write large rows in several transactions; return their range."""
    for first in range(0, ROWS, 100):
        writer.commit_events(
            [writer.row((first + n) * CELL_US, note=NOTE) for n in range(100)],
        )
    writer.wait_committed()
    return ShardRange(writer.shard, 0, writer.end_offset(), 1, ROWS)


def readers_of(
    writers: list[ShardWriter], config: ClientConfig, fetcher: LogFetcher
) -> dict[str, ShardLogReader]:
    """Readers of all logs, at their beginnings."""
    found = {
        writer.shard: ShardLogReader(
            config, writer.topics.keyspace, writer.shard, fetcher=fetcher, rows_wait_s=TIMEOUT_S
        )
        for writer in writers
    }
    for reader in found.values():
        reader.seek(0, 1)
    fetcher.start()
    return found


def test_one_consumer_reads_logs_at_any_pace(
    config: ClientConfig,
    written: Written,
    fetcher: LogFetcher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However far readers are apart, each gets all rows in order, and few wait for the others."""
    monkeypatch.setattr(log_reader, "TAKE_MAX", 10)
    made, parts = written
    readers = readers_of(made, config, fetcher)
    rows = {shard: readers[shard].read(part) for shard, part in parts.items()}
    random = Random(28)
    seqs: dict[str, list[int]] = {shard: [] for shard in SHARDS}
    waited = 0
    while rows:
        shard = random.choice([*rows, next(iter(rows))])  # one is ahead of the others
        for _ in range(random.choice((1, 50))):
            record = next(rows[shard], None)
            if record is None:
                del rows[shard]
                break
            seqs[shard].append(record.seq)
            waiting = [reader._log for other, reader in readers.items() if other != shard]
            waited = max(waited, sum(log.waiting_bytes for log in waiting))

    assert seqs == {shard: list(range(1, ROWS + 1)) for shard in SHARDS}
    # One take may bring ten more rows, once each eighth of the bound is looked at.
    assert waited < 2 * WAITING_BYTES + 10 * len(NOTE)


@pytest.mark.full
def test_large_batches_of_many_logs_do_not_wait_whole(
    config: ClientConfig, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers in turn get all rows in order, and little more than twice the bound waits."""
    monkeypatch.setattr(log_fetcher, "_KEPT_BYTES_MIN", 5_000)
    shards = ["-20", *(f"{n:x}0-{n + 2:x}0" for n in range(2, 14, 2)), "e0-"]
    made = writers(*shards)
    parts = {writer.shard: write_rows(writer) for writer in made}
    fetcher = LogFetcher(config, WAITING_BYTES)
    readers = readers_of(made, config, fetcher)
    rows = {shard: readers[shard].read(part) for shard, part in parts.items()}
    seqs: dict[str, list[int]] = {shard: [] for shard in shards}
    waited = 0
    for _ in range(ROWS):
        for shard in shards:
            seqs[shard].append(next(rows[shard]).seq)
            others = [log for name, log in fetcher._logs.items() if name != readers[shard].topic]
            waited = max(waited, sum(len(row) for log in others for row in log.messages))
    fetcher.close()

    assert seqs == {shard: list(range(1, ROWS + 1)) for shard in shards}
    # And what came last for the reader before: a log at most, of eight.
    assert waited < 2 * WAITING_BYTES + ROWS * 1.3 * len(NOTE)


def test_a_log_is_left_and_sought_again(
    config: ClientConfig, written: Written, fetcher: LogFetcher
) -> None:
    """A reader that is closed takes its log with it; one that seeks back reads rows again."""
    made, parts = written
    readers = readers_of(made, config, fetcher)
    gone, again, *rest = SHARDS
    reading = {shard: readers[shard].read(parts[shard]) for shard in SHARDS}
    first = [next(reading[shard]).seq for shard in SHARDS]
    readers[gone].close()
    back = [record.seq for record in readers[again].read(parts[again])]
    left = {shard: [record.seq for record in reading[shard]] for shard in rest}

    assert first == [1] * len(SHARDS)
    assert back == list(range(1, ROWS + 1))
    assert left == {shard: list(range(2, ROWS + 1)) for shard in rest}
    with pytest.raises(ReaderClosed):
        next(reading[gone])
    assert fetcher.logs == len(SHARDS) - 1


@pytest.mark.full
def test_what_is_wrong_with_a_log_reaches_its_reader_alone(
    config: ClientConfig, writers: Writers, fetcher: LogFetcher
) -> None:
    """Rows that are gone, or that never come, stop the reader of that log, whoever reads."""
    made = writers(*SHARDS)
    parts = {writer.shard: write_rows(writer) for writer in made}
    short, beyond, late, whole = SHARDS
    made[0].remove_until(50)
    readers = readers_of(made, config, fetcher)
    readers[beyond].seek(parts[beyond].end_offset + 700, ROWS + 1)
    readers[late]._rows_wait_s = 1.0

    rows = readers[whole].read(parts[whole])
    read = [next(rows).seq for _ in range(ROWS // 2)]
    with pytest.raises(PositionTooOld, match="retention has removed seq 1 to 50"):
        next(readers[short].read(parts[short]))
    end = parts[beyond].end_offset
    with pytest.raises(LogShrank, match="is beyond the log's end"):
        next(readers[beyond].read(ShardRange(beyond, end + 700, end + 800, ROWS + 1, ROWS + 9)))
    with pytest.raises(RowsNotReadable, match=f"announces seq {ROWS + 1}"):
        list(readers[late].read(ShardRange(late, 0, end + 9, 1, ROWS + 1)))
    read += [record.seq for record in rows]

    assert read == list(range(1, ROWS + 1))


class DamagedConsumer:
    """Kafka's client, which finds a record of a topic damaged."""

    def __init__(self, consumer: Consumer, topic: str, offset: int) -> None:
        self._consumer = consumer
        self._damaged = (topic, offset)

    def poll(self, timeout_s: float) -> Message | None:
        """Return a message, or the error."""
        found = self._consumer.consume(1, timeout_s)
        return self._with_error(found)[0] if found else None

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        """Return messages, and the error."""
        return self._with_error(self._consumer.consume(count, timeout_s))

    def _with_error(self, messages: list[Message]) -> list[Message]:
        topic, offset = self._damaged
        bad = KafkaError(KafkaError._BAD_MSG)
        return [
            Message(topic, 0, offset, error=bad)
            if (each.topic(), each.offset()) == self._damaged
            else each
            for each in messages
        ]

    def __getattr__(self, name: str) -> object:
        return getattr(self._consumer, name)


def test_a_damaged_record_ahead_stops_its_reader_where_it_is(
    config: ClientConfig, written: Written, fetcher: LogFetcher
) -> None:
    """All rows before it can be read, and the rows of the other logs; then it is named."""
    made, parts = written
    readers = readers_of(made, config, fetcher)
    damaged, *others = SHARDS
    consumer = fetcher._open()
    consumer._consumer = DamagedConsumer(  # type: ignore[assignment]  # what is called of it
        consumer._consumer, readers[damaged].topic, 50
    )

    read = {shard: [r.seq for r in readers[shard].read(parts[shard])] for shard in others}
    rows = readers[damaged].read(parts[damaged])
    before = [next(rows).seq for _ in range(50)]
    for _ in range(2):
        with pytest.raises(Halt, match=f"at {readers[damaged].topic} offset 50.*_BAD_MSG"):
            next(
                readers[damaged].read(ShardRange(damaged, 50, parts[damaged].end_offset, 51, ROWS))
            )

    assert read == {shard: list(range(1, ROWS + 1)) for shard in others}
    assert before == list(range(1, 51))


def test_an_error_of_an_earlier_place_repeats_no_row(
    config: ClientConfig,
    written: Written,
    fetcher: LogFetcher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader that hears late of an offset that was not there goes on where it is."""
    monkeypatch.setattr(log_reader, "TAKE_MAX", 10)  # so that rows are still to be taken then
    made, parts = written
    readers = readers_of(made[:2], config, fetcher)
    late, left = readers.values()
    rows = late.read(parts[late.shard])
    seqs = [next(rows).seq for _ in range(ROWS // 2)]
    consumer = fetcher._open()
    left.close()
    for reader in (late, left):
        error = KafkaError(KafkaError.OFFSET_OUT_OF_RANGE)
        assert not consumer._is_record(Message(reader.topic, 0, 3, error=error))

    seqs += [row.seq for row in rows]

    assert seqs == list(range(1, ROWS + 1))
    assert not consumer._errors


@pytest.mark.full
def test_many_shards_have_few_consumers(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """A stream of twelve shards opens four consumers for rows, and merges all of them."""
    names = ["-10", *(f"{n:x}0-{n + 1:x}0" for n in range(1, 11)), "b0-"]
    made = writers(*names)
    for writer in made:
        writer.commit(*((n * CELL_US, 3) for n in range(20)))
        writer.heartbeat(100 * CELL_US)

    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        events = [next(stream) for _ in range(12 * 60)]
        session = stream._session
        assert session is not None
        fetchers = session._logs._fetchers
        assert [fetcher.logs for fetcher in fetchers] == [3, 3, 3, 3]

    order = [(event.timestamp_us, event.shard, event.offset) for event in events]
    assert order == sorted(order)
    assert {event.shard for event in events} == set(names)
    assert [event.seq for event in events if event.shard == "b0-"] == list(range(1, 61))


def test_waiting_bytes_follow_what_is_read() -> None:
    """What waits is counted as it is, also where rows grow while some always wait."""
    log = FetchedLog("t")
    assert log.waiting_bytes == 0
    sizes = [200] * 1_000 + [10_000] * 50
    for offset, size in enumerate(sizes):
        log.add([Message("t", 0, offset, b"k", b"x" * size)])
    while len(log.messages) > 50:
        log.messages.popleft()

    size = sum(map(len, log.messages))

    assert size == 50 * 10_000
    assert size <= log.waiting_bytes < 2 * size
    log.messages.clear()
    assert log.waiting_bytes == 0
