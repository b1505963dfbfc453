"""Reads the records of one schema into VEvents. Typed for mypyc, and correct uncompiled too."""

from collections.abc import Callable
from typing import Final

from topics.errors import CorruptRecord
from topics.records.envelope import EnvelopeReader
from topics.records.table_shape import TableShape
from topics.records.values import RowReader
from topics.records.vevent import (
    IMAGES,
    OPS_BY_INDEX,
    TYPES_BY_INDEX,
    EventType,
    Op,
    Row,
    VEvent,
)
from topics.records.wire import schema_id_of

# Raised by reading bytes that do not follow the schema.
BROKEN: Final = (IndexError, OverflowError, ValueError)
# The row images before and after a change.
Images = tuple[Row | None, Row | None]

_TYPES: Final[list[EventType]] = list(TYPES_BY_INDEX)
_OPS: Final[list[Op]] = list(OPS_BY_INDEX)
# The row images of each op, by its index.
_HAS_BEFORE: Final[list[bool]] = [IMAGES[op][0] for op in OPS_BY_INDEX]
_HAS_AFTER: Final[list[bool]] = [IMAGES[op][1] for op in OPS_BY_INDEX]


class RecordReader:
    """Reads the records of one schema: that of a table version or, without a shape, of DDL.

    Not thread-safe.
    """

    def __init__(self, shape: TableShape | None, envelope: EnvelopeReader) -> None:
        """`envelope` may be shared with the readers of other schemas."""
        self._rows: RowReader | None = None if shape is None else RowReader(shape)
        self._envelope: EnvelopeReader = envelope
        # Images may be asked for from any thread, so each reading takes an envelope of its own.
        self._idle: list[EnvelopeReader] = []
        self.is_of_rows: bool = shape is not None
        self.shape: TableShape | None = shape
        self.images_of: Callable[[VEvent], Images] = self.images
        self.whole_of: Callable[[VEvent], VEvent] = self.whole

    def read(self, record: bytes, shard: str, offset: int) -> VEvent:
        """Read a record, including its wire header.

        IndexError, OverflowError or ValueError when its bytes do not follow the schema.
        """
        return self._read(self._envelope, record, shard, offset)

    def _read(self, envelope: EnvelopeReader, record: bytes, shard: str, offset: int) -> VEvent:
        cursor = envelope.cursor
        envelope.open(record)
        envelope.take_token()
        envelope.take_rest()
        token = envelope.token_text()
        if token.shard != shard:
            raise ValueError(f"its token is of shard {token.shard!r}")
        gtid = envelope.text_at(envelope.gtid_at)
        database = envelope.text_at(envelope.database_at)
        table = envelope.text_at(envelope.table_at)
        keyspace_id_before = envelope.keyspace_id_at(envelope.keyspace_id_before_at)
        keyspace_id_after = envelope.keyspace_id_at(envelope.keyspace_id_after_at)
        before, after = self._images(envelope)
        statement = cursor.take_text() if self._rows is None else None
        if cursor.at != cursor.end:
            raise ValueError("bytes are left after the last field")
        cursor.close()
        return VEvent(
            _TYPES[envelope.type],
            envelope.seq,
            token,
            envelope.commit_us,
            gtid,
            envelope.row_index,
            envelope.last,
            database,
            table,
            _OPS[envelope.op],
            keyspace_id_before,
            keyspace_id_after,
            before,
            after,
            statement,
            self.shape,
            shard,
            offset,
            False,
            False,
            None,
            record,
        )

    def images(self, event: VEvent) -> Images:
        """Return the images (before, after) of an event that was read without them.

        From any thread. CorruptRecord when the bytes of its record do not follow the schema.
        """
        envelope = self._take_idle()
        try:
            envelope.open(event.record)
            envelope.take_token()
            envelope.take_rest()
            found = self.take_images(envelope)
        except BROKEN as error:
            raise broken_record(event.record, event.shard, event.offset, error) from error
        envelope.cursor.close()
        self._idle.append(envelope)
        return found

    def take_images(self, envelope: EnvelopeReader) -> Images:
        """Read the images (before, after) that end the record whose envelope has been read.

        IndexError, OverflowError or ValueError when its bytes do not follow the schema.
        """
        found = self._images(envelope)
        if envelope.cursor.at != envelope.cursor.end:
            raise ValueError("bytes are left after the last field")
        return found

    def whole(self, event: VEvent) -> VEvent:
        """Return the event of a record that was read for its bytes; as `images` in all else."""
        envelope = self._take_idle()
        try:
            found = self._read(envelope, event.record, event.shard, event.offset)
        except BROKEN as error:
            raise broken_record(event.record, event.shard, event.offset, error) from error
        self._idle.append(envelope)
        return found

    def _take_idle(self) -> EnvelopeReader:
        try:
            return self._idle.pop()
        except IndexError:
            return EnvelopeReader()

    def _images(self, envelope: EnvelopeReader) -> Images:
        """Read the row images that follow the envelope."""
        cursor = envelope.cursor
        kind = _TYPES[envelope.type]
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
            or (kind is EventType.ROW) != (_OPS[op] is not Op.NONE)
        ):
            raise ValueError(f"the row images do not fit {kind.value} {_OPS[op].value}")
        if (envelope.dates_before and before is None) or (envelope.dates_after and after is None):
            raise ValueError("an invalid date belongs to an image that the record lacks")
        return before, after


def broken_record(value: bytes | None, shard: str, offset: int, error: Exception) -> CorruptRecord:
    """Return the error for a record that its schema does not describe."""
    where = f"log of shard {shard}"
    return CorruptRecord(
        f"{where}, offset {offset}: the record does not follow its schema "
        f"{schema_id_of(value, where, offset)}: {type(error).__name__} {error}",
    )
