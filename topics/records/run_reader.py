"""Reads runs of records of one shard log into events, without what is seldom asked for.

Row images and positions are found when they are asked for, or images at once for a reader that
needs all of them. Typed for mypyc, and correct uncompiled too.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from librt.strings import read_i32_be
from mypy_extensions import i64

from event_token.errors import ShardstreamError
from topics.records.envelope import EnvelopeReader
from topics.records.record_reader import BROKEN, RecordReader
from topics.records.record_run import RecordRun
from topics.records.vevent import (
    OPS_BY_INDEX,
    TYPES_BY_INDEX,
    EventFields,
    EventType,
    Op,
    Places,
    TokenText,
    VEvent,
)
from topics.records.wire import WIRE_HEADER_BYTES

_TYPES: Final[list[EventType]] = list(TYPES_BY_INDEX)
_OPS: Final[list[Op]] = list(OPS_BY_INDEX)
_ROW: Final = TYPES_BY_INDEX.index(EventType.ROW)
_NONE: Final = OPS_BY_INDEX.index(Op.NONE)
# Events cannot be assigned to.
_set: Final[Any] = object.__setattr__
_delete: Final[Any] = object.__delattr__

# As the end of a time range: none.
ANY_TIME: Final = -1
# Ends a run, so that large records do not make a large one.
RUN_BYTES_MAX: Final = 4 * 1024 * 1024

# How a delivered event moves its shard: (shard, next offset, seq, token). Without a token, inside a
# MySQL transaction, the previous one stays.
Step = tuple[str, int, int, TokenText | None]
# The rows of a run: events, or what a reader of their records needs.
Rows = list[VEvent] | RecordRun


class Expected(NamedTuple):
    """What a run is to be: of consecutive seqs, below an offset, and in the order of time.

    No event is older than the one before or than `least_us`, and all are older than `frontier_us`;
    ANY_TIME there: they are of any time.
    """

    first_seq: int
    end_offset: int
    least_us: int
    frontier_us: int


class RunReader:
    """Reads the records of one shard log, in order. Not thread-safe."""

    def __init__(
        self,
        shard: str,
        reader_of: Callable[[int, str, int], RecordReader],
        *,
        for_records: bool = False,
        with_images: bool = False,
    ) -> None:
        """`reader_of` returns the reader of a schema id, for a shard and an offset.

        `for_records`: rows are read into a `RecordRun`, not into events. `with_images`: events come
        with their row images, for a reader that asks for all of them.
        """
        self.for_records: bool = for_records
        self._with_images: bool = with_images
        self.shard: str = shard
        self.events: list[VEvent] = []
        self.times_us: list[int] = []
        self._run: RecordRun | None = None
        self._shard: bytes = shard.encode("utf-8")
        self._reader_of: Callable[[int, str, int], RecordReader] = reader_of
        self._reader: RecordReader | None = None
        self._schema_id: i64 = -1
        self._envelope: EnvelopeReader = EnvelopeReader()
        # Texts that successive records mostly share, and the bytes that they are made of.
        self._gtid: str = ""
        self._gtid_bytes: bytes = b""
        self._database: str = ""
        self._table: str = ""
        self._table_bytes: bytes = b""

    def read(self, records: list[bytes], offsets: list[int], expected: Expected) -> int:
        """Begin a run, and return the number of its rows.

        It ends before a record that is not a plain row, or not as expected. The caller reads that
        one, and raises what is wrong with it.
        """
        seq: i64 = expected.first_seq
        end: i64 = expected.end_offset
        before_us: i64 = expected.least_us
        frontier: i64 = expected.frontier_us
        size: i64 = 0
        count: i64 = 0
        run = RecordRun(self.shard, int(seq), self._reader_of) if self.for_records else None
        self._run = run
        self.events = []
        self.times_us = [] if run is None else run.times_us
        envelope = self._envelope
        for record in records:
            offset: i64 = offsets[count]
            if offset >= end or size >= RUN_BYTES_MAX or not self._open(record, int(offset)):
                break
            timestamp_us = envelope.timestamp_us
            if envelope.seq != seq:
                break
            if frontier != ANY_TIME and (timestamp_us < before_us or timestamp_us >= frontier):
                break
            if run is not None:
                run.records.append(record)
                run.offsets.append(offsets[count])
                run.ends.append(envelope.last)
            else:
                try:
                    self.events.append(self._event(record, int(offset)))
                except BROKEN:
                    break
            self.times_us.append(int(timestamp_us))
            before_us = timestamp_us
            size += len(record)
            seq += 1
            count += 1
        envelope.cursor.close()
        return int(count)

    @property
    def rows(self) -> Rows:
        """The rows of the run."""
        return self.events if self._run is None else self._run

    def add(self, event: VEvent) -> None:
        """Append an event that the caller has read to the run; one for records must be empty."""
        if self._run is not None:
            self._run = None
            self.times_us = []
        _delete(event, "position_source")  # it comes with the delivery, as that of the others
        self.events.append(event)
        self.times_us.append(event.timestamp_us)

    def _open(self, record: bytes, offset: int) -> bool:
        """Read the envelope; tell whether the record is a row of this shard that can be read."""
        if len(record) < WIRE_HEADER_BYTES or record[0] != 0:
            return False
        envelope = self._envelope
        schema_id = i64(read_i32_be(record, 1))
        try:
            if schema_id != self._schema_id:
                self._reader = self._reader_of(int(schema_id), self.shard, offset)
                self._schema_id = schema_id
            envelope.open(record)
            envelope.take_token()
            envelope.take_rest()
        except (*BROKEN, ShardstreamError):
            return False  # the caller meets the same error, when the events before are delivered
        reader = self._reader
        return (
            reader is not None
            and reader.is_of_rows
            and envelope.type == _ROW
            and envelope.op != _NONE
            and envelope.shard == self._shard
        )

    def _event(self, record: bytes, offset: int) -> VEvent:
        """Return the event whose envelope was read."""
        envelope = self._envelope
        reader = self._reader
        assert reader is not None  # noqa: S101 - `_open` has found it
        self._take_names(record)
        event: Any = EventFields()
        event.seq = int(envelope.seq)
        event.last = envelope.last
        event.shard = self.shard
        event.offset = offset
        event.late = False
        event.possible_duplicate = False
        event.record = record
        event.type = _TYPES[_ROW]
        event.token_text = envelope.token_text()
        event.commit_us = int(envelope.commit_us)
        event.gtid = self._gtid
        event.row_index = int(envelope.row_index)
        event.database = self._database
        event.table = self._table
        event.op = _OPS[envelope.op]
        event.keyspace_id_before = envelope.keyspace_id_at(envelope.keyspace_id_before_at)
        event.keyspace_id_after = envelope.keyspace_id_at(envelope.keyspace_id_after_at)
        event.statement = None
        event.shape = reader.shape
        if self._with_images:
            try:
                event.before, event.after = reader.take_images(envelope)
            except BROKEN:  # named when they are asked for, which they may never be
                event.read_images = reader.images_of
        else:
            event.read_images = reader.images_of
        event.__class__ = VEvent
        found: VEvent = event
        return found

    def _take_names(self, record: bytes) -> None:
        """Take the texts of the record, which are mostly those of the one before."""
        envelope = self._envelope
        gtid = envelope.bytes_at(envelope.gtid_at)
        if gtid != self._gtid_bytes:
            self._gtid = gtid.decode("utf-8")
            self._gtid_bytes = gtid
        table = record[envelope.database_at : envelope.op_at]
        if table != self._table_bytes:
            self._database = envelope.text_at(envelope.database_at)
            self._table = envelope.text_at(envelope.table_at)
            self._table_bytes = table


def deliver_run(events: list[VEvent], run: Places, steps: list[Step]) -> None:
    """Give the events of runs their places in a merged stream, and append their steps."""
    count = 0
    for event in events:
        count += 1  # noqa: SIM113 - as above
        _set(event, "run_place", (run, count))
        token = event.token_text if event.last else None
        steps.append((event.shard, event.offset + 1, event.seq, token))


def token_of_record(record: bytes) -> TokenText:
    """Return the token of a record whose envelope has been read before."""
    envelope = EnvelopeReader()
    envelope.open(record)
    envelope.take_token()
    return envelope.token_text()
