"""Reads the records of shard logs into events: one by one, or the rows of one log in runs.

Typed for mypyc, and correct uncompiled too.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from mypy_extensions import i64

from event_token.errors import ShardstreamError
from topics.errors import CorruptRecord
from topics.records.envelope import EnvelopeReader
from topics.records.table_shape import (
    RecordSchema,
    SchemaIds,
    TableShape,
    known_schema,
    schema_id_of,
)
from topics.records.values import RowReader
from topics.records.vevent import (
    IMAGES,
    OPS_BY_INDEX,
    TYPES_BY_INDEX,
    EventFields,
    EventType,
    Op,
    Places,
    Row,
    TokenText,
    VEvent,
)

# Raised by reading bytes that do not follow the schema.
BROKEN: Final = (IndexError, OverflowError, ValueError)
# The row images before and after a change.
Images = tuple[Row | None, Row | None]

_TYPES: Final[list[EventType]] = list(TYPES_BY_INDEX)
_OPS: Final[list[Op]] = list(OPS_BY_INDEX)
_ROW: Final = TYPES_BY_INDEX.index(EventType.ROW)
_NONE: Final = OPS_BY_INDEX.index(Op.NONE)
# The row images of each op, by its index.
_HAS_BEFORE: Final[list[bool]] = [IMAGES[op][0] for op in OPS_BY_INDEX]
_HAS_AFTER: Final[list[bool]] = [IMAGES[op][1] for op in OPS_BY_INDEX]
# Events cannot be assigned to.
_set: Final[Any] = object.__setattr__

# As the end of a time range: none.
ANY_TIME: Final = -1
# No row of a stretch ends a transaction.
NO_ROW: Final = -1
# Ends a run, so that large records do not make a large one.
RUN_BYTES_MAX: Final = 4 * 1024 * 1024

# How a delivered event moves its shard: (shard, next offset, seq, token). Without a token, inside a
# MySQL transaction, the previous one stays.
Step = tuple[str, int, int, TokenText | None]


class Expected(NamedTuple):
    """What a run is to be: of consecutive seqs, below an offset, and in the order of time.

    No event is older than the one before or than `least_us`, and all are older than `frontier_us`;
    ANY_TIME there: they are of any time.
    """

    first_seq: int
    end_offset: int
    least_us: int
    frontier_us: int


class SchemaReader:
    """Reads the records of one schema: rows of a table version or, without a shape, statements."""

    def __init__(self, schema: RecordSchema) -> None:
        """Prepare for the records of a schema."""
        shape = schema.shape
        self.shape: TableShape | None = shape
        self.envelope_version: i64 = schema.envelope_version
        self.is_of_rows: bool = shape is not None
        self._rows: RowReader | None = None if shape is None else RowReader(shape)
        # Images may be asked for from any thread, so each reading takes an envelope of its own.
        self._idle: list[EnvelopeReader] = []
        self._images_of: Callable[[VEvent], Images] = self.images

    def event(self, envelope: EnvelopeReader, shard: str, offset: i64, is_whole: bool) -> VEvent:
        """Return the event of the record whose envelope was read.

        Without `is_whole` the images of a row are read when they are asked for. IndexError,
        OverflowError or ValueError when its bytes do not follow the schema.
        """
        event: Any = EventFields()
        event.seq = int(envelope.seq)
        event.last = envelope.last
        event.shard = shard
        event.offset = int(offset)
        event.late = False
        event.possible_duplicate = False
        event.place = None
        event.record = envelope.cursor.record
        event.type = _TYPES[envelope.type]
        event.token_text = envelope.token_text()
        event.commit_us = int(envelope.commit_us)
        event.gtid = envelope.gtid()
        event.row_index = int(envelope.row_index)
        envelope.take_names()
        event.database = envelope.database
        event.table = envelope.table
        event.op = _OPS[envelope.op]
        event.keyspace_id_before = envelope.keyspace_id_at(envelope.keyspace_id_before_at)
        event.keyspace_id_after = envelope.keyspace_id_at(envelope.keyspace_id_after_at)
        event.shape = self.shape
        event.added = envelope.added
        event.statement = None
        if is_whole:
            event.before, event.after = self._images(envelope)
            if not self.is_of_rows:
                event.statement = envelope.cursor.take_text()
            envelope.cursor.check_end()
        else:
            event.read_images = self._images_of
        event.__class__ = VEvent
        found: VEvent = event
        return found

    def images(self, event: VEvent) -> Images:
        """Return the images (before, after) of an event that was read without them.

        From any thread. CorruptRecord when the bytes of its record do not follow the schema.
        """
        try:
            envelope = self._idle.pop()
        except IndexError:
            envelope = EnvelopeReader()
        try:
            envelope.read(event.record, self.envelope_version)
            found = self._images(envelope)
            envelope.cursor.check_end()
        except BROKEN as error:
            raise _broken_record(event.record, event.shard, event.offset, error) from error
        envelope.cursor.close()
        self._idle.append(envelope)
        return found

    def _images(self, envelope: EnvelopeReader) -> Images:
        """Read the row images that follow the envelope."""
        cursor = envelope.cursor
        op = envelope.op
        before: Row | None = None
        after: Row | None = None
        rows = self._rows
        if rows is not None:
            if cursor.take_present():
                before = rows.take(cursor, envelope.columns_before, envelope.dates_before)
            if cursor.take_present():
                after = rows.take(cursor, envelope.columns_after, envelope.dates_after)
        if (
            (before is not None) != _HAS_BEFORE[op]
            or (after is not None) != _HAS_AFTER[op]
            or (envelope.type == _ROW) != (op != _NONE)
        ):
            kind = _TYPES[envelope.type]
            raise ValueError(f"the row images do not fit {kind.value} {_OPS[op].value}")
        if (envelope.dates_before and before is None) or (envelope.dates_after and after is None):
            raise ValueError("an invalid date belongs to an image that the record lacks")
        return before, after


class EventDecoder:
    """Decodes the records of shard logs, with one reader per schema.

    Not thread-safe. Errors name shard and offset.
    """

    def __init__(self, schema_ids: SchemaIds, *, with_images: bool = False) -> None:
        """`with_images`: rows of runs come with their images, for who asks for all of them."""
        self._schema_ids: SchemaIds = schema_ids
        self._with_images: bool = with_images
        self._readers: dict[int, SchemaReader] = {}
        self._envelope: EnvelopeReader = EnvelopeReader()
        # The reader of the last record: most follow one of the same schema.
        self._schema_id: i64 = -1
        self._reader: SchemaReader | None = None

    def decode(self, value: bytes | None, shard: str, offset: int) -> VEvent:
        """Decode the value of a record.

        CorruptRecord when the bytes do not follow their schema, UnknownEnvelope when this release
        does not read records of that schema.
        """
        schema_id = schema_id_of(value, f"log of shard {shard}", offset)
        reader = self._reader_of(schema_id, shard, offset)
        envelope = self._envelope
        try:
            envelope.read(value or b"", reader.envelope_version)
            logged_by = envelope.token_text().shard
            if logged_by != shard:
                raise ValueError(f"its token is of shard {logged_by!r}")
            event = reader.event(envelope, shard, offset, True)
        except BROKEN as error:
            raise _broken_record(value, shard, offset, error) from error
        envelope.cursor.close()
        return event

    def row_event(self, record: bytes, shard: str, offset: int) -> VEvent:
        """Return the event of a row whose envelope has been read before."""
        envelope = self._envelope
        envelope.open(record)
        reader = self._reader_of(int(envelope.schema_id), shard, offset)
        envelope.take_token()
        envelope.take_rest(reader.envelope_version)
        return reader.event(envelope, shard, offset, self._with_images)

    def shape_of(self, schema_id: int, shard: str, offset: int) -> TableShape:
        """Return the table version of a schema that a row at this place has."""
        shape = self._reader_of(schema_id, shard, offset).shape
        if shape is None:
            raise ValueError(f"schema {schema_id} is not one of rows")
        return shape

    def rows(
        self,
        shard: str,
        records: list[bytes],
        offsets: list[int],
        expected: Expected,
        *,
        as_records: bool = False,
    ) -> "LogRows":
        """Return the rows that the records of a log begin with; `as_records`: not as events.

        They end before a record that is not a plain row, or not as expected. The caller decodes
        that one, and raises what is wrong with it.
        """
        seq: i64 = expected.first_seq
        end: i64 = expected.end_offset
        before_us: i64 = expected.least_us
        frontier: i64 = expected.frontier_us
        size: i64 = 0
        count: i64 = 0
        rows = LogRows(shard, int(seq), self, as_records)
        shard_bytes = shard.encode("utf-8")
        envelope = self._envelope
        for record in records:
            offset: i64 = offsets[count]
            if offset >= end or size >= RUN_BYTES_MAX:
                break
            reader = self._open_row(record, shard, offset)
            if reader is None or envelope.seq != seq or envelope.shard != shard_bytes:
                break
            timestamp_us = envelope.timestamp_us
            if frontier != ANY_TIME and (timestamp_us < before_us or timestamp_us >= frontier):
                break
            if as_records:
                rows.records.append(record)
                rows.offsets.append(offsets[count])
                rows.ends.append(envelope.last)
            else:
                try:
                    rows.made.append(reader.event(envelope, shard, offset, self._with_images))
                except BROKEN:
                    break
            rows.times_us.append(int(timestamp_us))
            before_us = timestamp_us
            size += len(record)
            seq += 1
            count += 1  # noqa: SIM113 - enumerate() would not count in native integers
        envelope.cursor.close()
        return rows

    def _open_row(self, record: bytes, shard: str, offset: i64) -> SchemaReader | None:
        """Read the envelope of a row that can be read, and return the reader of its schema."""
        envelope = self._envelope
        try:
            envelope.open(record)
            if envelope.schema_id != self._schema_id:
                self._reader = self._reader_of(int(envelope.schema_id), shard, int(offset))
                self._schema_id = envelope.schema_id
            reader = self._reader
            if reader is None or not reader.is_of_rows:
                return None
            envelope.take_token()
            envelope.take_rest(reader.envelope_version)
        except (*BROKEN, ShardstreamError):
            return None  # the caller meets the same error, when the events before are delivered
        return reader if envelope.type == _ROW and envelope.op != _NONE else None

    def _reader_of(self, schema_id: int, shard: str, offset: int) -> SchemaReader:
        """Return the reader of a schema's records; shard and offset are for errors."""
        reader = self._readers.get(schema_id)
        if reader is None:
            where = f"log of shard {shard}, offset {offset}"
            text = self._schema_ids.text_of(schema_id)
            reader = SchemaReader(known_schema(text, schema_id, where))
            self._readers[schema_id] = reader
        return reader


