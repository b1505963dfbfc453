import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from event_token import StreamPosition
from tests.generated import examples
from tests.topics.records.events import SHARD, ddl_event, insert, row_events
from tests.topics.records.record_encoder import RecordEncoder
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from tests.topics.shard_writer import ORDERS
from topics.errors import CorruptRecord
from topics.records.record_decoder import RecordDecoder
from topics.records.record_run import RecordRun
from topics.records.run_reader import ANY_TIME, Expected, RunReader, Step, deliver_run
from topics.records.vevent import VEvent


class Records:
    """Encodes events, and reads them as runs."""

    def __init__(
        self, shard: str = SHARD, *, for_records: bool = False, with_images: bool = False
    ) -> None:
        """Read as the log of a shard."""
        ids = MemorySchemaIds()
        self.encode = RecordEncoder(ids).encode
        self.decoder = RecordDecoder(ids)
        self.runs = RunReader(
            shard, self.decoder.reader_of, for_records=for_records, with_images=with_images
        )

    def read(self, first: VEvent, *records: bytes) -> int:
        """Read records that follow one another in a log from `first` on; return their number."""
        offsets = [first.offset + n for n in range(len(records))]
        expected = Expected(first.seq, first.offset + len(records), 0, ANY_TIME)
        return self.runs.read(list(records), offsets, expected)


@given(row_events())
@settings(max_examples=examples(100))
def test_an_event_of_a_run_is_the_event_itself(event: VEvent) -> None:
    """An event whose images are read when asked for equals the one that is decoded at once."""
    records = Records(event.shard)
    record = records.encode(event)

    assert records.read(event, record) == 1
    (read,) = records.runs.events

    assert (read.after, read.before) == (event.after, event.before)
    assert read == records.decoder.decode(record, event.shard, event.offset)
    assert repr(read) == repr(replace(read))
    assert pickle.loads(pickle.dumps(read)) == event  # noqa: S301 - our own bytes
    assert (read.position, read.record) == (None, record)
    with pytest.raises(FrozenInstanceError):
        read.seq = 1  # type: ignore[misc]
    with pytest.raises(AttributeError, match="'VEvent' object has no attribute 'afer'"):
        read.afer  # type: ignore[attr-defined]  # noqa: B018


@given(row_events())
@settings(max_examples=examples(50))
def test_an_event_may_come_with_its_images(event: VEvent) -> None:
    """It is the same event; broken images are named when they are asked for, as without them."""
    records = Records(event.shard, with_images=True)
    record = records.encode(event)
    decoded = records.decoder.decode(record, event.shard, event.offset)

    assert records.read(event, record) == 1
    assert records.runs.events == [decoded]
    for broken in (record[:-1], record + b"\0"):
        assert records.read(event, broken) == 1
        (read,) = records.runs.events
        with pytest.raises(CorruptRecord, match=f"offset {event.offset}"):
            read.after  # noqa: B018
    assert records.read(event, record) == 1
    assert records.runs.events == [decoded]


@given(row_events(), st.sampled_from([field.name for field in fields(VEvent)]))
@settings(max_examples=examples(50))
def test_an_event_read_for_its_record_has_all_fields(event: VEvent, asked: str) -> None:
    """Whichever of its fields, images included, is asked for first."""
    records = Records(event.shard, for_records=True)
    record = records.encode(event)

    assert records.read(event, record) == 1
    run = records.runs.rows
    assert isinstance(run, RecordRun)
    (read,) = run.events(0, 1)

    assert getattr(read, asked) == getattr(replace(event, record=record), asked)
    assert read == records.decoder.decode(record, event.shard, event.offset)


def test_a_run_ends_before_what_is_not_as_expected() -> None:
    """A gap, a statement, another time, another shard and broken bytes are left to the caller."""
    first = insert(ORDERS, {"id": 1, "note": "one"})
    second = replace(first, seq=first.seq + 1, offset=first.offset + 1)
    records = Records()
    row, gap = records.encode(first), records.encode(replace(second, seq=second.seq + 1))
    late = replace(second.token_text, timestamp_us=first.timestamp_us - 1)
    statement = replace(ddl_event("DROP TABLE t"), seq=second.seq)

    for odd in (gap, records.encode(statement), records.encode(second)[:30], b"", b"\1\0\0\0\0"):
        assert records.read(first, row, odd) == 1
    other = RunReader("other", records.decoder.reader_of)
    assert other.read([row], [0], Expected(first.seq, 1, 0, ANY_TIME)) == 0
    assert Records().read(first, row) == 0  # a schema that nobody knows
    older = records.encode(replace(second, token_text=late))
    for frontier_us, least_us, count in (
        (first.timestamp_us + 1, 0, 1),
        (first.timestamp_us, 0, 0),
        (first.timestamp_us + 1, first.timestamp_us + 1, 0),
    ):
        expected = Expected(first.seq, second.offset + 1, least_us, frontier_us)
        offsets = [first.offset, second.offset]
        assert records.runs.read([row, older], offsets, expected) == count


def test_broken_images_are_named_when_they_are_asked_for() -> None:
    """An image that its schema does not describe is CorruptRecord with its place, each time."""
    event = insert(ORDERS, {"id": 1, "note": "one"})
    records = Records()
    assert records.read(event, records.encode(event) + b"\0") == 1

    for _ in range(2):
        with pytest.raises(CorruptRecord, match=f"log of shard {SHARD}, offset {event.offset}"):
            _ = records.runs.events[0].after


def test_images_may_be_asked_for_by_any_thread() -> None:
    """Events of one table that several threads read at once have their own values."""
    records = Records()
    first = insert(ORDERS, {"id": 0, "note": "none"})
    events = [insert(ORDERS, {"id": n, "note": "n"}) for n in range(200)]
    encoded = [
        records.encode(replace(event, seq=first.seq + n, offset=first.offset + n))
        for n, event in enumerate(events)
    ]
    assert records.read(first, *encoded) == len(events)

    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(lambda event: event.after, records.runs.events))

    assert images == [event.after for event in events]


class Steps:
    """Counts what it is asked for."""

    def position_after(self, count: int) -> StreamPosition:
        """Return a position that tells the count."""
        return StreamPosition(count, 0, {})


def test_delivered_events_find_their_position() -> None:
    """Each event of a delivered run has the position after it, built when it is asked for."""
    records = Records()
    event = insert(ORDERS, {"id": 1, "note": "one"})
    assert records.read(event, records.encode(event)) == 1
    records.runs.add(ddl_event("DROP TABLE t"))
    steps: list[Step] = []

    deliver_run(records.runs.events, Steps(), steps)

    assert [e.position and e.position.epoch for e in records.runs.events] == [1, 2]
    assert [step[:3] for step in steps] == [
        (e.shard, e.offset + 1, e.seq) for e in records.runs.events
    ]
