"""The key of a record: Avro strings of database and table, and the primary key's values."""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from producers.decoder.errors import UnsupportedEvent
from producers.decoder.rows.invalid_dates import InvalidDate
from producers.decoder.values.wire import copy, encode_string

_NOT_IN_IMAGE: Final = -1
_HAS_TEXT: Final = -2


class RecordKey:
    """Where the primary key's values are in the open record. Slot 0 is kept apart, for speed."""

    def __init__(self) -> None:
        """Begin without a record."""
        self._size: i64 = 0
        self._prefix: bytes = b""
        self._begin: i64 = 0
        self._end: i64 = 0
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._texts: dict[int, bytes] = {}  # invalid dates, by slot
        self._out: BytesWriter = BytesWriter()

    def begin(self, prefix: bytes, size: i64) -> None:
        """Begin a record whose primary key has `size` columns."""
        self._prefix = prefix
        self._size = size
        if size:
            self._begin = _NOT_IN_IMAGE
            if size > 1:
                self._begins = [_NOT_IN_IMAGE] * size
                self._ends = [0] * size

    def note(self, slot: i64, begin: i64, end: i64) -> None:
        """Note where the value of a slot is. The later image's value replaces the earlier one's."""
        if slot == 0:
            self._begin = begin
            self._end = end
        else:
            self._begins[slot] = begin
            self._ends[slot] = end

    def _begin_of(self, slot: i64) -> i64:
        begin: i64 = self._begin if slot == 0 else self._begins[slot]
        return begin

    def _end_of(self, slot: i64) -> i64:
        end: i64 = self._end if slot == 0 else self._ends[slot]
        return end

    def note_date(self, note: InvalidDate) -> None:
        """Use the text of an invalid date, unless the record has a value of the later image."""
        slot = note.key_slot
        begin = self._begin_of(slot)
        if note.image == 1 or not 0 <= begin < self._end_of(slot):
            self._texts[slot] = encode_string(note.text)
            self.note(slot, _HAS_TEXT, 0)

    def shift(self, by: i64) -> None:
        """All values of the record have moved by that many bytes."""
        for slot in range(self._size):
            begin = self._begin_of(slot)
            if begin >= 0:
                self.note(slot, begin + by, self._end_of(slot) + by)

    def encoded(self, record: bytes) -> bytes:
        """Return the key of a complete record."""
        if self._size == 0:
            return self._prefix
        if self._size == 1 and self._begin >= 0:
            out = self._out
            out.truncate(0)
            out.write(self._prefix)
            copy(out, record, self._begin, self._end - self._begin)
            return out.getvalue()
        pieces: list[bytes] = [self._prefix]
        for slot in range(self._size):
            begin = self._begin_of(slot)
            if begin == _HAS_TEXT:
                pieces.append(self._texts[slot])
            elif begin < 0:
                raise UnsupportedEvent(
                    "a row image lacks a column of the primary key, so its record would have no "
                    "key: SET GLOBAL binlog_row_image=FULL on the source"
                )
            else:
                pieces.append(record[begin : self._end_of(slot)])
        return b"".join(pieces)

    def of_image(self, record: bytes, image: i64, dates: list[InvalidDate]) -> bytes:
        """Return the key of the row image that was written last; a partial one may lack values."""
        pieces: list[bytes] = [self._prefix]
        for slot in range(self._size):
            begin = self._begin_of(slot)
            end = self._end_of(slot)
            if begin < end:
                pieces.append(record[begin:end])
                continue
            for note in dates:
                if note.key_slot == slot and note.image == image:
                    pieces.append(encode_string(note.text))  # noqa: PERF401 - compiled
        return b"".join(pieces)