class LogRows:
    """Consecutive rows of one shard log, whose envelopes have been read.

    As events, or as records: then the lists have an entry for each row; `ends`: whether it ends its
    transaction.
    """

    def __init__(
        self, shard: str, first_seq: int, decoder: EventDecoder, are_records: bool
    ) -> None:
        """Begin without rows."""
        self.shard: str = shard
        self.first_seq: int = first_seq
        self.are_records: bool = are_records
        self.times_us: list[int] = []
        self.records: list[bytes] = []
        self.offsets: list[int] = []
        self.ends: list[bool] = []
        self.made: list[VEvent] = []
        self._decoder: EventDecoder = decoder

    def events(self, begin: int, end: int) -> list[VEvent]:
        """Return rows as events."""
        if not self.are_records:
            return self.made if end - begin == len(self.made) else self.made[begin:end]
        return [
            self._decoder.row_event(self.records[at], self.shard, self.offsets[at])
            for at in range(begin, end)
        ]

    def add(self, event: VEvent) -> None:
        """Append an event that is not a plain row; only to rows that are events."""
        self.made.append(event)
        self.times_us.append(event.timestamp_us)

    def shape_of(self, schema_id: int) -> TableShape:
        """Return the table version of a schema that a row here has."""
        return self._decoder.shape_of(schema_id, self.shard, self.offsets[0])

    def last_end(self, begin: i64, end: i64) -> i64:
        """Return the last of rows `begin` to `end` that ends its transaction, or NO_ROW."""
        at = end - 1
        while at >= begin:
            if self.ends[at]:
                return at
            at -= 1
        return NO_ROW


def deliver_run(events: list[VEvent], run: Places, steps: list[Step]) -> None:
    """Give the events of runs their places in a merged stream, and append their steps."""
    count = 0
    for event in events:
        count += 1  # noqa: SIM113 - as above
        _set(event, "place", (run, count))
        token = event.token_text if event.last else None
        steps.append((event.shard, event.offset + 1, event.seq, token))


def token_of_record(record: bytes) -> TokenText:
    """Return the token of a record whose envelope has been read before."""
    envelope = EnvelopeReader()
    envelope.open(record)
    envelope.take_token()
    return envelope.token_text()


def _broken_record(value: bytes | None, shard: str, offset: int, error: Exception) -> CorruptRecord:
    """Return the error for a record that its schema does not describe."""
    where = f"log of shard {shard}"
    return CorruptRecord(
        f"{where}, offset {offset}: the record does not follow its schema "
        f"{schema_id_of(value, where, offset)}: {type(error).__name__} {error}",
    )
