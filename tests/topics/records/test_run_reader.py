import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given, settings

from event_token import StreamPosition
from tests.generated import examples
from tests.topics.records.events import SHARD, ddl_event, insert, row_events
from tests.topics.records.record_encoder import RecordEncoder
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from tests.topics.shard_writer import ORDERS
from topics.errors import CorruptRecord
from topics.records.event_decoder import (
    ANY_TIME,
    EventDecoder,
    Expected,
    LogRows,
    Step,
    deliver_run,
)
from topics.records.vevent import VEvent


class Records:
    """Encodes events, and reads them as runs."""

    def __init__(self, shard: str = SHARD, *, with_images: bool = False) -> None:
        """Read as the log of a shard."""
        ids = MemorySchemaIds()
        self.shard = shard
        self.encode = RecordEncoder(ids).encode
        self.decoder = EventDecoder(ids, with_images=with_images)

    def read(self, first: VEvent, *records: bytes, as_records: bool = False) -> LogRows:
        """Read records that follow one another in a log from `first` on."""
        offsets = [first.offset + n for n in range(len(records))]
        expected = Expected(first.seq, first.offset + len(records), 0, ANY_TIME)
        return self.decoder.rows(
            self.shard, list(records), offsets, expected, as_records=as_records
        )

    def read_all(self, first: VEvent, *records: bytes) -> list[VEvent]:
        """Read the same as events."""
        rows = self.read(first, *records)
        return rows.events(0, len(rows.times_us))


@given(row_events())
@settings(max_examples=examples(100))
def test_an_event_of_a_run_is_the_event_itself(event: VEvent) -> None:
    """An event whose images are read when asked for equals the one that is decoded at once."""
    records = Records(event.shard)
    record = records.encode(event)

    (read,) = records.read_all(event, record)

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
    """It is the same event; where its images are broken, the run ends before it."""
    records = Records(event.shard, with_images=True)
    record = records.encode(event)

    assert records.read_all(event, record) == [event]
    for broken in (record[:-1], record + b"\0"):
        assert records.read_all(event, broken) == []


@given(row_events())
@settings(max_examples=examples(50))
def test_rows_that_were_read_as_records_become_events(event: VEvent) -> None:
    """They are the same as those that are read as events."""
    records = Records(event.shard)

    rows = records.read(event, records.encode(event), as_records=True)

    assert (rows.are_records, rows.times_us) == (True, [event.timestamp_us])
    assert rows.events(0, 1) == [event]


def test_a_run_ends_before_what_is_not_as_expected() -> None:
    """A gap, a statement, another time, another shard and broken bytes are left to the caller."""
    first = insert(ORDERS, {"id": 1, "note": "one"})
    second = replace(first, seq=first.seq + 1, offset=first.offset + 1)
    records = Records()
    row, gap = records.encode(first), records.encode(replace(second, seq=second.seq + 1))
    late = replace(second.token_text, timestamp_us=first.timestamp_us - 1)
    statement = replace(ddl_event("DROP TABLE t"), seq=second.seq)

    for odd in (gap, records.encode(statement), records.encode(second)[:30], b"", b"\1\0\0\0\0"):
        assert len(records.read_all(first, row, odd)) == 1
    assert records.decoder.rows("other", [row], [0], Expected(first.seq, 1, 0, ANY_TIME)).made == []
    assert Records().read_all(first, row) == []  # a schema that nobody knows
    older = records.encode(replace(second, token_text=late))
    for frontier_us, least_us, count in (
        (first.timestamp_us + 1, 0, 1),
        (first.timestamp_us, 0, 0),
        (first.timestamp_us + 1, first.timestamp_us + 1, 0),
    ):
        expected = Expected(first.seq, second.offset + 1, least_us, frontier_us)
        offsets = [first.offset, second.offset]
        rows = records.decoder.rows(SHARD, [row, older], offsets, expected)
        assert len(rows.times_us) == count


def test_broken_images_are_named_when_they_are_asked_for() -> None:
    """An image that its schema does not describe is CorruptRecord with its place, each time."""
    event = insert(ORDERS, {"id": 1, "note": "one"})
    records = Records()
    (read,) = records.read_all(event, records.encode(event) + b"\0")

    for _ in range(2):
        with pytest.raises(CorruptRecord, match=f"log of shard {SHARD}, offset {event.offset}"):
            _ = read.after


def test_images_may_be_asked_for_by_any_thread() -> None:
    """Events of one table that several threads read at once have their own values."""
    records = Records()
    first = insert(ORDERS, {"id": 0, "note": "none"})
    events = [insert(ORDERS, {"id": n, "note": "n"}) for n in range(200)]
    encoded = [
        records.encode(replace(event, seq=first.seq + n, offset=first.offset + n))
        for n, event in enumerate(events)
    ]
    read = records.read_all(first, *encoded)

    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(lambda event: event.after, read))

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
    rows = records.read(event, records.encode(event))
    rows.add(ddl_event("DROP TABLE t"))
    events = rows.events(0, 2)
    steps: list[Step] = []

    deliver_run(events, Steps(), steps)

    assert [e.position and e.position.epoch for e in events] == [1, 2]
    assert [step[:3] for step in steps] == [(e.shard, e.offset + 1, e.seq) for e in events]
